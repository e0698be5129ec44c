"""The parts a stack is built from: norm, feed-forward layer, residual connection, block.

Shapes: B batch, N tokens, S source tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from attnkit.attention import Attention, positions
from attnkit.attention.backends import Backend
from attnkit.attention.layer import SecondStream
from attnkit.models.configuration_attnkit import AttnKitConfig


class RMSNorm(nn.Module):
    """w ⊙ x / √(mean(x²) + eps), the quotient in fp32 (Zhang 2019; in fp32 as Touvron 2023)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(states.dtype)


class T5RMSNorm(RMSNorm):
    """The same with only the mean of squares in fp32 (Raffel 2020): in fp64, the quotient keeps its digits."""

    def forward(self, states: Tensor) -> Tensor:
        scale = torch.rsqrt(states.float().square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (states * scale).to(self.weight.dtype)


NORMS: dict[str, type[nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": RMSNorm, "t5_rmsnorm": T5RMSNorm}


def build_norm(config: AttnKitConfig) -> nn.Module:
    """The norm of the config's kind, as wide as the hidden states."""
    return NORMS[config.norm](config.hidden_size, eps=config.norm_eps)


class FeedForward(nn.Module):
    """down(act(up(x))) for each token alone (Vaswani 2017, section 3.3), or gated: down(act(gate(x)) ⊙ up(x)) (Shazeer
    2020)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias) if config.gated_activation else None
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, states: Tensor) -> Tensor:
        if self.gate_proj is None:
            inner = self.activation(self.up_proj(states))
        else:
            inner = self.activation(self.gate_proj(states)) * self.up_proj(states)
        return self.down_proj(self.dropout(inner))


class Residual(nn.Module):
    """x + a f(norm(x)) with the norm before ("pre", Xiong 2020), or norm(x + a f(x)) after ("post", Vaswani 2017); a is
    the residual scale."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.norm = build_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.scale = config.residual_scale
        self.pre = config.norm_position == "pre"

    def enter(self, states: Tensor) -> Tensor:
        return self.norm(states) if self.pre else states

    def leave(self, states: Tensor, update: Tensor) -> Tensor:
        update = self.dropout(update)
        states = states + (update if self.scale == 1 else self.scale * update)
        return states if self.pre else self.norm(states)


class Block(GradientCheckpointingLayer):
    """Attention, in a decoder of an encoder also cross attention, and a feed-forward layer, each on the residual.

    `layer_idx` counts in the stack, where the cache keeps its keys; `depth` counts the layers of all stacks.
    """

    def __init__(self, config: AttnKitConfig, *, layer_idx: int, depth: int, causal: bool, cross: bool) -> None:
        super().__init__()
        scorer, scorer_options = config.scorer_of_layer(depth)
        pattern, pattern_options = config.pattern_of_layer(depth)
        self.attention = build_attention(
            config,
            layer_idx=layer_idx,
            causal=causal,
            scorer=scorer,
            scorer_options=scorer_options,
            pattern=pattern,
            pattern_options=pattern_options,
            position=config.position if positions[config.position].per_layer else "none",
            position_options=config.position_options if positions[config.position].per_layer else None,
            sharing=config.sharing,
            attend_to_self=config.attend_to_self,
        )
        self.attention_residual = Residual(config)
        if cross:
            scorer, scorer_options = config.scorer_of_cross_attention(depth)
            self.cross_attention = build_attention(
                config, layer_idx=layer_idx, causal=False, scorer=scorer, scorer_options=scorer_options
            )
            self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)
        self.cross = cross
        self.parallel = config.parallel_residual

    def forward(
        self,
        states: Tensor,
        source: Tensor | None = None,
        bias: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        second: SecondStream | None = None,
        segments: Tensor | None = None,
        positions: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        past: int | Tensor,
        mask: Tensor | None,
        source_mask: Tensor | None = None,
        source_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        cache: Cache | None,
        backend: Backend,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[B, N, hidden_size], and in a decoder of an encoder its states [B, S, hidden_size] -> [B, N, hidden_size].

        Where there is a second stream, its states `targets` [B, P, hidden_size] go in and come out too. The other
        arguments are those of `Attention`; what may need a gradient is positional, as recomputation wants it.
        """
        block_input = states
        entered = None if targets is None else second._replace(states=self.attention_residual.enter(targets))
        update, _, *second_update = self.attention(
            self.attention_residual.enter(states),
            segments=segments,
            second=entered,
            positions=positions,
            key_positions=key_positions,
            rotation=rotation,
            bias=bias,
            past=past,
            mask=mask,
            cache=cache,
            backend=backend,
        )
        states = self.attention_residual.leave(states, update)
        if self.cross:
            update, _ = self.cross_attention(
                self.cross_attention_residual.enter(block_input if self.parallel else states),
                source,
                positions=positions,
                source_positions=source_positions,
                past=past,
                mask=source_mask,
                cache=cache,
                backend=backend,
            )
            states = self.cross_attention_residual.leave(states, update)
        states = self.feed(states, block_input)
        if targets is None:
            return states
        return states, self.feed(self.attention_residual.leave(targets, second_update[0]), targets)

    def feed(self, states: Tensor, block_input: Tensor) -> Tensor:
        """The feed-forward layer on the residual."""
        update = self.feed_forward(self.feed_forward_residual.enter(block_input if self.parallel else states))
        return self.feed_forward_residual.leave(states, update)

    def attentions(self) -> list[Attention]:
        """The attention layers, that among the block's own tokens first."""
        return [self.attention, self.cross_attention] if self.cross else [self.attention]

    def residual_projections(self) -> list[nn.Linear]:
        """The last projection of each part, whose outputs the residual sums up."""
        return [attention.o_proj for attention in self.attentions()] + [self.feed_forward.down_proj]


def build_attention(config: AttnKitConfig, **parts: Any) -> Attention:
    """The attention layer of the config's shapes, with the parts that differ between layers."""
    return Attention(
        config.hidden_size,
        config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_positions=config.max_position_embeddings,
        normalizer=config.normalizer,
        normalizer_options=config.normalizer_options,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        dropout=config.attention_dropout,
        **parts,
    )
