"""The attention layer: projections, scorer, normalizer, pattern, position and backend joined into one operator.

Shapes: B batch, N tokens, S source tokens, H query heads, G key-value heads, D head width, M mapped width, C further
columns of a mapped key.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from attnkit.attention.backends import Backend, eager_attention, scaled_query, widen
from attnkit.attention.calls import Sharing, check_backend, check_call, check_sizes, check_switches
from attnkit.attention.choice import order_problems
from attnkit.attention.masks import build_mask, count_keys, find_documents
from attnkit.attention.normalizers import normalizers
from attnkit.attention.options import build_part
from attnkit.attention.patterns import WeighingPattern, patterns, shape_of_pattern
from attnkit.attention.positions import Position, rotate
from attnkit.attention.positions import positions as position_kinds
from attnkit.attention.scorers import PairwiseScorer, scorers
from attnkit.attention.scorers.base import count_positions
from attnkit.errors import UsageError, check_count, check_number


class SecondStream(NamedTuple):
    """Queries that are no keys: they see the first stream, and nothing sees them (Yang 2019, section 2.3)."""

    states: Tensor  # [B, P, hidden]
    positions: Tensor  # [B, P]
    segments: Tensor | None  # [B, P]
    mask: Tensor | None  # boolean, broadcasts to [B, H, P, keys]


class Attention(nn.Module):
    """output = normalize(score(query, key) + bias, allowed) · value, per head, between linear projections.

    For self attention `forward(states)`, for cross attention `forward(states, source)`, and for pooling
    `forward(query.expand(batch_size, 1, -1), states)` with a learned query.

    - `scorer`, `normalizer`, `pattern` and `position` are names of the registries, their `..._options` the arguments of
      the class behind the name. A position that is added to embeddings has no place here.
    - Grouped heads (Ainslie 2023) share each key and value among num_heads / num_key_value_heads queries; one of them
      is multi-query attention (Shazeer 2019).
    - `sharing`: "separate" query, key and value projections; "key_value": values are the keys; "query_key": queries and
      keys have one projection (Kitaev 2020); "all": one projection for the three. With the last two a token's best
      match is itself: `attend_to_self=False` forbids it.
    - `bias` is that of the query, key and value projections, `output_bias` that of the last one (None: as `bias`).

    Raises `UsageError` for an unknown name or option, for head counts that do not divide and for such a position.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_positions: int = 512,
        scorer: str = "scaled_dot",
        scorer_options: dict[str, Any] | None = None,
        normalizer: str = "softmax",
        normalizer_options: dict[str, Any] | None = None,
        pattern: str = "full",
        pattern_options: dict[str, Any] | None = None,
        position: str = "none",
        position_options: dict[str, Any] | None = None,
        sharing: Sharing = "separate",
        attend_to_self: bool = True,
        bias: bool = True,
        output_bias: bool | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        check_sizes(hidden_size, num_heads, num_key_value_heads=num_key_value_heads, head_dim=head_dim, sharing=sharing)
        check_count("max_positions", max_positions)
        check_count("layer_idx", layer_idx, least=0)
        check_number("dropout", dropout, least=0, most=1)
        check_switches(bias=bias, causal=causal, attend_to_self=attend_to_self, output_bias=output_bias)
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.num_key_value_groups = num_heads // num_key_value_heads  # the sdpa and flex functions read it
        self.is_causal = causal
        self.attend_to_self = attend_to_self
        self.dropout = dropout
        self.layer_idx = layer_idx
        key_width = num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, key_width, bias=bias) if sharing in ("separate", "key_value") else None
        self.v_proj = nn.Linear(hidden_size, key_width, bias=bias) if sharing in ("separate", "query_key") else None
        output_bias = bias if output_bias is None else output_bias
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=output_bias)
        shape = {"num_heads": num_heads, "num_key_value_heads": num_key_value_heads, "head_dim": self.head_dim}
        self.scorer = build_part(scorers, scorer, scorer_options, max_positions=max_positions, **shape)
        self.normalizer = build_part(normalizers, normalizer, normalizer_options, num_heads=num_heads)
        heads = shape_of_pattern(pattern, num_heads=num_heads, head_dim=self.head_dim)
        self.pattern = build_part(patterns, pattern, pattern_options, **heads)
        shape |= {"hidden_size": hidden_size, "max_positions": max_positions}
        self.position = build_part(position_kinds, position, position_options, causal=causal, **shape)
        if type(self.position).embed is not Position.embed and not self.position.acts_on_scores:
            raise UsageError(f"position {position!r} has no place in a layer: add its embed(positions) to the states")
        for problem in order_problems(scorer, position):
            raise UsageError(problem)

    def forward(
        self,
        states: Tensor,
        source: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        source_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
        bias: Tensor | None = None,
        past: int | Tensor | None = None,
        cache: Cache | None = None,
        segments: Tensor | None = None,
        second: SecondStream | None = None,
        backend: Backend = eager_attention,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
        """[B, N, hidden] (and source [B, S, hidden]) -> [B, N, hidden] and, where the backend has them, the weights.

        `mask` is a padding mask [B, keys], or boolean and broadcasts to [B, H, N, keys]. `positions` [B, N] and
        `source_positions` [B, S] count from 0, or on from the cache, where none are given; where they restart inside a
        row another document begins. `rotation` and `bias` [1, H, N, keys] are those of a position that the layers of a
        model share. The cache holds mapped keys, and `key_positions` [B, keys] are those of all tokens in it, counted
        back from `positions` if not given. `segments` [B, N] are token types, for a position that tells them apart.
        With a `second` stream its outputs [B, P, hidden] come third.

        A model says how many `past` tokens are in the cache, and that the mask it gives, or None, is all. Without that
        number a layer is alone: it adds to the mask its own pattern, causality and documents, and raises `UsageError`
        for what does not fit.
        """
        self.normalizer.begin()
        padding = None
        if past is None:
            check_backend(self, backend)
            places = {"positions": positions, "source_positions": source_positions, "key_positions": key_positions}
            check_call(self, states, source, cache=cache, mask=mask, segments=segments, **places)
            past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
            padding = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None
            mask = self.own_mask(states, source, mask=mask, positions=positions, cache=cache)
        positions = past + count_positions(states) if positions is None else positions
        rotation = self.position.rotation(positions) if rotation is None and source is None else rotation
        if source is None:
            key, value, width = self.self_keys(states, rotation, positions, cache, segments)
            if key_positions is None:
                key_positions = count_keys(positions, past, key.shape[2], padding=padding)
        else:
            key_positions = count_positions(source) if source_positions is None else source_positions
            key, value, width = self.source_keys(source, key_positions, cache)
        columns = None
        if cache is None:
            key = self.map_key(key, key_positions, segments)
        else:
            key, columns = self.read_keys(key, key_positions, width=width, alone=states.shape[1] == 1)
        shared = {"rotation": rotation, "bias": bias, "past": past, "backend": backend}
        output, weights = self.attend(states, key, value, mask, positions, segments, columns=columns, **shared)
        if second is None:
            return output, weights
        states, positions, segments, mask = second
        return output, weights, self.attend(states, key, value, mask, positions, segments, **shared)[0]

    def attend(
        self,
        states: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        positions: Tensor,
        segments: Tensor | None,
        *,
        rotation: tuple[Tensor, Tensor] | None,
        bias: Tensor | None,
        past: int | Tensor,
        backend: Backend,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, N, hidden] of queries at `positions`, from mapped keys and values, and the weights. The last
        columns of the keys may be given apart, for a single query: their product with it is a bias then."""
        query = self.split_heads(self.q_proj(states))
        query = query if rotation is None else rotate(query, rotation)
        mapped_query, scale, distance_width = self.map_query(query, positions, segments)
        extra = self.extra_terms(query, mask, bias, positions, past, key.shape[2])
        if columns is not None:
            content, rest = mapped_query.split([key.shape[-1], columns.shape[-1]], dim=-1)
            term = product_of_groups(scaled_query(rest, scaling=scale, **distance_width), columns)
            mapped_query, distance_width = content, {}
            extra["position_bias"] = term + extra["position_bias"] if "position_bias" in extra else term
        output, weights = backend(
            self,
            mapped_query,
            key,
            value,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=scale,
            **distance_width,
            **extra,
        )
        return self.o_proj(output.flatten(-2)), weights

    def map_query(
        self, query: Tensor, positions: Tensor, segments: Tensor | None = None
    ) -> tuple[Tensor, float, dict[str, int]]:
        """[B, H, N, D] -> the mapped query [B, H, N, M + C], the factor of its product with mapped keys, and the number
        of its last columns that are the position's, without that factor."""
        mapped = self.scorer.map_query(self.position.content_query(query), positions)
        distance = self.position.map_query(query, positions, segments)
        if distance is None:
            return mapped, self.scorer.scale, {}
        return torch.cat([mapped, distance], dim=-1), self.scorer.scale, {"distance_width": distance.shape[-1]}

    def map_key(self, key: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """[B, G, N, D] -> [B, G, N, M + C]."""
        mapped = self.scorer.widen_key(self.scorer.map_key(key, positions), positions)
        return join([mapped, self.position.map_key(positions, mapped.dtype, segments)])

    def self_keys(
        self,
        states: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        positions: Tensor,
        cache: Cache | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Tensor, int]:
        """Keys and values [B, G, N, D], with a cache those of all tokens in it, and the width of mapped keys."""
        key, value = self.project(states)
        key = key if rotation is None else rotate(key, rotation)
        if cache is None:
            return key, value, 0
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        held, width = self.cached_key(key, positions, segments)
        return *own.update(held, value, self.layer_idx), width

    def source_keys(
        self, source: Tensor, positions: Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor, int]:
        """The same of the source tokens, [B, G, S, D], computed once for a generated sequence."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values, self.scorer.map_key(layer.keys[:, :, :1], positions[:, :1]).shape[-1]
        key, value = self.project(source)
        if cache is None:
            return key, value, 0
        held, width = self.cached_key(key, positions, None)
        cache.is_updated[self.layer_idx] = True
        return *cache.cross_attention_cache.update(held, value, self.layer_idx), width

    def cached_key(self, key: Tensor, positions: Tensor, segments: Tensor | None) -> tuple[Tensor, int]:
        """What a cache holds of a key, [B, G, N, D], as wide as caches of transformers expect it, and the width of the
        mapped key: that key with zeros, or where it is wider the key itself. Where a column says of which type a token
        is, it is all columns, wider than D."""
        if self.position.reads_segments:
            key = self.map_key(key, positions, segments)
            return key, key.shape[-1]
        mapped = self.scorer.map_key(key, positions)
        width = mapped.shape[-1]
        return key if width > self.head_dim else widen(mapped, self.head_dim), width

    def read_keys(self, cached: Tensor, positions: Tensor, *, width: int, alone: bool) -> tuple[Tensor, Tensor | None]:
        """Mapped keys [B, G, keys, M + C] of all tokens in a cache. For a query `alone` the last columns come apart,
        [B, G, keys, C], so that no key is copied."""
        if self.position.reads_segments:
            return cached, None
        mapped = cached[..., :width] if width <= self.head_dim else self.scorer.map_key(cached, positions)
        distance = self.position.map_key(positions, mapped.dtype)
        if not alone or isinstance(self.scorer, PairwiseScorer):
            return join([self.scorer.widen_key(mapped, positions), distance]), None
        columns = [part for part in (self.scorer.key_columns(mapped, positions), distance) if part is not None]
        return mapped, join(columns) if columns else None

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, N, D] as `sharing` has them."""
        key = self.split_heads((self.q_proj if self.k_proj is None else self.k_proj)(states))
        return key, key if self.v_proj is None else self.split_heads(self.v_proj(states))

    def split_heads(self, states: Tensor) -> Tensor:
        """[B, N, heads · D] -> [B, heads, N, D]."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def own_mask(
        self,
        states: Tensor,
        source: Tensor | None,
        *,
        mask: Tensor | None,
        positions: Tensor | None,
        cache: Cache | None,
    ) -> Tensor | None:
        """The mask that pattern, causality, documents and the given one make; None where the causal flag says as much,
        and what is no tensor as it is."""
        if mask is not None and not isinstance(mask, Tensor):
            return mask
        if mask is not None and mask.ndim == 4:
            own = self.own_mask(states, source, mask=None, positions=positions, cache=cache)
            if own is None and self.is_causal:
                past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
                num_tokens = states.shape[1]
                own = mask.new_ones(num_tokens, past + num_tokens, dtype=torch.bool).tril(past)
            if own is None:
                return mask
            return own & mask if mask.dtype == torch.bool else torch.where(own, mask, float("-inf"))
        if source is not None:
            return build_mask("eager", states=states, attention_mask=mask, causal=False, num_keys=source.shape[1])
        return build_mask(
            "eager",
            states=states,
            attention_mask=mask,
            causal=self.is_causal,
            pattern=self.pattern,
            attend_to_self=self.attend_to_self,
            position_ids=positions,
            documents=find_documents(positions, mask) if cache is None else None,
            cache=cache,
            layer_idx=self.layer_idx,
        )

    def extra_terms(
        self,
        query: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        positions: Tensor,
        past: int | Tensor,
        num_keys: int,
    ) -> dict[str, Tensor]:
        """What the backend adds to the scores or multiplies the weights with, as far as the parts have it."""
        places = past + torch.arange(query.shape[2], device=query.device)
        key_places = torch.arange(num_keys, device=query.device)
        terms = [term for term in (bias, self.position.bias(places, key_places, query.dtype)) if term is not None]
        extra: dict[str, Tensor] = {}
        if terms:
            extra["position_bias"] = sum(terms[1:], start=terms[0]).to(query.dtype)
        if not self.normalizer.cancels_query_term:
            of_content = self.scorer.query_term(self.position.content_query(query))
            parts = of_content, self.position.query_term(positions, query.dtype)
            of_query = [part for part in parts if part is not None]
            extra |= {"query_term": sum(of_query[1:], start=of_query[0])} if of_query else {}
        if isinstance(self.pattern, WeighingPattern):
            num_allowed = count_allowed(mask, places, num_keys, causal=self.is_causal)
            first = places - positions  # where each query's document starts in its row
            key_positions = key_places - first[:, None, :, None]
            extra["window_weight"] = self.pattern.window_weight(query, num_allowed, key_positions)
        return extra


def count_allowed(mask: Tensor | None, places: Tensor, num_keys: int, *, causal: bool) -> Tensor:
    """How many keys each query may meet, [B or 1, H or 1, N, 1]."""
    if mask is not None:
        boolean = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        return boolean.sum(-1, keepdim=True)
    return (places + 1 if causal else torch.full_like(places, num_keys))[None, None, :, None]


def join(parts: list[Tensor | None]) -> Tensor:
    """Columns [B or 1, G, N, ·] -> all of them, [B, G, N, ·]."""
    given = [part for part in parts if part is not None]
    batch_size = next((len(part) for part in given if len(part) != 1), 1)
    return given[0] if len(given) == 1 else torch.cat([part.expand(batch_size, -1, -1, -1) for part in given], dim=-1)


def product_of_groups(query: Tensor, key: Tensor) -> Tensor:
    """One query [B, H, 1, C] and keys [B or 1, G, K, C] -> [B, H, 1, K], at least in fp32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.squeeze(2).unflatten(1, (key.shape[1], -1)).to(wide)
    return (grouped @ key.to(wide).transpose(-1, -2)).flatten(1, 2).unsqueeze(2)
