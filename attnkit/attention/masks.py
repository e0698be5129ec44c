"""The mask that a backend needs: a pattern combined with causality, padding and the documents of a row."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, and_masks, causal_mask_function, sdpa_mask

from attnkit.attention.patterns import Full, LocalP, MaskFunction, Pattern
from attnkit.errors import UsageError

MASKS = AttentionMaskInterface()
MASKS["eager"] = sdpa_mask  # booleans, as for sdpa: a sum of very negative numbers could not tell an empty row
MASKS["pairwise"] = sdpa_mask


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
    layer_idx: int = 0,
    num_keys: int | None = None,
) -> Tensor | None:
    """The mask of a layer in the form that `backend` takes.

    states [B, N, D] are the queries' tokens, `position_ids` [B, N] theirs where rows are packed; `attention_mask` is
    the usual padding mask [B, keys], or a mask [B, H, Q, K] that is used as it is; `num_keys` is for cross attention.
    None where the backend's own causal flag, or no mask at all, says the same. Raises `UsageError` for a mask of
    another kind.
    """
    if isinstance(attention_mask, Tensor):
        check_mask(attention_mask)
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    batch_size, num_queries, device = states.shape[0], states.shape[1], states.device
    query_offset, key_offset, num_keys = 0, 0, num_queries if num_keys is None else num_keys
    if cache is not None:
        query_offset = cache.get_query_offset(layer_idx)
        num_keys, key_offset = cache.get_mask_sizes(num_queries, layer_idx)
    if documents is not None:
        documents = documents.expand(batch_size, -1)
    functions: list[MaskFunction] = [causal_mask_function if causal else Full()]
    if pattern is not None and not isinstance(pattern, Full | LocalP):
        positions = pattern_positions(attention_mask, position_ids, documents, key_offset + num_keys)
        functions.append(pattern if positions is None else at_positions(pattern, positions))
    if not attend_to_self:
        functions.append(other_token)
    if documents is not None:
        documents = F.pad(documents, (0, max(0, num_keys - documents.shape[-1])), value=-1)  # of a cache, still empty
        functions.append(same_document(documents))
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


def check_mask(mask: Tensor) -> None:
    """Raise `UsageError` for what is neither a padding mask nor one of pairs."""
    if mask.ndim == 2 or (mask.ndim == 4 and (mask.dtype == torch.bool or mask.is_floating_point())):
        return
    remedy = "convert it with .bool()" if mask.ndim == 4 else "write mask[:, None].bool() where it is one of pairs"
    raise UsageError(
        "attention_mask must be [batch, tokens], 1 for tokens and 0 for padding, or [batch, heads, tokens, keys], "
        f"boolean or to be added to scores, not {mask.dtype} {list(mask.shape)}: {remedy}"
    )


def pattern_positions(
    attention_mask: Tensor | None, position_ids: Tensor | None, documents: Tensor | None, num_keys: int
) -> Tensor | None:
    """The position [B, keys] of every token as its document counts it; None where it is the place in the row."""
    if documents is not None and position_ids is not None:
        return position_ids.expand(documents.shape[0], -1)
    if attention_mask is None:
        return None
    positions = count_attended(attention_mask)
    return F.pad(positions, (0, max(0, num_keys - positions.shape[-1])))


def count_attended(mask: Tensor) -> Tensor:
    """Positions [B, N] that count the tokens which a mask keeps."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def count_keys(positions: Tensor, past: int | Tensor, num_keys: int, *, padding: Tensor | None) -> Tensor:
    """Positions [B, keys] of all keys in a cache, whose newest tokens are at `positions` [B, N] after `past` others.

    A cache does not hold positions, but those of one text follow each other: earlier tokens are counted back from the
    first new one, without those that the `padding` [B, keys] leaves out. Places that are still empty are as the newest.
    """
    num_tokens, device = positions.shape[-1], positions.device
    if num_keys == num_tokens:
        return positions
    places = past + torch.arange(num_tokens, device=device)
    if padding is None:
        counted = torch.arange(num_keys, device=device)[None]
    else:
        counted = F.pad(count_attended(padding), (0, max(0, num_keys - padding.shape[-1])))[:, :num_keys]
    counted = counted - counted[:, places[:1]] + positions[:, :1]
    counted = torch.minimum(counted.clamp(min=0), positions.amax(-1, keepdim=True))
    return counted.index_copy(1, places, positions.to(counted.dtype).expand(counted.shape[0], -1))
