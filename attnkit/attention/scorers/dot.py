"""Scores that are a dot product, or a bilinear form, of query and key."""

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, scorers
from attnkit.errors import at_least, more_than


@scorers.register("dot")
class Dot(Scorer):
    """Dot product (Luong 2015, section 3.1).

    score(q, k) = factor · q · k
    """

    def __init__(self, *, factor: float = 1.0, **shape: int) -> None:
        super().__init__(**shape)
        more_than(0, "scorer", factor=factor)
        self.scale = factor
        self.gain = factor * self.head_dim**0.5


@scorers.register("scaled_dot")
class ScaledDot(Scorer):
    """Dot product with unit variance for unit-variance inputs (Vaswani 2017, section 3.2.1).

    score(q, k) = factor · q · k / √d
    """

    def __init__(self, *, factor: float = 1.0, **shape: int) -> None:
        super().__init__(**shape)
        more_than(0, "scorer", factor=factor)
        self.scale = factor * self.head_dim**-0.5
        self.gain = factor


@scorers.register("multiplicative")
class Multiplicative(Scorer):
    """Bilinear form with a learned matrix per head (Luong 2015, section 3.1, "general").

    score(q, k) = qᵀ W k
      form "full":      W [d, d], starts at I/√d, where it is scaled dot
      form "low_rank":  W = U Vᵀ with U and V [d, rank], both start at rank^-¼ times the same orthonormal columns;
                         V is one per key-value head
      form "diagonal":  W = diag(w), w [d] starts at 1/√d

    Mapped on the query's side as Wᵀq, so that the full and the diagonal form leave keys as they are.
    """

    def __init__(
        self, *, form: Literal["full", "low_rank", "diagonal"] = "full", rank: int | None = None, **shape: int
    ) -> None:
        super().__init__(**shape)
        at_least(1, "scorer", rank=rank)
        self.form = form
        heads, width = self.num_heads, self.head_dim
        if form == "full":
            self.weight = nn.Parameter(torch.empty(heads, width, width))  # [H, query dimension, key dimension]
        elif form == "low_rank":
            rank = max(1, width // 4) if rank is None else rank
            self.query_factor = nn.Parameter(torch.empty(heads, width, rank))
            self.key_factor = nn.Parameter(torch.empty(self.num_key_value_heads, width, rank))
        else:
            self.weight = nn.Parameter(torch.empty(heads, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.form == "full":
            init.copy_(self.weight, torch.eye(self.head_dim).expand_as(self.weight) * self.head_dim**-0.5)
        elif self.form == "low_rank":
            rank = self.query_factor.shape[-1]
            columns = nn.init.orthogonal_(torch.empty(self.head_dim, rank)) * rank**-0.25
            init.copy_(self.query_factor, columns.expand_as(self.query_factor))
            init.copy_(self.key_factor, columns.expand_as(self.key_factor))
        else:
            init.constant_(self.weight, self.head_dim**-0.5)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        if self.form == "full":
            return query @ self.weight
        return query @ self.query_factor if self.form == "low_rank" else query * self.weight[:, None]

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return key @ self.key_factor if self.form == "low_rank" else key


@scorers.register("biaffine")
class Biaffine(Scorer):
    """Bilinear form and a prior of the key (Dozat 2017, section 2.2).

    score(q, k) = qᵀ W k + u · k, with W [d, d] and u [d] per head

    W starts at I/√d and u at 0, where it is scaled dot. The terms t·q + b of a full biaffine form depend on the query
    only and are left out.
    """

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim, self.head_dim))
        self.key_prior = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.copy_(self.weight, torch.eye(self.head_dim).expand_as(self.weight) * self.head_dim**-0.5)
        init.zeros_(self.key_prior)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return query @ self.weight + self.key_prior[:, None]
