"""Which queries may meet which keys: patterns as mask functions, and the mask that a backend needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, and_masks, causal_mask_function, sdpa_mask

from attnkit.errors import at_least
from attnkit.registry import Registry

MaskFunction = Callable[..., Any]  # (batch, head, query, key) indices that broadcast -> bool

MASKS = AttentionMaskInterface()
MASKS["eager"] = sdpa_mask  # booleans, as for sdpa: a sum of very negative numbers could not tell an empty row
MASKS["pairwise"] = sdpa_mask


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


def same_document(documents: Tensor) -> MaskFunction:
    """Only tokens of one document [B, N] may meet."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return documents[batch, query] == documents[batch, key]

    return allowed


def other_token(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """No token meets itself (Kitaev 2020, section 2)."""
    return query != key


def at_positions(pattern: MaskFunction, positions: Tensor) -> MaskFunction:
    """A pattern over the positions [B, N] of tokens, as one over their places in the row."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return pattern(batch, head, positions[batch, query], positions[batch, key])

    return allowed


def find_documents(position_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Number the documents of packed rows [B, N]: one starts where a position does not follow the one before.

    Padding is no document: position ids around it may be anything. None where every row is one document.
    """
    if position_ids is None or position_ids.shape[-1] == 1:
        return None
    starts = torch.diff(position_ids, dim=-1) != 1
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask[:, : position_ids.shape[-1]].bool()
        starts = starts & real[:, 1:] & real[:, :-1]
    if not torch.compiler.is_compiling() and not starts.any():
        return None
    return F.pad(starts.cumsum(-1), (1, 0))


def build_mask(
    backend: str,
    *,
    states: Tensor,
    attention_mask: Tensor | None,
    causal: bool,
    pattern: Pattern | None = None,
    attend_to_self: bool = True,
    position_ids: Tensor | None = None,
    documents: Tensor | None = None,
    cache: Cache | None = None,
    num_keys: int | None = None,
) -> Tensor | None:
    """The mask of a layer in the form that `backend` takes.

    states [B, N, D] are the queries' tokens, `position_ids` [B, N] theirs where rows are packed; `attention_mask` is
    the usual padding mask [B, keys], or a mask [B, H, Q, K] that is used as it is; `num_keys` is for cross attention.
    None where the backend's own causal flag, or no mask at all, says the same.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    batch_size, num_queries, device = states.shape[0], states.shape[1], states.device
    query_offset, key_offset, num_keys = 0, 0, num_queries if num_keys is None else num_keys
    if cache is not None:
        query_offset = cache.get_query_offset()
        num_keys, key_offset = cache.get_mask_sizes(num_queries, 0)
    functions: list[MaskFunction] = [causal_mask_function if causal else Full()]
    if pattern is not None and not isinstance(pattern, Full | LocalP):
        positions = pattern_positions(attention_mask, position_ids, documents, key_offset + num_keys)
        functions.append(pattern if positions is None else at_positions(pattern, positions))
    if not attend_to_self:
        functions.append(other_token)
    if documents is not None:
        documents = F.pad(documents, (0, max(0, num_keys - documents.shape[-1])), value=-1)  # of a cache, still empty
        functions.append(same_document(documents.expand(batch_size, -1)))
    plain = len(functions) == 1
    return MASKS[backend](
        batch_size=batch_size,
        q_length=num_queries,
        kv_length=num_keys,
        q_offset=query_offset,
        kv_offset=key_offset,
        mask_function=and_masks(*functions),
        attention_mask=None if attention_mask is None else attention_mask.to(device=device, dtype=torch.bool),
        allow_is_causal_skip=plain and causal and not (cache and cache.is_compileable and num_queries == 1),
        allow_is_bidirectional_skip=plain and not causal,
        dtype=states.dtype,
        device=device,
        use_vmap=False,
    )


def pattern_positions(
    attention_mask: Tensor | None, position_ids: Tensor | None, documents: Tensor | None, num_keys: int
) -> Tensor | None:
    """The position [B, keys] of every token as its document counts it; None where it is the place in the row."""
    if documents is not None and position_ids is not None:
        return position_ids.expand(documents.shape[0], -1)
    if attention_mask is None:
        return None
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    return F.pad(positions, (0, max(0, num_keys - positions.shape[-1])))
