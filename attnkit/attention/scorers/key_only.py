"""Scores that do not compare: they look at the key alone, or at nothing, or at a nonlinear map of the key."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.attention.scorers.base import Scorer, scorers
from attnkit.errors import at_least

TANH_VARIANCE = 0.394  # of tanh(x) for x ~ N(0, 1)


@scorers.register("uniform")
class Uniform(Scorer):
    """Every key alike: softmax makes the output the mean of the values.

    score(q, k) = 0
    """

    compares = False

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros_like(query[..., :1])

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros_like(key[..., :1])


@scorers.register("linear")
class Linear(Scorer):
    """A number for the query plus a number for the key (Yogatama 2018).

    score(q, k) = w_q · q + w_k · k, with w_q [d] per query head and w_k [d] per key-value head, both from N(0, 1/d)
    """

    compares = False
    without_gradient = {"query_weight": "w_q·q is the same for all keys, so softmax cancels it"}

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.query_weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.key_weight = nn.Parameter(torch.empty(self.num_key_value_heads, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.query_weight, std=self.head_dim**-0.5)
        init.normal_(self.key_weight, std=self.head_dim**-0.5)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return torch.ones_like(query[..., :1])

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return key @ self.key_weight[..., None]

    def query_term(self, query: Tensor) -> Tensor:
        return query @ self.query_weight[..., None]


@scorers.register("tanh_key")
class TanhKey(Scorer):
    """Dot product with a squashed map of the key (Brown 2018).

    score(q, k) = q · tanh(W k), with W [d, d] per key-value head

    W starts at I/√d, where the score is close to scaled dot.
    """

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.weight = nn.Parameter(torch.empty(self.num_key_value_heads, self.head_dim, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.copy_(self.weight, torch.eye(self.head_dim).expand_as(self.weight) * self.head_dim**-0.5)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return torch.tanh(key @ self.weight.transpose(-1, -2))


@scorers.register("context_vector")
class ContextVector(Scorer):
    """One learned query for all tokens, compared with a squashed map of the key (Yang 2016, section 2.2).

    score(q, k) = u · tanh(W k + b), with u [width] per head, W [width, d] and b [width] per key-value head

    `width` is the head width where it is not given. W starts from N(0, 1/d), b at 0, u from N(0, 2.5 / width).
    """

    compares = False

    def __init__(self, *, width: int | None = None, **shape: int) -> None:
        super().__init__(**shape)
        at_least(1, "scorer", width=width)
        width = self.head_dim if width is None else width
        self.context = nn.Parameter(torch.empty(self.num_heads, width))
        self.weight = nn.Parameter(torch.empty(self.num_key_value_heads, width, self.head_dim))
        self.offset = nn.Parameter(torch.empty(self.num_key_value_heads, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.context, std=(TANH_VARIANCE * self.context.shape[-1]) ** -0.5)
        init.normal_(self.weight, std=self.head_dim**-0.5)
        init.zeros_(self.offset)

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return self.context[:, None].expand(*query.shape[:-1], -1)

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        return torch.tanh(key @ self.weight.transpose(-1, -2) + self.offset[:, None])
