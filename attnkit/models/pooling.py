"""From the hidden states of a text to one vector.

Shapes: B batch, N tokens, D hidden size.
"""

import torch
from torch import Tensor, nn

from attnkit.models.configuration_attnkit import AttnKitConfig


class Pooler(nn.Module):
    """tanh(W x + b) of the pooled state (Devlin 2019)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, pooled: Tensor) -> Tensor:
        return torch.tanh(self.dense(pooled))


def pool(states: Tensor, config: AttnKitConfig, *, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    """[B, N, D] -> [B, D], the state or the mean of states that `config.pooling` names.

    Raises ValueError where "eos" is asked for and the tokens are not given, or a row has no end token.
    """
    real = real_tokens(config, input_ids=input_ids, attention_mask=attention_mask)
    if config.pooling == "first":
        by_column = real is None or config.position_counting != "attended"
        return states[:, 0] if by_column else at(states, real.int().argmax(dim=-1))
    if config.pooling == "mean":
        if real is None:
            return states.mean(dim=1)
        weight = real.to(states.dtype)[..., None]
        return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
    if config.pooling == "eos":
        return at(states, last_of(end_tokens(config, input_ids)))
    return states[:, -1] if real is None else at(states, last_of(real))


def real_tokens(config: AttnKitConfig, *, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """[B, N], True where a token is no padding; None where nothing says that some are."""
    if attention_mask is not None and attention_mask.ndim == 2:
        return attention_mask.bool()
    if input_ids is not None and config.pad_token_id is not None:
        return input_ids != config.pad_token_id
    return None


def end_tokens(config: AttnKitConfig, input_ids: Tensor | None) -> Tensor:
    """[B, N], True where a token ends a text."""
    if input_ids is None or config.eos_token_id is None:
        raise ValueError("pooling 'eos' needs input_ids and config.eos_token_id")
    ends = torch.isin(input_ids, torch.as_tensor(config.eos_token_id, device=input_ids.device))
    if not torch.compiler.is_compiling() and not ends.any(dim=-1).all():
        raise ValueError("pooling 'eos' needs an end token in every row")
    return ends


def last_of(chosen: Tensor) -> Tensor:
    """Index of the last True of each row, [B, N] -> [B]."""
    return (torch.arange(chosen.shape[1], device=chosen.device) * chosen).argmax(dim=-1)


def at(states: Tensor, index: Tensor) -> Tensor:
    """One state of each row, [B, N, D] and [B] -> [B, D]."""
    return states[torch.arange(states.shape[0], device=states.device), index]
