"""The parts a model is stacked from: norm, feed-forward layer, block.

Shapes: B batch, N tokens, S source tokens.
"""

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from attnkit.attention import Attention
from attnkit.attention.layer import Backend
from attnkit.models.configuration_attnkit import AttnKitConfig

NORMS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


class FeedForward(nn.Module):
    """down(activation(up(x))) for each token alone (Vaswani 2017, section 3.3)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(states)))


class Residual(nn.Module):
    """x + sublayer(norm(x)) with the norm before ("pre", Xiong 2020), or norm(x + sublayer(x)) after ("post",
    Vaswani 2017)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.norm = NORMS[config.norm](config.hidden_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.pre = config.norm_position == "pre"

    def enter(self, states: Tensor) -> Tensor:
        return self.norm(states) if self.pre else states

    def leave(self, states: Tensor, update: Tensor) -> Tensor:
        states = states + self.dropout(update)
        return states if self.pre else self.norm(states)


class Block(GradientCheckpointingLayer):
    """Attention and feed-forward layer, each with its residual connection."""

    def __init__(self, config: AttnKitConfig, *, layer_idx: int, causal: bool) -> None:
        super().__init__()
        scorer, scorer_options = config.scorer_of_layer(layer_idx)
        self.attention = Attention(
            config.hidden_size,
            config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_positions=config.max_position_embeddings,
            scorer=scorer,
            scorer_options=scorer_options,
            bias=config.attention_bias,
            causal=causal,
            dropout=config.attention_dropout,
            layer_idx=layer_idx,
        )
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        states: Tensor,
        *,
        positions: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        mask: Tensor | None,
        cache: Cache | None,
        backend: Backend,
    ) -> Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size]; the other arguments are those of `Attention`."""
        update, _ = self.attention(
            self.attention_residual.enter(states),
            positions=positions,
            rotation=rotation,
            mask=mask,
            cache=cache,
            backend=backend,
        )
        states = self.attention_residual.leave(states, update)
        update = self.feed_forward(self.feed_forward_residual.enter(states))
        return self.feed_forward_residual.leave(states, update)
