"""How attention is computed. A backend never changes the mathematics; `eager` is the definition.

Shapes: B batch, H query heads, G key-value heads, Q queries, K keys, M mapped width, V value width.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attnkit.attention.cpu_kernel import cpu_attention, takes
from attnkit.attention.pairwise import tiled_attention
from attnkit.attention.scorers.base import PairwiseScorer, Scorer, repeat_heads, scaled_pair
from attnkit.attention.scorers.maps import in_parts, wide_dtype
from attnkit.errors import UsageError

Backend = Callable[..., tuple[Tensor, Tensor | None]]

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
    position_bias: Tensor | None = None,
    query_term: Tensor | None = None,
    window_weight: Tensor | None = None,
    distance_width: int = 0,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of the values, in plain operations.

    query [B, H, Q, M] and key [B, G, K, M] are mapped; value [B, G, K, V]; the mask is boolean (True: may meet),
    additive, or None; `position_bias` [B or 1, H, Q, K] and `query_term` [B, H, Q, 1] are added to the scores and
    `window_weight` [B, H, Q, K] multiplies the weights; the last `distance_width` columns of query and key are the
    position's (see `scaled_pair`). `module` has the scorer, the normalizer and `is_causal`.
    Returns [B, Q, H, V] and the weights [B, H, Q, K].
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = pair_scores(module.scorer, query, key, scaling=scaling, distance_width=distance_width)
    weights = weigh(module, scores, attention_mask, terms=(position_bias, query_term), causal=module.is_causal)
    weights = weights if window_weight is None else weights * window_weight.to(weights.dtype)
    weights = weights.to(value.dtype)
    output = F.dropout(weights, dropout, module.training) @ value
    return output.transpose(1, 2).contiguous(), weights


def weigh(
    module: nn.Module, scores: Tensor, attention_mask: Tensor | None, *, terms: Sequence[Tensor | None], causal: bool
) -> Tensor:
    """Scores and what is added to them -> weights [B, H, Q, K] of the pairs that may meet."""
    if scores.shape[-1] == 0:
        return scores
    for term in terms:
        scores = scores if term is None else scores + term
    return cast(Tensor, module.normalizer(*apply_mask(scores, attention_mask, causal=causal)))


def apply_mask(scores: Tensor, attention_mask: Tensor | None, *, causal: bool) -> tuple[Tensor, Tensor | None]:
    """The scores with an additive mask added, and which pairs may meet (None: all)."""
    if attention_mask is None:
        num_queries, num_keys = scores.shape[-2:]
        if not causal or num_queries == 1:  # a single query is the newest token and meets all keys
            return scores, None
        return scores, torch.ones(num_queries, num_keys, dtype=torch.bool, device=scores.device).tril()
    if attention_mask.dtype == torch.bool:
        return scores, attention_mask
    allowed = attention_mask > torch.finfo(attention_mask.dtype).min / 2
    return scores + attention_mask.masked_fill(~allowed, 0), allowed


def pair_scores(scorer: Scorer, query: Tensor, key: Tensor, *, scaling: float, distance_width: int) -> Tensor:
    """All scores [B, H, Q, K]; those of a pairwise scorer in tiles of queries that are computed again in backward,
    so that its intermediates of every pair never exist at once."""
    pair = partial(scaled_pair, scorer.pair, scaling=scaling, distance_width=distance_width)
    if not isinstance(scorer, PairwiseScorer):
        return pair(query, key)
    elements_per_query = query.shape[0] * query.shape[1] * key.shape[2] * key.shape[3]
    tile = max(1, TILE_ELEMENTS // max(1, elements_per_query))
    if tile >= query.shape[2] or torch.compiler.is_compiling():  # a compiler fuses the pair with its sum
        return pair(query, key)
    if not torch.is_grad_enabled():
        return torch.cat([pair(part, key) for part in query.split(tile, dim=2)], dim=2)
    parts = [checkpoint(pair, part, key, use_reentrant=False) for part in query.split(tile, dim=2)]
    return torch.cat(parts, dim=2)


def fused(kernel: Backend) -> Backend:
    """Let a fused dot-product kernel of transformers compute what reduces to one.

    A sink becomes one more key without a value. Plain dot products are the kernel's to the bit. On a CPU mapped queries
    and keys go to a kernel of our own; elsewhere, and where that one does not take them, zeros give keys and values one
    width, as with unequal widths a kernel falls to a path that is three times as slow and holds all scores.
    """

    @wraps(kernel)
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *,
        query_term: Tensor | None = None,
        window_weight: Tensor | None = None,
        distance_width: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        assert window_weight is None, "check_backend() lets no window weight reach a fused kernel"
        if distance_width:
            query = scaled_query(query, scaling=kwargs["scaling"], distance_width=distance_width)
            kwargs = kwargs | {"scaling": 1.0}
        if kernel is sdpa_attention_forward and 0 in (*query.shape[:3], key.shape[2]):  # the kernel divides by them
            output, _ = eager_attention(module, query, key, value, attention_mask, query_term=query_term, **kwargs)
            return output, None
        alone = query.shape[2] == 1 and kernel is sdpa_attention_forward
        plain = query.shape[-1] <= value.shape[-1] and kwargs.get("position_bias") is None
        if alone and not plain:
            return one_query(module, query, key, value, attention_mask, query_term=query_term, **kwargs), None
        value_width, sink = value.shape[-1], module.normalizer.sink()
        added_row = False
        if sink is not None:
            query, key, value, attention_mask, added_row = add_sink(
                sink[:, None, None] - (0 if query_term is None else query_term),
                query * kwargs["scaling"],
                key,
                value,
                attention_mask,
                causal=module.is_causal,
            )
            kwargs = pad_bias(kwargs | {"scaling": 1.0}, added_row=added_row)
        if kernel is flex_attention_forward:
            kwargs, attention_mask = bias_of_each_row(module, query, key, attention_mask, kwargs=kwargs)
        kwargs, attention_mask = merge_bias(kwargs, attention_mask)
        mapped = query.shape[-1] != value_width or not module.scorer.is_plain
        own = mapped and not alone and kernel is sdpa_attention_forward
        if own and takes(query, key, value, attention_mask, **kwargs):
            causal = module.is_causal and attention_mask is None
            output = cpu_attention(query, key, value, attention_mask, scaling=kwargs["scaling"], causal=causal)
            return output[:, 1:] if added_row else output, None
        if not alone:  # copying all values takes longer than one query's scores
            width = max(query.shape[-1], value_width)
            query, key, value = (widen(states, width) for states in (query, key, value))
        output, _ = kernel(module, query, key, value, attention_mask, **kwargs)
        output = output[:, 1:] if added_row else output
        added_width = output.shape[-1] - value_width
        return output.split([value_width, added_width], dim=-1)[0] if added_width else output, None

    return attend


def scaled_query(query: Tensor, *, scaling: float, distance_width: int = 0) -> Tensor:
    """A mapped query times the factor of its score, all but the position's columns, which have none."""
    factor = query.new_full((query.shape[-1],), scaling)
    factor[query.shape[-1] - distance_width :] = 1
    return query * factor


def widen(states: Tensor, width: int) -> Tensor:
    """Zeros behind the last column up to this width. A gradient passes `cat` as a view, where `F.pad` copies it."""
    missing = width - states.shape[-1]
    if missing:
        return torch.cat([states, states.new_zeros(*states.shape[:-1], missing)], dim=-1)
    # Kernels are several times slower on tokens that `expand` repeats in one place.
    return states.contiguous() if 0 in states.stride() else states


def add_sink(
    logit: Tensor, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
    """Put a key without a value before all others, which every query meets with score `logit` [B or 1, H, Q or 1, 1].

    More columns: the logit in the queries, of half precision in three parts, 0 in the keys, 1 in the new key. Where the
    kernel's causal flag stands for a mask, a first query without meaning (True is returned) keeps query i and key i in
    one line.
    """
    columns = in_parts(logit.to(wide_dtype(query.dtype)), query.dtype, (0, 1, 2)).expand(*query.shape[:-1], -1)
    query = torch.cat([query, columns], dim=-1)
    key = F.pad(key, (0, columns.shape[-1], 1, 0))
    first = torch.zeros_like(key[:, :, :1])
    first[..., -columns.shape[-1] :] = 1
    key = torch.cat([first, key[:, :, 1:]], dim=2)
    value = F.pad(value, (0, 0, 1, 0))
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            return query, key, value, F.pad(attention_mask, (1, 0), value=True), False
        return query, key, value, F.pad(attention_mask, (1, 0)), False
    added_row = causal and query.shape[2] > 1
    return F.pad(query, (0, 0, int(added_row), 0)), key, value, None, added_row


def pad_bias(kwargs: dict[str, Any], *, added_row: bool) -> dict[str, Any]:
    """The position bias with a column for the sink, and a row where there is one."""
    bias = kwargs.get("position_bias")
    return kwargs if bias is None else kwargs | {"position_bias": F.pad(bias, (1, 0, int(added_row), 0))}


def pairwise_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float = 1.0,
    position_bias: Tensor | None = None,
    query_term: Tensor | None = None,
    window_weight: Tensor | None = None,
    distance_width: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """What `eager_attention` computes where the normalizer is softmax, with or without a sink, in tiles.

    Inside torch.compile it is eager attention, whose pair the compiler fuses with its sum. It has no forward-mode
    derivative and no second one. Raises `UsageError` under vmap, jvp and the other transforms of torch.func.
    """
    assert window_weight is None, "check_backend() lets no window weight reach the tiles"
    if torch.compiler.is_compiling():
        return eager_attention(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            position_bias=position_bias,
            query_term=query_term,
            distance_width=distance_width,
        )
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UsageError("backend 'pairwise' works under no transform of torch.func: use attn_implementation 'eager'")
    bias, allowed = position_bias, attention_mask
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        zeros = torch.zeros_like(attention_mask) if bias is None else bias
        bias, allowed = apply_mask(zeros, attention_mask, causal=False)
    sink = module.normalizer.sink()
    if sink is not None:
        sink = sink[None, :, None, None] - (0 if query_term is None else query_term)
    output = tiled_attention(
        module.scorer,
        query,
        repeat_heads(key, query.shape[1]),
        repeat_heads(value, query.shape[1]),
        scaling=scaling,
        distance_width=distance_width,
        allowed=allowed,
        causal=module.is_causal and allowed is None and query.shape[2] > 1,
        bias=bias,
        sink=sink,
        dropout=dropout,
    )
    return output.transpose(1, 2).contiguous(), None


def one_query(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float = 1.0,
    position_bias: Tensor | None = None,
    query_term: Tensor | None = None,
) -> Tensor:
    """What `eager_attention` computes of a dot product and the newest token alone, [B, 1, H, V]: in two products that
    read keys and values where a cache has them, and repeat and pad neither."""
    groups = (key.shape[1], -1)
    scores = (scaling * query.squeeze(2).unflatten(1, groups) @ key.transpose(-1, -2)).flatten(1, 2).unsqueeze(2)
    weights = weigh(module, scores, attention_mask, terms=(position_bias, query_term), causal=False)
    weights = F.dropout(weights, dropout, module.training).to(value.dtype)
    return (weights.squeeze(2).unflatten(1, groups) @ value).flatten(1, 2).unsqueeze(1)


def merge_bias(kwargs: dict[str, Any], attention_mask: Any) -> tuple[dict[str, Any], Any]:
    """A bias and a boolean mask as one additive mask of -inf, and an additive mask with it: the lowest finite number,
    which transformers fills with, gives a query without keys the mean of all values."""
    bias = kwargs.get("position_bias")
    if isinstance(attention_mask, Tensor) and attention_mask.dtype != torch.bool:
        lowest = torch.finfo(attention_mask.dtype).min
        return kwargs, attention_mask.masked_fill(attention_mask <= lowest / 2, float("-inf"))
    if bias is None or not isinstance(attention_mask, Tensor):
        return kwargs, attention_mask
    return kwargs | {"position_bias": None}, torch.where(attention_mask, bias, float("-inf"))


def bias_of_each_row(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Any, *, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    """What flex attention reads beside a block mask: a bias [B, H, Q, K] with all rows of the batch. A mask of another
    kind, or causality without one, which it does not heed, becomes part of the bias."""
    bias, shape = kwargs.get("position_bias"), (*query.shape[:3], key.shape[2])
    if not isinstance(attention_mask, BlockMask):
        scores = query.new_zeros(shape[2:]) if bias is None else bias
        scores, allowed = apply_mask(scores, attention_mask, causal=module.is_causal)
        bias = scores if allowed is None else torch.where(allowed, scores, float("-inf"))
        attention_mask = None
    return kwargs | {"position_bias": None if bias is None else bias.expand(shape)}, attention_mask


BACKENDS = AttentionInterface()
BACKENDS["sdpa"] = fused(sdpa_attention_forward)
BACKENDS["flex_attention"] = fused(flex_attention_forward)
BACKENDS["pairwise"] = pairwise_attention
AttentionInterface.register("pairwise", pairwise_attention)  # so that transformers accepts the name
