"""Scores that look at where a key stands rather than at what it is."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, scorers
from attnkit.errors import at_least, more_than


@scorers.register("location")
class Location(Scorer):
    """The query alone says which positions it wants (Luong 2015, section 3.1, "location").

    score(q, k at position j) = W_j · q + b_j, with W [max_positions, d] and b [max_positions] per key-value head

    W starts from N(0, 1/d), b at 0.
    """

    knows_order = True
    compares = False

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.weight = nn.Parameter(torch.empty(self.num_key_value_heads, self.max_positions, self.head_dim))
        self.offset = nn.Parameter(torch.empty(self.num_key_value_heads, self.max_positions))
        self.reset_parameters()

    @property
    def max_trained(self) -> int:
        return self.max_positions

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.weight, std=self.head_dim**-0.5)
        init.zeros_(self.offset)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([query, torch.ones_like(query[..., :1])], dim=-1)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([at_positions(rows, positions, key) for rows in (self.weight, self.offset[..., None])], dim=-1)


@scorers.register("static")
class Static(Scorer):
    """A learned weight from position to position, whatever the tokens are.

    score(q at i, k at j) = E_i · F_j               form "low_rank", E and F [max_positions, rank] per head
                          = -(i - j)² / (2 σ²)      form "gaussian", one σ > 0 per head

    E and F start from N(0, 1/√rank), so that scores have variance 1; σ starts at an eighth of `max_positions`, or at
    `initial_sigma`, and is learned as log σ. The Gaussian is computed from distances: as a product of maps it would be
    a small difference of large squares.
    """

    knows_order = True
    compares = False

    def __init__(
        self,
        *,
        form: Literal["low_rank", "gaussian"] = "low_rank",
        rank: int = 16,
        initial_sigma: float | None = None,
        **shape: int,
    ) -> None:
        super().__init__(**shape)
        at_least(1, "scorer", rank=rank)
        more_than(0, "scorer", initial_sigma=initial_sigma)
        self.form = form
        self.initial_sigma = max(1.0, self.max_positions / 8) if initial_sigma is None else initial_sigma
        if form == "low_rank":
            self.query_factor = nn.Parameter(torch.empty(self.num_heads, self.max_positions, rank))
            self.key_factor = nn.Parameter(torch.empty(self.num_key_value_heads, self.max_positions, rank))
        else:
            self.log_sigma = nn.Parameter(torch.empty(self.num_heads))
        self.reset_parameters()

    @property
    def max_trained(self) -> int | None:
        return self.max_positions if self.form == "low_rank" else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.form == "low_rank":
            init.normal_(self.query_factor, std=self.query_factor.shape[-1] ** -0.25)
            init.normal_(self.key_factor, std=self.key_factor.shape[-1] ** -0.25)
        else:
            init.constant_(self.log_sigma, math.log(self.initial_sigma))

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        if self.form == "low_rank":
            return at_positions(self.query_factor, positions, query)
        return torch.zeros_like(query[..., :1])

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        if self.form == "low_rank":
            return at_positions(self.key_factor, positions, key)
        return torch.zeros_like(key[..., :1])

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        if self.form == "low_rank":
            return None
        distance = (query_positions[:, None] - key_positions).to(self.log_sigma.dtype)
        return -0.5 * (distance * torch.exp(-self.log_sigma)[:, None, None]).square()[None]


def at_positions(rows: Tensor, positions: Tensor, like: Tensor) -> Tensor:
    """Rows [heads, max_positions, M] at positions [B or 1, N] -> [B, heads, N, M], B and dtype as in `like`."""
    return rows[:, positions].transpose(0, 1).expand(like.shape[0], -1, -1, -1).to(like.dtype)
