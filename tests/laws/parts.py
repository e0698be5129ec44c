"""Every part of every registry with every value of its named choices, and combinations of them in which each pair that
is allowed meets.

Nothing here is a list of parts: a newly registered class is found, with its options, from its constructor.
"""

import inspect
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

import attnkit
from attnkit.attention import Attention, PairwiseScorer, normalizers, patterns, positions, scorers
from attnkit.attention.backends import BACKENDS, eager_attention
from attnkit.attention.choice import obstacle
from attnkit.attention.patterns import WeighingPattern
from attnkit.errors import UsageError

# Sizes at which every pattern leaves some pairs out and lets some meet.
SMALL = {"window": 3, "before": 3, "after": 1, "stride": 3, "dilation": 2, "block_size": 3, "length": 3, "memory": 2}

FAMILIES = {
    "scorer": scorers,
    "normalizer": normalizers,
    "pattern": patterns,
    "position": positions,
}


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


class Combination(NamedTuple):
    """All that a configuration says of attention."""

    scorer: Part = Part("scaled_dot")
    normalizer: Part = Part("softmax")
    pattern: Part = Part("full")
    position: Part = Part("none")
    heads: tuple[int, int] = (4, 4)  # of queries and of keys
    sharing: str = "separate"
    attend_to_self: bool = True
    architecture: str = "decoder"

    def __str__(self) -> str:
        return "+".join(str(value) for key, value in self._asdict().items() if value != self._field_defaults[key])

    def fields(self) -> dict[str, Any]:
        """What a configuration is built from."""
        chosen = self._asdict()
        parts = {family: chosen.pop(family) for family in FAMILIES}
        num_heads, num_key_value_heads = chosen.pop("heads")
        named = {family: part.name for family, part in parts.items()}
        named |= {f"{family}_options": dict(part.options) or None for family, part in parts.items()}
        return chosen | named | {"num_attention_heads": num_heads, "num_key_value_heads": num_key_value_heads}

    def problem(self, backend: str | None = None) -> str | None:
        """Why a model of these parts is refused when its configuration is built; None where it is not."""
        sizes = {"hidden_size": 24, "max_position_embeddings": 32}
        try:
            attnkit.AttnKitConfig(**sizes, **self.fields(), attn_implementation=backend)
        except UsageError as error:
            return str(error)
        return None

    def uses(self) -> "list[Use]":
        """The layers of a model of these parts, of one each that differs."""
        causal = self.architecture != "encoder"
        in_layers = positions[self.position.name].acts_on_scores
        own = self if in_layers else self._replace(position=Part("none"))
        alone = {"pattern": Part("full"), "position": Part("none"), "sharing": "separate", "attend_to_self": True}
        cross = (
            [Use(self._replace(**alone), causal=False, cross=True)] if self.architecture == "encoder-decoder" else []
        )
        return [Use(own, causal=causal), *cross]

    def fused(self, turn: int) -> "Combination":
        """The combination, with other parts in turn in place of those that no backend but eager can compute."""
        others = {key: parts for key, parts in FUSED.items() if self._asdict()[key] not in parts}
        return self._replace(**{key: parts[turn % len(parts)] for key, parts in others.items()})


class Use(NamedTuple):
    """A layer of a combination, for tokens among themselves or for those of a source."""

    parts: Combination
    causal: bool
    cross: bool = False

    def __str__(self) -> str:
        return f"{self.parts}, {'cross' if self.cross else 'causal' if self.causal else 'bidirectional'}"

    def build(self, dtype: torch.dtype = torch.float64) -> Attention:
        chosen = self.parts._asdict()
        del chosen["architecture"]
        num_heads, num_key_value_heads = chosen.pop("heads")
        heads = {"num_heads": num_heads, "num_key_value_heads": num_key_value_heads}
        return build(**heads, **chosen, causal=self.causal, dtype=dtype)

    def inputs(
        self, dtype: torch.dtype = torch.float64, *, size: float = 0.5, changed_from: int | None = None
    ) -> dict[str, Tensor]:
        """States, and for cross attention a source: in either case those of the keys may be changed from a token on."""
        keys = size * tokens()
        if changed_from is not None:
            keys[:, changed_from:] += 3
        chosen = {"states": size * tokens(2, 5).flip(-1), "source": keys} if self.cross else {"states": keys}
        return {key: states.to(dtype) for key, states in chosen.items()}

    def backends(self) -> list[str]:
        """The backends that run on a CPU with gradients and accept the layer, eager first."""
        parts = self.parts
        return ["eager", *backends_for(scorer=parts.scorer, normalizer=parts.normalizer, pattern=parts.pattern)]


FUSED = {
    "normalizer": [part for part in variants("normalizer") if normalizers[part.name].fused],
    "pattern": [part for part in variants("pattern") if not issubclass(patterns[part.name], WeighingPattern)],
}
CHOICES: dict[str, list[Any]] = {family: variants(family) for family in FAMILIES}
CHOICES["heads"] = [(4, 4), (4, 2), (4, 1), (1, 1)]  # multi-head, grouped-query, multi-query and single-head
CHOICES |= {key: list(get_args(attnkit.AttnKitConfig.__annotations__[key])) for key in ("sharing", "architecture")}
CHOICES["attend_to_self"] = [True, False]

Choice = tuple[str, Any]


@cache
def allowed_pairs() -> dict[tuple[Choice, Choice], None]:
    """Each pair of choices that a configuration accepts, the rest plain."""
    return {
        ((one, first), (other, second)): None
        for one, other in itertools.combinations(CHOICES, 2)
        for first, second in itertools.product(CHOICES[one], CHOICES[other])
        if Combination(**{one: first, other: second}).problem() is None
    }


def pairs_of(combination: Combination) -> Iterator[tuple[Choice, Choice]]:
    """The pairs of choices that meet in a combination."""
    chosen = combination._asdict()
    return itertools.combinations(((key, chosen[key]) for key in CHOICES), 2)


def in_order(one: Choice, other: Choice) -> tuple[Choice, Choice]:
    """Two choices as `allowed_pairs` has them."""
    order = list(CHOICES)
    return (one, other) if order.index(one[0]) < order.index(other[0]) else (other, one)


@cache
def covering_array() -> list[Combination]:
    """Few allowed combinations in which every allowed pair meets, always the same: each starts from a pair that is
    missing, and takes of every other choice what adds most."""
    allowed = allowed_pairs()
    missing, used = dict(allowed), dict.fromkeys(itertools.chain(*allowed), 0)
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for key in [key for key in CHOICES if key not in row]:
            pairs = {value: [in_order((key, value), choice) for choice in row.items()] for value in CHOICES[key]}
            fitting = [value for value in pairs if all(pair in allowed for pair in pairs[value])]
            gains = {value: (sum(pair in missing for pair in pairs[value]), -used[key, value]) for value in fitting}
            row[key] = max(fitting, key=gains.__getitem__)
        rows.append(Combination(**row))
        for pair in pairs_of(rows[-1]):
            missing.pop(pair, None)
            used |= {choice: used[choice] + 1 for choice in pair}
    return rows


def products(scorer: Part) -> Iterator[Combination]:
    """The scorer with every pattern and every position that it allows, of everything else each choice in its turn."""
    allowed = allowed_pairs()
    turns = enumerate(itertools.product(CHOICES["pattern"], CHOICES["position"]), CHOICES["scorer"].index(scorer))
    for turn, (pattern, position) in turns:
        row: dict[str, Any] = {"scorer": scorer, "pattern": pattern, "position": position}
        if any(pair not in allowed for pair in itertools.combinations(row.items(), 2)):
            continue
        for key in [key for key in CHOICES if key not in row]:
            start = turn % len(CHOICES[key])
            in_turn = CHOICES[key][start:] + CHOICES[key][:start]
            row[key] = next(
                value for value in in_turn if all(in_order((key, value), choice) in allowed for choice in row.items())
            )
        yield Combination(**row)


def each_once() -> list[Combination]:
    """A few combinations of the array in which every choice occurs."""
    chosen, seen = [], set()
    for row in covering_array():
        if not seen.issuperset(row._asdict().items()):
            chosen.append(row)
            seen.update(row._asdict().items())
    return chosen


def build(*, hidden_size: int = 24, num_heads: int = 4, dtype: torch.dtype = torch.float64, **chosen: Any) -> Attention:
    """An attention layer of the chosen parts, the others plain, with parameters away from special values."""
    arguments: dict[str, Any] = {"max_positions": 32}
    for family in FAMILIES.keys() & chosen.keys():
        part = chosen.pop(family)
        arguments |= {family: part.name, f"{family}_options": dict(part.options)}
    layer = Attention(hidden_size, num_heads, **arguments, **chosen).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return layer


def backends_for(**chosen: Part) -> list[str]:
    """The backends, other than eager, that run on a CPU with gradients and accept these parts."""
    plain = {"scorer": "scaled_dot", "normalizer": "softmax", "pattern": "full"}
    names = plain | {family: part.name for family, part in chosen.items() if family in plain}
    classes = {family: FAMILIES[family][name] for family, name in names.items()}
    return [name for name in ("sdpa", "pairwise") if obstacle(name, **classes) is None]


def attend(name: str) -> Any:
    return eager_attention if name == "eager" else BACKENDS[name]


def is_pairwise(part: Part) -> bool:
    return issubclass(scorers[part.name], PairwiseScorer)


def tokens(batch_size: int = 2, num_tokens: int = 7, width: int = 24, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch_size, num_tokens, width, generator=generator, dtype=torch.float64).to(dtype)
