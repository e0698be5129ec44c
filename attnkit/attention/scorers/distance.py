"""Scores that compare directions or distances of query and key."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, repeat_heads, scorers
from attnkit.attention.scorers.maps import (
    in_parts,
    is_wide,
    square_of,
    wide_dtype,
    with_column,
    with_length,
    with_square,
)
from attnkit.errors import more_than

MAX_TEMPERATURE = 100.0


@scorers.register("cosine")
class Cosine(Scorer):
    """Cosine of the angle between query and key, times a temperature (Graves 2014, section 3.3.1).

    score(q, k) = τ · q·k / (‖q‖ ‖k‖)
      temperature "learned":  τ = exp(t) per head, at most 100, starts at √d or `initial_temperature`
      temperature "fixed":    τ = `initial_temperature`; 1 is the pure cosine
      temperature "query":    τ = softplus(u·q + b) per query, starts at √d or `initial_temperature` for every query

    A length is √(Σ x² + 1e-6), whose gradient is finite at 0.
    """

    def __init__(
        self,
        *,
        temperature: Literal["learned", "fixed", "query"] = "learned",
        initial_temperature: float | None = None,
        **shape: int,
    ) -> None:
        super().__init__(**shape)
        more_than(0, "scorer", initial_temperature=initial_temperature)
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
        if self.temperature == "learned":
            limit = math.log(MAX_TEMPERATURE)
            return with_length(query, self.log_temperature.clamp(max=limit).exp()[:, None, None])
        if self.temperature == "query":
            score = query @ self.weight[..., None] + self.offset[:, None, None]
            return with_length(query, F.softplus(score))
        return with_length(query, query.new_full((1,), self.initial_temperature))

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return with_length(key, key.new_ones(1))


@scorers.register("gaussian")
class Gaussian(Scorer):
    """Gaussian kernel: with softmax it is Nadaraya-Watson regression of the values on the keys (Nadaraya 1964).

    score(q, k) = -‖w ⊙ (q - k)‖² / 2
      width "fixed":          one w = `initial_width`
      width "learned":        one w per head
      width "per_dimension":  w [d] per head
      width "mahalanobis":    ‖L(q - k)‖² with L [d, d] per key-value head in place of w

    w (or the diagonal of L) starts at (1.5 d)^-¼ or `initial_width`. A learned scalar w is mapped as [w²q, -w²/2] ·
    [k, ‖k‖²], so that the key's map has no parameters, a fixed one as w² [q, -1/2] · [k, ‖k‖²]; w [d] as
    [w²⊙q, -1/2] · [k, ‖w⊙k‖²], with a column for each query head that shares the key; "mahalanobis" as [Lq, -1/2] ·
    [Lk, ‖Lk‖²].
    """

    def __init__(
        self,
        *,
        width: Literal["fixed", "learned", "per_dimension", "mahalanobis"] = "learned",
        initial_width: float | None = None,
        **shape: int,
    ) -> None:
        super().__init__(**shape)
        more_than(0, "scorer", initial_width=initial_width)
        self.width = width
        self.initial_width = (1.5 * self.head_dim) ** -0.25 if initial_width is None else initial_width
        if width == "fixed":
            self.scale = self.initial_width**2
        elif width == "learned":
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

    @classmethod
    def nearest_to_scaled_dot(cls, head_dim: int) -> dict[str, Any]:
        return {"initial_width": head_dim**-0.25}  # w²q·k is q·k/√d; ‖k‖²w²/2 is what remains

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        copies = 1 if is_wide(query.dtype) else 2
        if self.width == "per_dimension":
            column = -0.5 * self.own_column(query).expand(*query.shape[:-1], -1)
            return torch.cat([self.precision(query) * query] + [column] * copies, dim=-1)
        if self.width == "learned":
            return with_column(query, self.precision(query), constant=-0.5, copies=copies)
        query = self.measured(query)
        return torch.cat([query, query.new_full((1,), -0.5).expand(*query.shape[:-1], copies)], dim=-1)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return self.measured(key)

    def key_columns(self, mapped_key: Tensor, positions: Tensor) -> Tensor:
        if self.width == "per_dimension":
            wide = mapped_key.to(wide_dtype(mapped_key.dtype))
            precision = self.precision(wide).squeeze(1).unflatten(0, (mapped_key.shape[1], -1))
            square = wide.square() @ precision.transpose(-1, -2)
        else:
            square = square_of(mapped_key)
        # Half precision cannot hold a square: it travels as a high and a low part.
        return in_parts(square, mapped_key.dtype, (0, 1))

    def widen_key(self, mapped_key: Tensor, positions: Tensor) -> Tensor:
        if self.width != "per_dimension" and is_wide(mapped_key.dtype):
            return with_square(mapped_key)
        return super().widen_key(mapped_key, positions)

    def query_term(self, query: Tensor) -> Tensor:
        weighted = query = self.measured(query)
        if self.width != "mahalanobis":
            weighted = query * (self.scale if self.width == "fixed" else self.precision(query))
        return -0.5 * torch.linalg.vecdot(query, weighted)[..., None]

    def own_column(self, query: Tensor) -> Tensor:
        """1 in the column of each query head among those that share its key, [H, 1, H / G]."""
        columns = torch.eye(self.num_heads // self.num_key_value_heads, dtype=query.dtype, device=query.device)
        return columns.repeat(query.shape[1] // len(columns), 1)[:, None]

    def measured(self, states: Tensor) -> Tensor:
        """L times queries or keys [B, H or G, N, D]; the states themselves where there is no L."""
        if self.width != "mahalanobis":
            return states
        return states @ repeat_heads(self.weight[None], states.shape[1]).to(states.dtype).transpose(-1, -2)

    def precision(self, states: Tensor) -> Tensor:
        """w², [H, 1, 1] or [H, 1, D]."""
        square = self.weight.square().to(states.dtype)
        return square[:, None] if self.width == "per_dimension" else square[:, None, None]
