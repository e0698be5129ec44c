"""Which queries may meet which keys: mask functions, and the mask that a backend needs."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, and_masks, causal_mask_function, sdpa_mask

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (batch, head, query, key) indices -> bool

MASKS = AttentionMaskInterface()
MASKS["eager"] = sdpa_mask  # booleans, as for sdpa: a sum of very negative numbers could not tell an empty row


def anywhere(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Every query may meet every key."""
    return query >= 0


def same_document(documents: Tensor) -> MaskFunction:
    """Only tokens of one document [B, N] may meet."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return documents[batch, query] == documents[batch, key]

    return allowed


def find_documents(position_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Number the documents of packed rows [B, N]: one starts where a position does not follow the one before.

    Padding is no document: position ids around it may be anything. None where every row is one document.
    """
    if position_ids is None or position_ids.shape[-1] == 1:
        return None
    starts = torch.diff(position_ids, dim=-1) != 1
    if attention_mask is not None:
        real = attention_mask[:, -position_ids.shape[-1] :].bool()
        starts = starts & real[:, 1:] & real[:, :-1]
    if not torch.compiler.is_compiling() and not starts.any():
        return None
    return torch.nn.functional.pad(starts.cumsum(-1), (1, 0))


def build_mask(
    backend: str,
    *,
    states: Tensor,
    attention_mask: Tensor | None,
    causal: bool,
    cache: Cache | None = None,
    documents: Tensor | None = None,
    num_keys: int | None = None,
) -> Tensor | None:
    """The mask of one stack in the form that `backend` takes.

    states [B, N, D] are the queries' tokens; `attention_mask` is the usual padding mask [B, keys], or a mask
    [B, H, Q, K] that is used as it is; `num_keys` is for cross attention. None where the backend's own causal flag, or
    no mask at all, says the same.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    batch_size, num_queries, device = states.shape[0], states.shape[1], states.device
    query_offset, key_offset, num_keys = 0, 0, num_queries if num_keys is None else num_keys
    if cache is not None:
        query_offset = cache.get_query_offset()
        num_keys, key_offset = cache.get_mask_sizes(num_queries, 0)
    functions = [causal_mask_function if causal else anywhere]
    if documents is not None:
        functions.append(same_document(documents.expand(batch_size, -1)))
    return MASKS[backend](
        batch_size=batch_size,
        q_length=num_queries,
        kv_length=num_keys,
        q_offset=query_offset,
        kv_offset=key_offset,
        mask_function=and_masks(*functions),
        attention_mask=None if attention_mask is None else attention_mask.to(device=device, dtype=torch.bool),
        allow_is_causal_skip=causal and documents is None and not (cache and cache.is_compileable and num_queries == 1),
        allow_is_bidirectional_skip=not causal and documents is None,
        dtype=states.dtype,
        device=device,
        use_vmap=False,
    )
