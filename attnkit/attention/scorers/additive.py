"""Scores of a one-layer network on query and key: they reduce to no dot product."""

from abc import ABC

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.attention.scorers.base import PairwiseScorer, repeat_heads, scorers

EXPONENT_LIMIT = 43.0  # e^(2·43) fits fp32; where the product of two overflows, its reciprocal has the right limit 0


class TanhOfSum(PairwiseScorer, ABC):
    """score(q, k) = w · tanh(a + b) for a = map_query(q), b = map_key(k), w [width] per head.

    Computed as Σ_c w_c - 2 Σ_c w_c / (1 + e^(2a_c) e^(2b_c)), whose exponentials are taken once per token; Σ_c w_c is
    the query term. w starts from N(0, 4 / width).
    """

    def __init__(self, *, width: int | None, **shape: int) -> None:
        super().__init__(**shape)
        self.width = self.head_dim if width is None else width
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.width))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.weight, std=2 * self.width**-0.5)

    def query_term(self, query: Tensor) -> Tensor:
        return self.weight.sum(-1)[:, None, None].expand(*query.shape[:-1], 1)

    def pair(self, mapped_query: Tensor, mapped_key: Tensor) -> Tensor:
        ratio = self.ratio(mapped_query, mapped_key)
        return (ratio * (-2 * self.weight.to(ratio.dtype)[:, None, None])).sum(-1).to(mapped_query.dtype)

    def pair_gradient(
        self, mapped_query: Tensor, mapped_key: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """With r = 1 / (1 + e^(2a) e^(2b)): ∂score/∂a = ∂score/∂b = 4 w (r - r²) and ∂score/∂w = -2 r.

        The sums of r and of r² over keys are taken apart, because the first is also the weight's gradient.
        """
        ratio = self.ratio(mapped_query, mapped_key)
        linear = ratio * gradient.unsqueeze(-1)
        square = ratio * linear
        over_keys, weight = linear.sum(-2), 4 * self.weight[:, None]
        of_query, of_key = weight * (over_keys - square.sum(-2)), weight * (linear - square).sum(-3)
        return of_query, of_key, {"weight": -2 * over_keys.sum((0, 2))}

    def ratio(self, mapped_query: Tensor, mapped_key: Tensor) -> Tensor:
        """1 / (1 + e^(2a) e^(2b)) of each pair and dimension, [B, H, Q, K, width]."""
        query, key = exponential(mapped_query), exponential(mapped_key)
        return torch.reciprocal(1 + query.unsqueeze(-2) * key.unsqueeze(-3))


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


def exponential(states: Tensor) -> Tensor:
    """e^(2x), at least in fp32, clamped so that it is finite."""
    wide = states if states.dtype.itemsize >= 4 else states.float()
    return torch.exp(2 * wide.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT))
