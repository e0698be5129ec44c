"""Scores that compare directions or distances of query and key."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, repeat_heads, scorers

MAX_TEMPERATURE = 100.0
NORM_EPSILON = 1e-6  # under the root: the gradient stays finite at the zero vector in every dtype


@scorers.register("cosine")
class Cosine(Scorer):
    """Cosine of the angle between query and key, times a temperature (Graves 2014, section 3.3.1).

    score(q, k) = τ · q·k / (‖q‖ ‖k‖)
      temperature "learned":  τ = exp(t) per head, at most 100, starts at √d or `initial_temperature`
      temperature "fixed":    τ = `initial_temperature`; 1 is the pure cosine
      temperature "query":    τ = softplus(u·q + b) per query, starts at √d or `initial_temperature` for every query
    """

    def __init__(
        self,
        *,
        temperature: Literal["learned", "fixed", "query"] = "learned",
        initial_temperature: float | None = None,
        **shape: int,
    ) -> None:
        super().__init__(**shape)
        self.temperature = temperature
        self.initial_temperature = self.head_dim**0.5 if initial_temperature is None else initial_temperature
        if temperature == "learned":
            self.log_temperature = nn.Parameter(torch.empty(self.num_heads))
        elif temperature == "query":
            self.weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
            self.offset = nn.Parameter(torch.empty(self.num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.temperature == "learned":
            init.constant_(self.log_temperature, math.log(self.initial_temperature))
        elif self.temperature == "query":
            init.zeros_(self.weight)
            init.constant_(self.offset, self.initial_temperature + math.log(-math.expm1(-self.initial_temperature)))

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        direction = unit_vector(query)
        if self.temperature == "learned":
            limit = math.log(MAX_TEMPERATURE)
            return direction * self.log_temperature.clamp(max=limit).exp()[:, None, None].to(query.dtype)
        if self.temperature == "query":
            score = (query * self.weight[:, None]).sum(-1, keepdim=True) + self.offset[:, None, None]
            return direction * F.softplus(score)
        return direction * self.initial_temperature

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return unit_vector(key)


@scorers.register("gaussian")
class Gaussian(Scorer):
    """Gaussian kernel: with softmax it is Nadaraya-Watson regression of the values on the keys (Nadaraya 1964).

    score(q, k) = -‖w ⊙ (q - k)‖² / 2
      width "fixed":          one w = `initial_width`
      width "learned":        one w per head
      width "per_dimension":  w [d] per head
      width "mahalanobis":    ‖L(q - k)‖² with L [d, d] per head in place of w

    w (or the diagonal of L) starts at (1.5 d)^-¼ or `initial_width`. Mapped as [w²⊙q, -w²/2] · [k, k⊙k], where a
    scalar w needs one column ‖k‖² only; "mahalanobis" maps Lq and Lk with w = 1. But for L, the key's map has no
    parameters.
    """

    def __init__(
        self,
        *,
        width: Literal["fixed", "learned", "per_dimension", "mahalanobis"] = "learned",
        initial_width: float | None = None,
        **shape: int,
    ) -> None:
        super().__init__(**shape)
        self.width = width
        self.initial_width = (1.5 * self.head_dim) ** -0.25 if initial_width is None else initial_width
        if width == "learned":
            self.weight = nn.Parameter(torch.empty(self.num_heads))
        elif width == "per_dimension":
            self.weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        elif width == "mahalanobis":
            # One matrix per key head: query and key must be measured with the same ruler.
            self.weight = nn.Parameter(torch.empty(self.num_key_value_heads, self.head_dim, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.width in ("learned", "per_dimension"):
            init.constant_(self.weight, self.initial_width)
        elif self.width == "mahalanobis":
            init.copy_(self.weight, torch.eye(self.head_dim).expand_as(self.weight) * self.initial_width)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        query, precision = self.measured(query), self.precision(query)
        square_weight = (-0.5 * precision).expand(*query.shape[:-1], query.shape[-1] if self.elementwise else 1)
        copies = 1 if query.dtype.itemsize >= 4 else 2
        return torch.cat([precision * query] + [square_weight] * copies, dim=-1)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        key = self.measured(key)
        if key.dtype.itemsize >= 4:
            return torch.cat([key, self.squared(key)], dim=-1)
        # Half precision cannot hold a square: it travels as a high and a low part.
        square = self.squared(key.float())
        high = square.to(key.dtype)
        return torch.cat([key, high, (square - high.float()).to(key.dtype)], dim=-1)

    def query_term(self, query: Tensor) -> Tensor:
        query, precision = self.measured(query), self.precision(query)
        return -0.5 * (precision * query * query).sum(-1, keepdim=True)

    @property
    def elementwise(self) -> bool:
        return self.width == "per_dimension"

    def squared(self, key: Tensor) -> Tensor:
        """k⊙k, or its sum where every dimension has the same weight."""
        square = key.square()
        return square if self.elementwise else square.sum(-1, keepdim=True)

    def measured(self, states: Tensor) -> Tensor:
        """L times each vector for "mahalanobis", where query heads that share a key share its L."""
        if self.width != "mahalanobis":
            return states
        return states @ repeat_heads(self.weight[None], states.shape[1]).transpose(-1, -2)

    def precision(self, query: Tensor) -> Tensor:
        """w², shaped to broadcast over [B, H, Q, D]."""
        if self.width in ("fixed", "mahalanobis"):
            return query.new_full((1, 1, 1), self.initial_width**2 if self.width == "fixed" else 1.0)
        square = self.weight.square().to(query.dtype)
        return square[:, None] if self.elementwise else square[:, None, None]


def unit_vector(states: Tensor) -> Tensor:
    """x / ‖x‖ along the last dimension, at least in fp32 inside."""
    wide = states if states.dtype.itemsize >= 4 else states.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + NORM_EPSILON)).to(states.dtype)
