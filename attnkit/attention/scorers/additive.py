"""Scores of a one-layer network on query and key: they reduce to no dot product."""

import copy
from abc import ABC
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from attnkit.attention.scorers.base import PairwiseScorer, repeat_heads, scorers
from attnkit.errors import at_least

EXPONENT_LIMIT = 43.0  # e^(2·43) fits fp32; where the product of two overflows, its reciprocal has the right limit 0
QUARTERS = 4


class TanhOfSum(PairwiseScorer, ABC):
    """score(q, k) = w · tanh(a + b) for a = map_query(q), b = map_key(k), w [width] per head.

    Computed as Σ_c w_c - 2 Σ_c w_c / (1 + e^(2a_c) e^(2b_c)), whose exponentials are taken once per token; Σ_c w_c is
    the query term. w starts from N(0, 4 / width).
    """

    def __init__(self, *, width: int | None, **shape: int) -> None:
        super().__init__(**shape)
        at_least(1, "scorer", width=width)
        self.width = self.head_dim if width is None else width
        self.may_overflow = True  # the product of four denominators
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.width))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.weight, std=2 * self.width**-0.5)

    def query_term(self, query: Tensor) -> Tensor:
        return self.weight.sum(-1)[:, None, None].expand(*query.shape[:-1], 1)

    def pair(self, mapped_query: Tensor, mapped_key: Tensor) -> Tensor:
        query, key = exponential(mapped_query), exponential(mapped_key)
        ratio = torch.reciprocal(1 + query.unsqueeze(-2) * key.unsqueeze(-3))  # [B, H, Q, K, width]
        return (ratio * (-2 * self.weight.to(ratio.dtype)[:, None, None])).sum(-1).to(mapped_query.dtype)

    def for_tiles(self, mapped_query: Tensor, mapped_key: Tensor) -> "TanhOfSum":
        """On a CPU a copy that leaves the guard against overflow away where none is near: it takes a fifth of the time.
        (Other devices would have to wait for the answer.)"""
        scorer = copy.copy(self)
        if mapped_query.device.type == "cpu" and mapped_query.numel() and mapped_key.numel():
            largest = exponential(mapped_query.max() + mapped_key.max())
            scorer.may_overflow = bool(largest > largest_product(largest.dtype))
        return scorer

    def prepare(self, mapped: Tensor) -> Tensor:
        """e^(2a), with dimensions of no weight up to a whole number of quarters."""
        return exponential(F.pad(mapped, (0, -self.width % QUARTERS)))

    def tile(self, query: Tensor, key: Tensor) -> Tensor:
        """The sum of four fractions takes one division: that is what a pair and dimension costs on a CPU."""
        weights = F.pad(self.weight.to(query.dtype), (0, -self.width % QUARTERS)).chunk(QUARTERS, -1)
        w1, w2, w3, w4 = (weight[:, None, :, None] for weight in weights)
        d1, d2, d3, d4 = self.denominators(query, key)
        first, second = d1 * d2, d3 * d4
        return -2 * (((w1 * d2 + w2 * d1) * second + (w3 * d4 + w4 * d3) * first) / (first * second)).sum(-2)

    def tile_gradient(self, query: Tensor, key: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """With r = 1 / (1 + e^(2a) e^(2b)): ∂score/∂a = ∂score/∂b = 4 w (r - r²) and ∂score/∂w = -2 r.

        Each sum over pairs goes over the first of two tokens, so that the second fills vectors: hence one for keys, one
        for queries.
        """
        gradient, weight = gradient.unsqueeze(-2), 4 * self.weight.to(query.dtype)[:, None]
        ratios = reciprocals(self.denominators(query, key))
        of_key = self.joined((ratio - ratio * ratio) * gradient for ratio in ratios)
        of_weight = self.joined(ratio * gradient for ratio in ratios).sum((0, 2))
        gradient = gradient.transpose(-1, -3).contiguous()
        ratios = reciprocals(self.denominators(key, query))
        of_query = self.joined((ratio - ratio * ratio) * gradient for ratio in ratios)
        return weight * of_query, weight * of_key, {"weight": -2 * of_weight}

    def denominators(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """1 + e^(2a) e^(2b) of each pair and dimension, in four quarters [B, H, Q, dimensions / 4, K]. Too large
        ones are cut off, which is less than the last digit of a score."""
        quarters = zip(query.chunk(QUARTERS, -1), key.mT.contiguous().chunk(QUARTERS, -2), strict=True)
        products = [of_query.unsqueeze(-1) * of_key.unsqueeze(-3) for of_query, of_key in quarters]
        if self.may_overflow:
            products = [product.clamp(max=largest_product(query.dtype)) for product in products]
        return [1 + product for product in products]

    def joined(self, quarters: Iterable[Tensor]) -> Tensor:
        """Four times [B, H, Q, dimensions / 4, K] -> sums over the first token, [B, H, K, width]."""
        sums = [quarter.sum(-3) for quarter in quarters]
        return torch.cat(sums, dim=-2).transpose(-1, -2)[..., : self.width]


@scorers.register("additive")
class Additive(TanhOfSum):
    """One-layer network on query and key (Bahdanau 2015, appendix A.1.2).

    score(q, k) = w · tanh(W_q q + W_k k), with W_q [d, width] per head, W_k [d, width] per key-value head, w [width]

    `width` is the head width where it is not given. W_q and W_k start from N(0, 1/d), w from N(0, 4 / width).
    """

    def __init__(self, *, width: int | None = None, **shape: int) -> None:
        super().__init__(width=width, **shape)
        self.query_weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim, self.width))
        self.key_weight = nn.Parameter(torch.empty(self.num_key_value_heads, self.head_dim, self.width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.normal_(self.query_weight, std=self.head_dim**-0.5)
        init.normal_(self.key_weight, std=self.head_dim**-0.5)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return query @ self.query_weight

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return key @ self.key_weight


@scorers.register("concat")
class Concat(TanhOfSum):
    """One-layer network on the joined query and key (Luong 2015, section 3.1, "concat").

    score(q, k) = w · tanh(W [q; k]), with one W [2d, width] per key-value head and w [width] per head

    Unlike "additive" it has one matrix, started as such from N(0, 2 / (2d + width)) (Glorot 2010).
    """

    def __init__(self, *, width: int | None = None, **shape: int) -> None:
        super().__init__(width=width, **shape)
        self.joint_weight = nn.Parameter(torch.empty(self.num_key_value_heads, 2 * self.head_dim, self.width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.normal_(self.joint_weight, std=(2 / (2 * self.head_dim + self.width)) ** 0.5)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return query @ repeat_heads(self.joint_weight[None, :, : self.head_dim], query.shape[1])

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return key @ self.joint_weight[:, self.head_dim :]


def largest_product(dtype: torch.dtype) -> float:
    """The largest e^(2a) e^(2b), one of four whose product must be finite."""
    return torch.finfo(dtype).max ** (1 / QUARTERS) / 2


def reciprocals(numbers: list[Tensor]) -> list[Tensor]:
    """Of four numbers, with one division."""
    d1, d2, d3, d4 = numbers
    first, second = d1 * d2, d3 * d4
    both = torch.reciprocal(first * second)
    of_first, of_second = both * second, both * first
    return [of_first * d2, of_first * d1, of_second * d4, of_second * d3]


def exponential(states: Tensor) -> Tensor:
    """e^(2x), at least in fp32, clamped so that it is finite."""
    wide = states if states.dtype.itemsize >= 4 else states.float()
    return torch.exp(2 * wide.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT))
