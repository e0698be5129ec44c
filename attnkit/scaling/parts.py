"""The parts of attention on the meta device: what each of them holds and costs, asked of the part itself.

A table of formulas by name would break for the first scorer that a user registers. So the closed formulas of this
package cover what attnkit fixes (projections, products, feed-forward layers, heads), and a part is built without memory
and run once without values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnkit.attention import Normalizer, Pattern, Position, Scorer, normalizers, patterns, positions, scorers
from attnkit.attention.patterns import shape_of_pattern
from attnkit.scaling.subject import FilledConfig


def build_scorer(config: FilledConfig, name: str, options: dict[str, Any]) -> Scorer:
    """A scorer of the config's shapes, without memory."""
    with torch.device("meta"):
        return scorers[name](
            num_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_positions=config.max_position_embeddings,
            **options,
        )


def build_normalizer(config: FilledConfig) -> Normalizer:
    """The normalizer of the config, without memory."""
    with torch.device("meta"):
        return normalizers[config.normalizer](num_heads=config.num_attention_heads, **(config.normalizer_options or {}))


def build_pattern(config: FilledConfig, name: str, options: dict[str, Any]) -> Pattern:
    """A pattern of the config's shapes, without memory."""
    shape = shape_of_pattern(name, num_heads=config.num_attention_heads, head_dim=config.head_dim)
    with torch.device("meta"):
        return patterns[name](**shape, **options)


def build_position(config: FilledConfig, *, causal: bool, in_layer: bool) -> Position:
    """The position of the config without memory, as the layers have it or as the stack has it: one of both has none."""
    here = positions[config.position].per_layer == in_layer
    with torch.device("meta"):
        return positions[config.position if here else "none"](
            hidden_size=config.hidden_size,
            head_dim=config.head_dim,
            num_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_positions=config.max_position_embeddings,
            causal=causal,
            **((config.position_options or {}) if here else {}),
        )


def num_parameters(part: nn.Module) -> int:
    """The numbers that a part learns."""
    return sum(parameter.numel() for parameter in part.parameters())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a function of one tensor costs, and where its gradient goes."""

    forward: int = 0  # FLOPs
    backward: int = 0  # FLOPs
    width: int = 0  # last dimension of the output; 0 without an output
    wants_gradient: bool = False
    """The output depends on something that is learned, or on the input."""
    reaches_input: bool = False
    """The gradient of the output reaches the input."""


def cost_of(function: Callable[[Tensor], Tensor | None], *shape: int) -> Cost:
    """Run a function of a meta tensor of this shape forward and backward, and count its matrix products."""
    given = torch.zeros(shape, device="meta", requires_grad=True)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        out = function(given * 1)
        if out is None:
            return Cost()
        forward = counter.get_total_flops()
        if out.requires_grad:
            out.backward(torch.ones_like(out))
        return Cost(
            forward=forward,
            backward=counter.get_total_flops() - forward,
            width=out.shape[-1],
            wants_gradient=out.requires_grad,
            reaches_input=given.grad is not None,
        )


def places(first: int, count: int) -> Tensor:
    """Positions first … first + count - 1 on the meta device, [1, count]."""
    return torch.arange(first, first + count, device="meta")[None]
