"""The attention layer: projections, scorer, normalizer and backend joined into one operator.

Shapes: B batch, N tokens, S source tokens, H query heads, G key-value heads, D head width.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from attnkit.attention.backends import eager_attention
from attnkit.attention.normalizers import normalizers
from attnkit.attention.positions import rotate
from attnkit.attention.scorers import scorers
from attnkit.attention.scorers.base import count_positions

Backend = Callable[..., tuple[Tensor, Tensor | None]]


class Attention(nn.Module):
    """output = normalize(score(query, key), allowed) · value, per head, between four linear projections.

    For self attention `forward(states)`, for cross attention `forward(states, source)`. `scorer` and `normalizer` are
    names of the registries, `scorer_options` the scorer's own arguments. Grouped heads (Ainslie 2023) share each key
    and value among num_heads / num_key_value_heads queries. `bias` is that of the query, key and value projections,
    `output_bias` that of the last one (None: as `bias`).

    Raises `UsageError` for an unknown name and `ValueError` for head counts that do not divide.
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
        bias: bool = True,
        output_bias: bool | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if num_heads % num_key_value_heads:
            raise ValueError(f"num_heads {num_heads} is no multiple of num_key_value_heads {num_key_value_heads}")
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_heads {num_heads}: give head_dim")
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.num_key_value_groups = num_heads // num_key_value_heads  # the sdpa and flex functions read it
        self.is_causal = causal
        self.dropout = dropout
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(
            num_heads * self.head_dim, hidden_size, bias=bias if output_bias is None else output_bias
        )
        self.scorer = scorers[scorer](
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            head_dim=self.head_dim,
            max_positions=max_positions,
            **(scorer_options or {}),
        )
        self.normalizer = normalizers[normalizer]()

    def forward(
        self,
        states: Tensor,
        source: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
        cache: Cache | None = None,
        backend: Backend = eager_attention,
    ) -> tuple[Tensor, Tensor | None]:
        """[B, N, hidden] (and source [B, S, hidden]) -> [B, N, hidden] and, where the backend has them, the weights.

        `mask` is boolean and broadcasts to [B, H, N, keys]; `positions` [B, N]; the cache holds mapped keys.
        """
        positions = count_positions(states) if positions is None else positions
        query = self.split_heads(self.q_proj(states))
        if rotation is not None:
            query = rotate(query, rotation)
        if source is None:
            key, value = self.self_keys(states, positions, rotation, cache)
        else:
            key, value = self.source_keys(source, cache)
        output, weights = backend(
            self,
            self.scorer.map_query(query, positions),
            key,
            value,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scorer.scale,
        )
        return self.o_proj(output.flatten(-2)), weights

    def self_keys(
        self, states: Tensor, positions: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Mapped keys and values of all tokens so far, [B, G, keys, M] and [B, G, keys, D]."""
        key, value = self.split_heads(self.k_proj(states)), self.split_heads(self.v_proj(states))
        if rotation is not None:
            key = rotate(key, rotation)
        key = self.scorer.map_key(key, positions)
        if cache is None:
            return key, value
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        return own.update(key, value, self.layer_idx)

    def source_keys(self, source: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Mapped keys and values of the source tokens, computed once for a generated sequence."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key = self.scorer.map_key(self.split_heads(self.k_proj(source)), count_positions(source))
        value = self.split_heads(self.v_proj(source))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value

    def split_heads(self, states: Tensor) -> Tensor:
        """[B, N, heads · D] -> [B, heads, N, D]."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
