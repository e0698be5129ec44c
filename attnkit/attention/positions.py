"""Where order enters: added to the token embeddings, or as a rotation of queries and keys."""

from abc import ABC
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from attnkit.registry import Registry


class Position(nn.Module, ABC):
    """One way in which a model knows the order of its tokens. A class of this kind defines `embed` or `rotation`."""

    max_trained: int | None = None
    """Positions that have parameters of their own; None where any position can be computed."""

    def __init__(self, *, hidden_size: int, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.head_dim = head_dim
        self.max_positions = max_positions

    def embed(self, positions: Tensor) -> Tensor | None:
        """[B, N] -> [B, N, hidden_size], added to the token embeddings."""
        return None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """[B, N] -> cosines and sines [B, 1, N, head_dim] in fp32, applied to queries and keys by `rotate`."""
        return None

    def reset_parameters(self) -> None:
        """Set every parameter and buffer of the class to its initial value."""


positions: Registry[Position] = Registry("position")


@positions.register("none")
class NoPosition(Position):
    """The model does not know the order of its tokens, except through a causal mask."""


@positions.register("learned")
class Learned(Position):
    """One learned vector per position (Gehring 2017): embed(i) = P_(i + offset).

    P is [max_positions + offset, hidden_size].
    RoBERTa (Liu 2019) has offset 2: with padding at position -1, row 1 is that of padding.
    """

    def __init__(self, *, offset: int = 0, **shape: int) -> None:
        super().__init__(**shape)
        self.offset = offset
        self.max_trained = self.max_positions
        self.embedding = nn.Embedding(self.max_positions + offset, self.hidden_size)

    def embed(self, positions: Tensor) -> Tensor:
        return self.embedding((positions + self.offset).clamp(min=0))


@positions.register("sinusoidal")
class Sinusoidal(Position):
    """Waves of geometric wavelengths (Vaswani 2017, section 3.5).

    embed(i)[2j] = sin(i / 10000^(2j/d)),  embed(i)[2j+1] = cos(i / 10000^(2j/d)),  d = hidden_size

    `layout` "halves" has all sines before all cosines, as tensor2tensor and Marian do.
    """

    def __init__(self, *, layout: Literal["interleaved", "halves"] = "interleaved", **shape: int) -> None:
        super().__init__(**shape)
        self.layout = layout

    def embed(self, positions: Tensor) -> Tensor:
        # The angle of a late position has too few digits left in fp32.
        even = torch.arange(0, self.hidden_size, 2, device=positions.device, dtype=torch.float64)
        angle = positions[..., None].double() / 10000.0 ** (even / self.hidden_size)
        if self.layout == "halves":
            return torch.cat([angle.sin(), angle.cos()[..., : self.hidden_size // 2]], dim=-1).float()
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., : self.hidden_size].float()


@positions.register("rope")
class Rope(Position):
    """Rotation of query and key by an angle proportional to their position (Su 2021, section 3.2).

    The score of rotated vectors depends on the distance of their positions. Dimensions j and j + d/2 of a head turn
    together, by the angle i · base^(-2j/d).
    """

    def __init__(self, *, base: float = 10000.0, **shape: int) -> None:
        super().__init__(**shape)
        if self.head_dim % 2:
            raise ValueError(f"rope turns pairs of dimensions, and head_dim {self.head_dim} is odd")
        self.base = base
        self.register_buffer("frequency", torch.empty(self.head_dim // 2), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        even = torch.arange(0, self.head_dim, 2, dtype=torch.float32)
        init.copy_(self.frequency, 1 / self.base ** (even / self.head_dim))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions[:, None, :, None].float() * self.frequency.float()
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn vectors [B, H, N, head_dim] by the angles of their positions."""
    cosine, sine = (part.to(states.dtype) for part in rotation)
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat([-second, first], dim=-1) * sine
