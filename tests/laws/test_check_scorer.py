"""What `check_scorer` says of scorers of the user's own: of wrong ones one line with their place."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit import PairwiseScorer, Scorer
from attnkit.errors import UsageError
from attnkit.testing import check_scorer


class Weighted(Scorer):
    """score(q, k) = (w ⊙ q) · k / √d"""

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.scale = self.head_dim**-0.5
        self.weight = nn.Parameter(torch.empty(self.num_heads, 1, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.ones_(self.weight)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return query * self.weight


class City(PairwiseScorer):
    """score(q, k) = -|q - k| / d"""

    def pair(self, mapped_query: Tensor, mapped_key: Tensor) -> Tensor:
        return -(mapped_query.unsqueeze(-2) - mapped_key.unsqueeze(-3)).abs().mean(-1)


@pytest.mark.parametrize("scorer", [Weighted, City])
def test_right_ones_keep_every_law(scorer: type[Scorer]) -> None:
    assert f"{scorer.__qualname__} on eager, " in check_scorer(scorer)


def own(*, base: type[Scorer] = Scorer, **methods: Any) -> type[Scorer]:
    return type("Own", (base,), methods)


def key(formula: Callable[..., Tensor]) -> type[Scorer]:
    """A scorer whose map of keys is wrong, from the scorer, the key and the positions."""
    return own(map_key=lambda self, key, at: formula(self, key, at))


def query(formula: Callable[..., Tensor]) -> type[Scorer]:
    return own(map_query=lambda self, query, at: formula(self, query, at))


def pair(formula: Callable[[Tensor, Tensor], Tensor]) -> type[Scorer]:
    return own(base=PairwiseScorer, pair=lambda self, query, key: formula(query, key))


class Silent(Weighted):
    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return query + 0 * self.weight.detach()


class Denied(Weighted):
    without_gradient = {"weight": "so it seems"}


class Scaled(Scorer):
    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.scale = torch.ones(())


class Forgetful(Scorer):
    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.register_buffer("factor", torch.full((), 0.3), persistent=False)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return key * self.factor


class Counting(Scorer):
    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.calls = 0

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        self.calls += 1
        return key / self.calls


class OtherForward(Scorer):
    def forward(self, query: Tensor, key: Tensor, *positions: Tensor) -> Tensor:
        return 2 * super().forward(query, key)


class WrongTiles(City):
    def tile(self, query: Tensor, key: Tensor) -> Tensor:
        return 2 * self.pair(query, key)


FAULTS = {
    "map of another width": (key(lambda self, key, at: key[..., :3]), r"gives float32 .* from map_key: it has to give"),
    "no tensor": (query(lambda self, query, at: None), "gives None from map_query"),
    "pair of another shape": (pair(lambda query, key: query.sum(-1)), r"gives float32 .* from pair: .* \[B, H, Q, K\]"),
    "pair the wrong way round": (pair(lambda query, key: (key @ query.mT).tanh()), "from pair"),
    "a tensor as scale": (Scaled, "keeps a tensor in its attribute 'scale'|has scale"),
    "a buffer that is not saved": (Forgetful, "has factor, which reset_parameters does not set"),
    "tokens together": (
        key(lambda self, key, at: key - key.mean(2, True)),
        "score of a key depends on the keys after it",
    ),
    "rows together": (
        key(lambda self, key, at: key - key.mean(0, True)),
        "scores depend on the other rows of the batch",
    ),
    "other queries": (
        query(lambda self, query, at: query.softmax(2)),
        "scores of a query depend on the queries after it",
    ),
    "earlier keys in a column": (
        own(
            map_query=lambda self, query, at: torch.cat([query, torch.ones_like(query[..., :1])], -1),
            key_columns=lambda self, key, at: key.sum(-1, keepdim=True).cumsum(2),
        ),
        "scores depend on other keys",
    ),
    "tokens together in training": (
        key(lambda self, key, at: key / key.square().mean((0, 2), True).sqrt() if self.training else key),
        "in training scores depend on other keys",
    ),
    "random": (query(lambda self, query, at: query + torch.randn_like(query)), "differ from call to call"),
    "a counter": (Counting, "differ from call to call"),
    "in place": (key(lambda self, key, at: key.mul_(2)), "the key is changed in place: compute a new tensor"),
    "no number": (key(lambda self, key, at: key.log()), "scores are not finite"),
    "no number at 0": (key(lambda self, key, at: key / key.norm(dim=-1, keepdim=True)), "length 0 are not finite"),
    "another type": (
        query(lambda self, query, at: query.to(torch.promote_types(query.dtype, torch.float32))),
        "map_query makes",
    ),
    "another device": (
        key(lambda self, key, at: key + torch.ones(6, dtype=key.dtype, device="cpu")),
        "device cpu|device",
    ),
    "digits lost": (
        key(lambda self, key, at: (key + 99) - 99),
        "in bf16 on eager the error is .* times that of scaled dot",
    ),
    "forward of its own": (OtherForward, "forward gives other scores than scale, the maps and pair"),
    "a parameter without gradient": (Silent, "parameter weight gets no gradient under softmax"),
    "a gradient that is denied": (Denied, "parameter weight gets a gradient, though without_gradient denies it"),
    "a key cut off": (key(lambda self, key, at: key.detach()), "the key counts, but no gradient reaches it"),
    "tiles of another formula": (WrongTiles, "pairwise attention is not what eager attention computes"),
    "a view of strides": (
        key(lambda self, key, at: key.view(key.shape[0], -1).view(key.shape)),
        "breaks the law .* view",
    ),
    "a branch on numbers": (key(lambda self, key, at: key if key.sum() > 0 else -key), "differ|depend|breaks the law"),
    "a place in the row": (
        key(lambda self, key, at: key * torch.arange(key.shape[2], device=key.device)[:, None]),
        "scores depend on the place of a query or key in the row: only map_query and map_key may read",
    ),
    "a query's place in the row": (
        query(lambda self, query, at: query * torch.arange(query.shape[2], device=query.device)[:, None]),
        "scores depend on the place of a query or key in the row",
    ),
    "a key's place in a pair": (
        pair(lambda query, key: City.pair(None, query, key) + torch.arange(key.shape[2], device=key.device)),
        "scores depend on the place of a query or key in the row",
    ),
    "a query's place in a pair": (
        pair(lambda query, key: City.pair(None, query, key) * torch.arange(query.shape[2], device=key.device)[:, None]),
        "scores depend on the place of a query or key in the row",
    ),
    "a place in training": (
        key(lambda self, key, at: key * torch.arange(key.shape[2])[:, None] if self.training else key),
        "scores depend on the place of a query or key in the row",
    ),
    "a place where positions count": (
        own(
            map_key=lambda self, key, at: key * torch.arange(key.shape[2], device=key.device)[:, None],
            knows_order=True,
        ),
        "scores depend on the place of a query or key in the row",
    ),
    "a key's position unsaid": (
        key(lambda self, key, at: key * at[:, None, :, None].to(key.dtype)),
        "scores depend on positions: set knows_order = True",
    ),
    "a query's position unsaid": (
        query(lambda self, query, at: query * at[:, None, :, None].to(query.dtype)),
        "scores depend on positions: set knows_order = True",
    ),
    "the last position": (
        own(
            map_key=lambda self, key, at: key * (at / (at.amax(-1, True) + 1))[:, None, :, None].to(key.dtype),
            knows_order=True,
        ),
        "decoding with a cache",
    ),
    "keys of the first row": (pair(lambda query, key: query @ key[:1].mT), "scores depend on the other rows of the"),
    "positions of the first row": (
        own(map_key=lambda self, key, at: key * (1 + at[:1, None, :, None].to(key.dtype)), knows_order=True),
        "scores depend on the other rows of the batch, or on their positions",
    ),
    "a type that only fp64 shows": (
        key(lambda self, key, at: key.float() if key.dtype == torch.float64 else key),
        r"map_key makes torch\.float32 of torch\.float64: give back the type of the key",
    ),
    "a pair of another type": (
        pair(lambda query, key: City.pair(None, query, key).float()),
        r"scores of torch\.float64 are torch\.float32: let pair give back their type",
    ),
    "columns of another type": (
        own(
            map_query=lambda self, query, at: torch.cat([query, torch.ones_like(query[..., :1])], -1),
            key_columns=lambda self, key, at: key.sum(-1, keepdim=True).float(),
        ),
        r"key_columns makes torch\.float32 of torch\.float64: give back the type of the key",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_ones_are_told_in_one_line_with_their_place(fault: str) -> None:
    scorer, said = FAULTS[fault]
    with pytest.raises((AssertionError, ValueError), match=said) as error:
        check_scorer(scorer)
    line = str(error.value)
    assert re.search(
        r"(Own|Silent|Denied|Scaled|Forgetful|Counting|OtherForward|WrongTiles) \([\w./-]+(:\d+)?\)", line
    ), line
    assert "\n" not in line
    assert len(line) < 500, line
    assert "site-packages" not in line


class Needy(Scorer):
    def __init__(self, *, factor: float, **shape: int) -> None:
        super().__init__(**shape)
        self.scale = factor


def test_a_missing_option_is_placed_at_its_class() -> None:
    with pytest.raises(UsageError) as error:
        check_scorer(Needy)
    file = re.escape(__file__)
    assert re.match(
        rf"Needy \({file}:\d+\) cannot be built with options {{}}: TypeError: .* argument: 'factor'$", str(error.value)
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gaussian", r"takes a class, not the name 'gaussian': give scorers\['gaussian'\]"),
        ("gausian", r"takes a class, not the name 'gausian': did you mean 'gaussian'"),
        (5, "5 is no Scorer: write it as a class with Scorer as its base"),
        (dict, "is no Scorer: write it as a class with Scorer as its base"),
        (lambda **shape: City(**shape), "is no Scorer: write it as a class"),
        (City(num_heads=1, head_dim=2, max_positions=3), "takes a class, not an instance: give City, and its options"),
    ],
)
def test_what_is_no_class_of_a_scorer_is_one_line(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^check_scorer.* {said}") as error:
        check_scorer(given)
    assert "\n" not in str(error.value)
