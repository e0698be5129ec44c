"""The shape of a model of some number of parameters, in sizes that hardware likes."""

import math
from bisect import bisect_left
from typing import Any, Literal

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig, make_config
from attnkit.scaling.parameters import count_parameters

WIDTH_PER_LAYER = 96
Rounding = Literal["nearest", "at_most", "at_least"]


def usual_vocabulary(parameters: float) -> int:
    """The largest power of two whose embedding has about a third of the parameters of a model of usual shape.

    Between 512, which bytes and special tokens need, and 32768.
    """
    # With a depth of w / 96, N is about 12·L·w² = w³/8, so that the width is 2·N^⅓ and an embedding V·2·N^⅓.
    return int(min(2**15, max(2**9, 2 ** math.floor(math.log2(parameters ** (2 / 3) / 6)))))


def usual_seq_len(parameters: float) -> int:
    """Rows of 1024 tokens, and of 256 for small models, of whose work attention would be too large a part."""
    return 1024 if parameters >= 1e7 else 256


def shape(
    parameters: float, *, seq_len: int, vocab_size: int, rounding: Rounding = "nearest", **model: Any
) -> AttnKitConfig:
    """The decoder of hardware-friendly sizes whose count is nearest: whole heads, depth from 1/160 to 1/48 of the
    width; or the nearest that has not more, or not fewer."""
    fixed = {"vocab_size": vocab_size, "max_position_embeddings": seq_len, **model}
    best: tuple[float, AttnKitConfig] | None = None
    # The wider a model, the fewer layers it has, so that those of a good depth are neighbours.
    every = widths()
    first = bisect_left(every, True, key=lambda width: layers_of(parameters, width, fixed)[0] <= most_layers(width))
    for width in every[first:]:
        layers, count = layers_of(parameters, width, fixed, rounding=rounding)
        if layers < max(2 if best and rounding == "nearest" else 1, width // 160):
            break
        # Of sizes within 3% of what is asked for, the one with the usual ratio of width to depth.
        error = abs(math.log(count / parameters))
        cost = max(error, 0.03) + 0.01 * abs(math.log(width / layers / WIDTH_PER_LAYER))
        if best is None or cost < best[0]:
            best = cost, decoder(width, layers, fixed)
    if best is None:
        if first == len(every):
            raise UsageError(f"no model of a friendly shape has {parameters:.3g} parameters: plan a smaller one")
        raise UsageError(
            f"no model of {parameters:.3g} parameters has a vocabulary of {vocab_size} entries: lower vocab_size, or "
            "plan a larger model"
        )
    return best[1]


def most_layers(width: int) -> int:
    """As deep as a model of this width may be."""
    return max(4, width // 48)


def layers_of(
    parameters: float, width: int, fixed: dict[str, Any], *, rounding: Rounding = "nearest"
) -> tuple[int, int]:
    """The number of layers with which a model of this width has nearly so many parameters, and how many those are."""
    one, two = (count_parameters(decoder(width, layers, fixed)) for layers in (1, 2))
    exact = 1 + (parameters - one) / (two - one)
    layers = round(exact) if rounding == "nearest" else math.floor(exact) + (rounding == "at_least")
    return layers, one + (layers - 1) * (two - one)


def decoder(width: int, layers: int, fixed: dict[str, Any]) -> AttnKitConfig:
    """A model of this width and depth."""
    heads = width // head_width(width)
    return make_config(hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers, **fixed)


def widths() -> list[int]:
    """Widths that kernels like, small steps first."""
    return [*range(16, 256, 16), *range(256, 1024, 64), *range(1024, 2048, 128), *range(2048, 32769, 256)]


def head_width(width: int) -> int:
    """The usual width of a head that divides the model's."""
    return next(size for size in (128, 64, 32, 16) if width % size == 0 and (width >= 16 * size or size <= 16))


def shape_reason(config: AttnKitConfig, asked: float) -> str:
    """The shape in words."""
    heads = f"{config.num_attention_heads} heads of {config.head_dim}"
    return (
        f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {heads}: the nearest friendly shape to "
        f"{asked:.3g} parameters"
    )
