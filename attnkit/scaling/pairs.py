"""How many pairs of query and key a layer uses."""

import json
from functools import cache

import torch

from attnkit.attention.patterns import Full, LocalP, Pattern
from attnkit.scaling.parts import build_pattern
from attnkit.scaling.subject import FilledConfig

CHUNK = 2**24  # pairs that are looked at at once


def pairs_of_layer(config: FilledConfig, *, depth: int, num_queries: int, past: int, causal: bool) -> int:
    """The pairs of one head of a layer's self attention that its pattern, causality and `attend_to_self` allow.

    The queries are the last `num_queries` of `past + num_queries` tokens.
    """
    name, options = config.pattern_of_layer(depth)
    pattern = build_pattern(config, name, options)
    if isinstance(pattern, Full | LocalP):
        full = num_queries * (past + num_queries)
        later = num_queries * (num_queries - 1) // 2 if causal else 0
        return full - later - (0 if config.attend_to_self else num_queries)
    key = json.dumps([name, options], sort_keys=True)
    return count_pairs(
        Keyed(pattern, key), num_queries=num_queries, past=past, causal=causal, to_self=config.attend_to_self
    )


class Keyed:
    """A pattern that equals every other of its name and options."""

    def __init__(self, pattern: Pattern, key: str) -> None:
        self.pattern = pattern
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.key == other.key


@cache
def count_pairs(keyed: Keyed, *, num_queries: int, past: int, causal: bool, to_self: bool) -> int:
    """Ask the pattern for every pair, some rows at a time."""
    keys = torch.arange(past + num_queries)[None]
    rows = max(1, CHUNK // keys.shape[1])
    total = 0
    for queries in torch.arange(past, past + num_queries)[:, None].split(rows):
        allowed = keyed.pattern.allowed(queries, keys)
        if causal:
            allowed = allowed & (keys <= queries)
        if not to_self:
            allowed = allowed & (keys != queries)
        total += int(allowed.sum())
    return total
