"""Permutation language modelling: tokens seen in another order than they stand in (Yang 2019).

Shapes: B batch, N tokens, P targets, K keys (the tokens before, in the cache, and the N).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.errors import UsageError


def permute(
    mask: Tensor | None, perm_mask: Tensor | None, *, shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    """What each token's place may see, boolean [B, 1, N, K]: what `mask` lets it and `perm_mask` [B, N, N] does not
    forbid by a 1. `shape` is (B, N, K)."""
    batch_size, num_tokens, num_keys = shape
    if mask is not None and not isinstance(mask, Tensor):
        raise UsageError("two streams need a mask of numbers: use another attn_implementation than 'flex_attention'")
    if perm_mask is None:
        allowed = torch.ones(batch_size, 1, num_tokens, num_keys, dtype=torch.bool, device=device)
    else:
        allowed = ~F.pad(perm_mask.bool(), (num_keys - num_tokens, 0))[:, None]
    return allowed if mask is None else mask & allowed


def see_self(allowed: Tensor) -> Tensor:
    """The same, and every token sees itself; [B, 1, N, K] -> [B, 1, N, K]."""
    num_tokens, num_keys = allowed.shape[-2:]
    own = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=allowed.device).tril().triu()
    return allowed | F.pad(own, (num_keys - num_tokens, 0))


def targets_of(target_mapping: Tensor) -> Tensor:
    """The place of each target in the text, from one-hot rows: [B, P, N] -> [B, P]."""
    return target_mapping.argmax(dim=-1)


def rows_of(allowed: Tensor, places: Tensor) -> Tensor:
    """What each target may see, [B, 1, N, K] and [B, P] -> [B, 1, P, K]."""
    return allowed.gather(2, places[:, None, :, None].expand(-1, -1, -1, allowed.shape[-1]))
