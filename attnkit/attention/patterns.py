"""Which queries may meet which keys: patterns as mask functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.errors import at_least
from attnkit.registry import Registry

MaskFunction = Callable[..., Any]  # (batch, head, query, key) indices that broadcast -> bool


class Pattern(nn.Module, ABC):
    """Whether a query may meet a key, from their positions: a mask function in the sense of transformers.

    Positions count the real tokens of a document, wherever it stands in its row. A causal model combines its pattern
    with causality, a batch with its padding, a packed row with its documents.
    """

    def forward(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Index tensors that broadcast -> bool."""
        return self.allowed(query, key)

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Positions of queries and keys that broadcast -> True where they may meet."""

    def reset_parameters(self) -> None:
        """Set every parameter of the class to its initial value."""


class WeighingPattern(Pattern, ABC):
    """A pattern that also weighs: after softmax, weights are multiplied with factors that the query predicts.

    Only the backend `eager` can compute it.
    """

    def __init__(self, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim

    @abstractmethod
    def window_weight(self, query: Tensor, num_allowed: Tensor, key_positions: Tensor) -> Tensor:
        """Queries [B, H, Q, D], counts [B or 1, 1, Q, 1] and the keys' positions as each query's document counts them
        [B or 1, 1, Q, K] -> factors of the weights [B, H, Q, K]."""


patterns: Registry[Pattern] = Registry("pattern", Pattern)


def shape_of_pattern(name: str, *, num_heads: int, head_dim: int) -> dict[str, int]:
    """What the pattern of a name is built with beside its options."""
    return (
        {"num_heads": num_heads, "head_dim": head_dim}
        if issubclass(patterns.get(name, Pattern), WeighingPattern)
        else {}
    )


@patterns.register("full")
class Full(Pattern):
    """Every query may meet every key."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query >= 0) & (key >= 0)


@patterns.register("causal")
class Causal(Pattern):
    """j <= i: no query meets a later key. A decoder is causal with any pattern."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query


@patterns.register("sliding_window")
class SlidingWindow(Pattern):
    """|i - j| < window (Luong 2015, section 3.2, "local-m", whose D is window - 1)."""

    def __init__(self, *, window: int = 64) -> None:
        super().__init__()
        at_least(1, "pattern", window=window)
        self.window = window

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() < self.window


@patterns.register("banded")
class Banded(Pattern):
    """-after <= i - j < before: a band that need not be symmetric (Child 2019; in turn with full layers Brown 2020)."""

    def __init__(self, *, before: int = 128, after: int = 0) -> None:
        super().__init__()
        at_least(1, "pattern", before=before)
        self.before = before
        self.after = after

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key < self.before) & (key - query <= self.after)


@patterns.register("strided")
class Strided(Pattern):
    """|i - j| < stride, or i - j is a multiple of stride (Child 2019, section 4.3)."""

    def __init__(self, *, stride: int = 32) -> None:
        super().__init__()
        at_least(1, "pattern", stride=stride)
        self.stride = stride

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return ((query - key).abs() < self.stride) | ((query - key) % self.stride == 0)


@patterns.register("dilated")
class Dilated(Pattern):
    """i - j is a multiple of dilation and |i - j| < window · dilation (Beltagy 2020, section 3.1)."""

    def __init__(self, *, window: int = 64, dilation: int = 2) -> None:
        super().__init__()
        at_least(1, "pattern", window=window, dilation=dilation)
        self.window = window
        self.dilation = dilation

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        return (distance % self.dilation == 0) & (distance.abs() < self.window * self.dilation)


@patterns.register("block_sparse")
class BlockSparse(Pattern):
    """|block(i) - block(j)| <= neighbours, or either is among the first `global_blocks` (Zaheer 2020, section 2)."""

    def __init__(self, *, block_size: int = 64, neighbours: int = 1, global_blocks: int = 1) -> None:
        super().__init__()
        at_least(1, "pattern", block_size=block_size)
        at_least(0, "pattern", neighbours=neighbours, global_blocks=global_blocks)
        self.block_size = block_size
        self.neighbours = neighbours
        self.global_blocks = global_blocks

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = query // self.block_size, key // self.block_size
        near = (query - key).abs() <= self.neighbours
        return near | (query < self.global_blocks) | (key < self.global_blocks)


@patterns.register("segment")
class Segment(Pattern):
    """Own segment, and the `memory` tokens before it (Dai 2019, section 3.2).

    A text given segment by segment with the cache of the segments before gives the same states as in one pass: that is
    the recurrence of Transformer-XL, whose memory gets no gradient because the cache is detached.
    """

    def __init__(self, *, length: int = 128, memory: int = 0) -> None:
        super().__init__()
        at_least(1, "pattern", length=length)
        at_least(0, "pattern", memory=memory)
        self.length = length
        self.memory = memory

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        start = query // self.length * self.length
        return (key >= start - self.memory) & (key < start + self.length)


@patterns.register("global_tokens")
class GlobalTokens(Pattern):
    """|i - j| < window, and the first `num_tokens` meet all and are met by all (Beltagy 2020, section 3.1)."""

    def __init__(self, *, num_tokens: int = 1, window: int = 64) -> None:
        super().__init__()
        at_least(1, "pattern", num_tokens=num_tokens, window=window)
        self.num_tokens = num_tokens
        self.window = window

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return ((query - key).abs() < self.window) | (query < self.num_tokens) | (key < self.num_tokens)


@patterns.register("tiered")
class Tiered(Pattern):
    """Own block, and of other blocks the last token, which sums its block up (Child 2019, section 4.3, "fixed")."""

    def __init__(self, *, block_size: int = 64) -> None:
        super().__init__()
        at_least(1, "pattern", block_size=block_size)
        self.block_size = block_size

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        same_block = query // self.block_size == key // self.block_size
        return same_block | (key % self.block_size == self.block_size - 1)


@patterns.register("local_p")
class LocalP(WeighingPattern):
    """A window around a predicted place (Luong 2015, section 3.2, "local-p").

    weight_ij ← weight_ij · exp(-(j - p_i)² / (2σ²)),  p_i = (n_i - 1) · sigmoid(v · tanh(W q_i)),  σ = window / 2

    with n_i the number of keys that query i may meet, W [d, d] and v [d] per head, both from N(0, 1/d). The weights are
    not normalized again, so a head may look at nothing; every pair may meet.
    """

    def __init__(self, *, window: int = 64, **shape: int) -> None:
        super().__init__(**shape)
        at_least(1, "pattern", window=window)
        self.window = window
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim, self.head_dim))
        self.vector = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.normal_(self.weight, std=self.head_dim**-0.5)
        init.normal_(self.vector, std=self.head_dim**-0.5)

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query >= 0) & (key >= 0)

    def window_weight(self, query: Tensor, num_allowed: Tensor, key_positions: Tensor) -> Tensor:
        place = torch.sigmoid(torch.tanh(query @ self.weight) @ self.vector[..., None])  # [B, H, Q, 1]
        distance = key_positions - (num_allowed - 1).clamp(min=0) * place
        return torch.exp(-2.0 * (distance / self.window).square())
