"""From the scores of a query to its weights."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from attnkit.registry import Registry


class Normalizer(nn.Module, ABC):
    """Turns scores [B, H, Q, K] into weights [B, H, Q, K].

    A query that may meet no key has weights 0.
    """

    cancels_query_term: bool
    """Whether adding a number to all scores of a query leaves its weights as they are."""

    @abstractmethod
    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """`allowed` is True where query and key may meet and broadcasts to the scores; None lets all pairs meet."""


normalizers: Registry[Normalizer] = Registry("normalizer")


@normalizers.register("softmax")
class Softmax(Normalizer):
    """weight_ij = exp(s_ij) / Σ_k exp(s_ik), over the keys that query i may meet."""

    cancels_query_term = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return softmax(scores)
        # The lowest finite score, not -inf, keeps the gradient of a query without keys finite.
        return softmax(scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)) * allowed


def softmax(scores: Tensor) -> Tensor:
    """Softmax over keys, at least in fp32 inside."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
