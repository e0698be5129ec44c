"""Every part of every registry with every value of its named choices, and the combinations of them that are allowed.

Nothing here is a list of parts: a newly registered class is found, with its options, from its constructor.
"""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

import attnkit
from attnkit.attention import Attention, PairwiseScorer, normalizers, patterns, positions, scorers
from attnkit.attention.backends import BACKENDS, eager_attention
from attnkit.attention.choice import obstacle
from attnkit.errors import UsageError

# Sizes at which every pattern leaves some pairs out and lets some meet.
SMALL = {"window": 3, "before": 3, "after": 1, "stride": 3, "dilation": 2, "block_size": 3, "length": 3, "memory": 2}

FAMILIES = {
    "scorer": scorers,
    "normalizer": normalizers,
    "pattern": patterns,
    "position": positions,
}
DEFAULTS = {"scorer": "scaled_dot", "normalizer": "softmax", "pattern": "full", "position": "none"}


class Part(NamedTuple):
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for key, value in self.options if key not in SMALL)])


def variants(family: str) -> list[Part]:
    """Each class of a family, once per value of each of its named choices."""
    return [variant for name, cls in FAMILIES[family].items() for variant in variants_of(name, cls)]


def variants_of(name: str, cls: type) -> Iterator[Part]:
    hints = get_type_hints(cls.__init__)
    parameters = inspect.signature(cls.__init__).parameters
    small = tuple((key, value) for key, value in SMALL.items() if key in parameters)
    choices = {key: get_args(hint) for key, hint in hints.items() if get_origin(hint) is Literal}
    for values in itertools.product(*choices.values()):
        yield Part(name, small + tuple(zip(choices, values, strict=True)))


def build(*, hidden_size: int = 24, num_heads: int = 4, dtype: torch.dtype = torch.float64, **chosen: Any) -> Attention:
    """An attention layer of the chosen parts, the others plain, with parameters away from special values."""
    arguments: dict[str, Any] = {"max_positions": 32}
    for family in FAMILIES:
        part = chosen.pop(family, Part(DEFAULTS[family]))
        arguments |= {family: part.name, f"{family}_options": dict(part.options)}
    layer = Attention(hidden_size, num_heads, **arguments, **chosen).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return layer


def goes_together(**chosen: Part) -> bool:
    """Whether a configuration of these parts is allowed."""
    arguments: dict[str, Any] = {"hidden_size": 24, "max_position_embeddings": 32}
    for family, part in chosen.items():
        arguments |= {family: part.name, f"{family}_options": dict(part.options)}
    try:
        attnkit.AttnKitConfig(**({"position": "none"} | arguments))
    except UsageError:
        return False
    return True


def pairs() -> list[dict[str, Part]]:
    """Every allowed pair of parts of two families."""
    return [
        {first: one, second: other}
        for first, second in itertools.combinations(FAMILIES, 2)
        for one, other in itertools.product(variants(first), variants(second))
        if goes_together(**{first: one, second: other})
    ]


def backends_for(**chosen: Part) -> list[str]:
    """The backends, other than eager, that run on a CPU with gradients and accept these parts."""
    classes = {family: FAMILIES[family][chosen.get(family, Part(DEFAULTS[family])).name] for family in FAMILIES}
    classes.pop("position")
    return [name for name in ("sdpa", "pairwise") if obstacle(name, **classes) is None]


def attend(name: str) -> Any:
    return eager_attention if name == "eager" else BACKENDS[name]


def is_random(part: Part) -> bool:
    return part.name in ("gumbel", "stochastic")


def is_pairwise(part: Part) -> bool:
    return issubclass(scorers[part.name], PairwiseScorer)


def tokens(batch_size: int = 2, num_tokens: int = 7, width: int = 24, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch_size, num_tokens, width, generator=generator, dtype=torch.float64).to(dtype)
