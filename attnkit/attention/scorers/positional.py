"""Scores that look at where a key stands rather than at what it is."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, scorers
from attnkit.attention.scorers.maps import exact_pairs, in_parts, wide_dtype
from attnkit.errors import at_least, more_than

KEY_SIZE = 64  # how much of a small σ's inverse the keys of "static" take over, because fp16 holds no number of 2^16


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
        return at_positions(self.weight, positions, key)

    def key_columns(self, mapped_key: Tensor, positions: Tensor) -> Tensor:
        return at_positions(self.offset[..., None], positions, mapped_key)


@scorers.register("static")
class Static(Scorer):
    """A learned weight from position to position, whatever the tokens are.

    score(q at i, k at j) = E_i · F_j               form "low_rank", E and F [max_positions, rank] per head
                          = -(i - j)² / (2 σ²)      form "gaussian", one σ > 0 per head

    E and F start from N(0, 1/√rank), so that scores have variance 1; σ starts at an eighth of `max_positions`, or at
    `initial_sigma`, and is learned as log σ. So that the product is no small difference of large squares, positions
    count from the middle m of the query's block, in columns of that block which are 0 in the queries of all others:

    -(i - j)² / (2 σ²) = -1 / (2 σ²) · [(i - m)², i - m, 1] · [1, 2 (m - j), (m - j)²]
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
        length, middles = self.blocks(positions.device, query.dtype)
        block = (positions // length).clamp(0, len(middles) - 1)
        offset = (positions / length - middles[block])[..., None].to(wide_dtype(query.dtype))
        powers = torch.cat([offset.square(), offset, torch.ones_like(offset)], dim=-1)
        columns = self.columns(F.one_hot(block, len(middles))[..., None] * powers[..., None, :], query.dtype)
        sharpness = -0.5 * (length * torch.exp(-self.log_sigma.to(columns.dtype))).square() / KEY_SIZE
        # Finite in every dtype: zero times infinity is no number.
        mapped = sharpness.clamp(min=torch.finfo(query.dtype).min)[:, None, None] * columns
        parts, _ = zip(*exact_pairs(query.dtype), strict=True)
        return in_parts(mapped, query.dtype, parts).expand(len(query), -1, -1, -1)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        if self.form == "low_rank":
            return at_positions(self.key_factor, positions, key)
        length, middles = self.blocks(positions.device, key.dtype)
        offset = (middles - positions[..., None] / length)[..., None].to(wide_dtype(key.dtype))
        powers = torch.cat([torch.ones_like(offset), 2 * offset, offset.square()], dim=-1)
        columns = self.columns(KEY_SIZE * powers, key.dtype)
        _, parts = zip(*exact_pairs(key.dtype), strict=True)
        return in_parts(columns, key.dtype, parts).expand(*key.shape[:2], -1, -1)

    def blocks(self, device: torch.device, dtype: torch.dtype) -> tuple[int, Tensor]:
        """The length of a block of positions, a power of two so that fractions of it are exact, and the middle of each
        block in lengths. There are as many as fit in a head, which is as wide as a kernel makes queries anyway."""
        most = max(1, self.head_dim // (3 * len(exact_pairs(dtype))))
        length = 2 ** math.ceil(math.log2(max(1, self.max_positions / most)))
        return length, torch.arange(math.ceil(self.max_positions / length), device=device) + 0.5

    def columns(self, powers: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, N, blocks, 3] -> [B, 1, N, M], up to the width of a head, so that no kernel copies it to make it so."""
        flat = powers.flatten(-2)[:, None]
        return F.pad(flat, (0, max(0, self.head_dim // len(exact_pairs(dtype)) - flat.shape[-1])))


def at_positions(rows: Tensor, positions: Tensor, like: Tensor) -> Tensor:
    """Rows [heads, max_positions, M] at positions [B or 1, N] -> [B, heads, N, M], B and dtype as in `like`."""
    return rows[:, positions].transpose(0, 1).expand(like.shape[0], -1, -1, -1).to(like.dtype)
