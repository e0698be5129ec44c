"""The laws of the layer for combinations of parts of all families at once, generated from the registries: every scorer
with every normalizer and every position, and patterns, sharing and heads in turn, so that each meets every part."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from parts import Part, attend, backends_for, build, is_random, tokens, variants

import attnkit
from attnkit.attention.choice import FASTEST_FIRST
from attnkit.errors import UsageError
from attnkit.testing import outputs_and_gradients, same

SCORERS, NORMALIZERS, PATTERNS, POSITIONS = map(variants, ("scorer", "normalizer", "pattern", "position"))
HEADS = [*itertools.product(("separate", "key_value"), (4, 2, 1)), ("query_key", 4), ("all", 4)]


class Combination(NamedTuple):
    parts: dict[str, Part]
    heads: dict[str, Any]
    causal: bool

    def problem(self, backend: str | None = None) -> str | None:
        """Why a model of these parts is refused when its configuration is built; None where it is not."""
        fields = {family: part.name for family, part in self.parts.items()}
        fields |= {f"{family}_options": dict(part.options) for family, part in self.parts.items()}
        sizes = {"hidden_size": 24, "num_attention_heads": 4, "max_position_embeddings": 32}
        architecture = "decoder" if self.causal else "encoder"
        try:
            attnkit.AttnKitConfig(
                **sizes, **fields, **self.heads, architecture=architecture, attn_implementation=backend
            )
        except UsageError as error:
            return str(error)
        return None


def combinations(scorer: Part) -> Iterator[Combination]:
    """Each normalizer with each position; the rest moves on by one, and with each scorer it starts one further."""
    start = SCORERS.index(scorer)
    for turn, (normalizer, position) in enumerate(itertools.product(NORMALIZERS, POSITIONS), start):
        sharing, num_key_value_heads = HEADS[turn % len(HEADS)]
        parts = {"scorer": scorer, "normalizer": normalizer, "position": position}
        parts["pattern"] = PATTERNS[turn % len(PATTERNS)]
        yield Combination(parts, {"sharing": sharing, "num_key_value_heads": num_key_value_heads}, turn // 12 % 2 == 0)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_a_combination_keeps_the_laws_or_is_refused_with_a_reason(scorer: Part) -> None:
    allowed = 0
    for combination in combinations(scorer):
        problem = combination.problem()
        if problem is None:
            allowed += 1
            backends_compute_the_definition(combination)
            other_backends_are_refused(combination)
            the_future_and_padding_have_no_influence(combination)
        else:
            reasons = ("order enters twice", "makes none")
            assert any(reason in problem for reason in reasons), problem
    assert allowed > len(NORMALIZERS)


def backends_compute_the_definition(combination: Combination) -> None:
    """Values and all gradients in fp64, without and with padding."""
    layer = build(causal=combination.causal, **combination.heads, **combination.parts).eval()
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[1, -2:] = False
    for mask in (None, padding):
        definition = None
        for backend in backends_for(**combination.parts):
            definition = definition or outputs_and_gradients(layer, tokens(), attend("eager"), mask=mask)
            ours = outputs_and_gradients(layer, tokens(), attend(backend), mask=mask)
            for tensor, expected in zip(ours, definition, strict=True):
                same(tensor, expected, f"{combination} on {backend}")


def other_backends_are_refused(combination: Combination) -> None:
    """In one line that names a backend which works."""
    works = ["eager", *backends_for(**combination.parts)]
    for backend in ("sdpa", "pairwise", "flex_attention", "flash_attention_2", "paged|eager", "paged|sdpa"):
        problem = combination.problem(backend)
        if backend in works:
            assert problem is None, problem
        elif problem is not None or backend != "flex_attention":
            fastest = next(name for name in FASTEST_FIRST if name in works)
            assert f"attn_implementation {backend!r}: " in problem, problem
            assert f"use {fastest!r}" in problem, problem


@torch.no_grad()
def the_future_and_padding_have_no_influence(combination: Combination) -> None:
    if any(is_random(part) for part in combination.parts.values()):
        return
    changed = tokens()
    changed[:, 4:] += 3
    layer = build(causal=combination.causal, **combination.heads, **combination.parts).eval()
    mask = None if combination.causal else (torch.arange(7) < 4).expand(2, -1)
    for backend in ["eager", *backends_for(**combination.parts)]:
        before, after = (layer(states, mask=mask, backend=attend(backend))[0][:, :4] for states in (tokens(), changed))
        same(before, after, f"{combination} on {backend}: tokens that may not be seen have an influence", 1e-12)
