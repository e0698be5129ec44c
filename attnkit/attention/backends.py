"""How attention is computed. A backend never changes the mathematics; `eager` is the definition.

Shapes: B batch, H query heads, G key-value heads, Q queries, K keys, M mapped width, V value width.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attnkit.attention.scorers.base import PairwiseScorer, Scorer, repeat_heads

TILE_ELEMENTS = 2**22  # numbers of a pairwise scorer's largest intermediate that exist at once


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float = 1.0,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of the values, in plain operations.

    query [B, H, Q, M] and key [B, G, K, M] are mapped; value [B, G, K, V]; the mask is boolean (True: may meet),
    additive, or None. `module` has the scorer, the normalizer and `is_causal`. Returns [B, Q, H, V] and the weights
    [B, H, Q, K]. Other arguments that models pass to every backend are of no use here.
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = scaling * pair_scores(module.scorer, query, key)
    if attention_mask is None:
        allowed = causal_mask(scores) if module.is_causal else None
    elif attention_mask.dtype == torch.bool:
        allowed = attention_mask
    else:
        scores, allowed = scores + attention_mask, None
    weights = module.normalizer(scores, allowed)
    output = F.dropout(weights, dropout, module.training) @ value
    return output.transpose(1, 2).contiguous(), weights


def causal_mask(scores: Tensor) -> Tensor | None:
    """True where the key is not later than the query. A single query is the newest token and meets all keys."""
    num_queries, num_keys = scores.shape[-2:]
    if num_queries == 1:
        return None
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=scores.device).tril()


def pair_scores(scorer: Scorer, query: Tensor, key: Tensor) -> Tensor:
    """All scores [B, H, Q, K]; those of a pairwise scorer in tiles of queries that are computed again in backward,
    so that its intermediates of every pair never exist at once."""
    if not isinstance(scorer, PairwiseScorer):
        return scorer.pair(query, key)
    elements_per_query = query.shape[0] * query.shape[1] * key.shape[2] * key.shape[3]
    tile = max(1, TILE_ELEMENTS // max(1, elements_per_query))
    if tile >= query.shape[2]:
        return scorer.pair(query, key)
    if not torch.is_grad_enabled():
        return torch.cat([scorer.pair(part, key) for part in query.split(tile, dim=2)], dim=2)
    parts = [checkpoint(scorer.pair, part, key, use_reentrant=False) for part in query.split(tile, dim=2)]
    return torch.cat(parts, dim=2)


def equal_widths(kernel: Callable[..., tuple[Tensor, Tensor | None]]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Let a fused kernel see queries, keys and values of one width: other widths fall to a path that is three times
    as slow and holds all scores. Zeros added to values are cut off again; zeros added to both query and key add
    nothing to their product."""

    @wraps(kernel)
    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        value_width, width = value.shape[-1], max(query.shape[-1], value.shape[-1])
        query, key, value = (F.pad(states, (0, width - states.shape[-1])) for states in (query, key, value))
        output, weights = kernel(module, query, key, value, *args, **kwargs)
        return output[..., :value_width], weights

    return attend


BACKENDS = AttentionInterface()
BACKENDS["sdpa"] = equal_widths(sdpa_attention_forward)
BACKENDS["flex_attention"] = equal_widths(flex_attention_forward)
