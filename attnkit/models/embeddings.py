"""From token ids to the states that the first block reads.

Shapes: B batch, N tokens.
"""

import torch
from torch import Tensor, nn

from attnkit.attention import Position, positions
from attnkit.errors import UsageError
from attnkit.models.blocks import build_norm
from attnkit.models.configuration_attnkit import AttnKitConfig


def build_position(config: AttnKitConfig, name: str, *, causal: bool) -> Position:
    """A position of a model's shape, with the configured options if it is the configured one."""
    return positions[name](
        hidden_size=config.hidden_size,
        head_dim=config.head_dim,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_positions=config.max_position_embeddings,
        causal=causal,
        **(config.position_options or {} if name == config.position else {}),
    )


class Embeddings(nn.Module):
    """Token, position and token-type vectors, summed.

    `scales_given`: the factor of token vectors is also that of vectors which are given in place of ids.
    """

    def __init__(
        self, config: AttnKitConfig, *, type_vocab_size: int, causal: bool, scales_given: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.types = nn.Embedding(type_vocab_size, config.hidden_size) if type_vocab_size else None
        # A position with parameters in each layer is built there.
        own = "none" if positions[config.position].per_layer else config.position
        self.position = build_position(config, own, causal=causal)
        self.relative_types = config.relative_types
        self.scale = config.embedding_scale
        self.scales_given = scales_given
        self.norm = build_norm(config) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.embedding_dropout)

    def token_vectors(self, ids: Tensor | None, given: Tensor | None) -> Tensor:
        """Ids [B, N], or vectors [B, N, hidden_size] in their place -> [B, N, hidden_size]."""
        states = self.tokens(ids) if given is None else given
        return states * self.scale if self.scale != 1 and (given is None or self.scales_given) else states

    def forward(self, states: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Token vectors [B, N, hidden_size] and positions [B, N] -> [B, N, hidden_size]."""
        if self.types is not None:
            types = torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            states = states + self.types(types)
        elif token_type_ids is not None and token_type_ids.any() and not self.relative_types:
            raise UsageError("the model has no token types: set type_vocab_size, or leave token_type_ids away")
        order = self.position.embed(position_ids)
        if order is not None:
            states = states + order.to(states.dtype)
        return self.dropout(states if self.norm is None else self.norm(states))
