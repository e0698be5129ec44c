"""Which layer a parameter belongs to: what is nearer to the input may learn more slowly, or not at all."""

import re
from collections.abc import Iterator

from torch import nn

from attnkit.errors import UsageError

OF_INPUT = re.compile(r"(?:^|[._])emb")
OF_OUTPUT = re.compile(r"(?:^|[._])(?:final|out)")
"""What comes first and last by name: models may list the norm of embeddings behind all layers, and the last before."""


def stacks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.ModuleList]]:
    """The outermost lists of modules, which are the layers of a model, by their place in it."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield f"{prefix}{name}", child
        else:
            yield from stacks(child, f"{prefix}{name}.")


def depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """The depth of each parameter by name, and that of the last layer, L.

    Embeddings and whatever comes before the layers are at 0, the layers of each stack at 1 … L, all else at L + 1:
    what is called so (`layernorm_embedding`, `final_layer_norm`), and of other names what stands before all layers.
    """
    layers = {
        f"{path}.{index}.": index + 1 for path, stack in stacks(model) for index in range(len(stack)) if len(stack) > 0
    }
    last = max(layers.values(), default=0)
    embeddings = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    found: dict[str, int] = {}
    have_begun = False
    for name, _ in model.named_parameters():
        own = [depth for prefix, depth in layers.items() if name.startswith(prefix)]
        have_begun = have_begun or bool(own)
        comes_first = (OF_INPUT.search(name) or not have_begun) and not OF_OUTPUT.search(name)
        found[name] = own[0] if own else 0 if comes_first or name.startswith(embeddings) else last + 1
    return found, last


def rate_factors(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """layer_decay^(L + 1 - depth) for each parameter by name (Howard 2018, section 3.2; Clark 2020)."""
    found, last = depths(model)
    return {name: layer_decay ** (last + 1 - depth) for name, depth in found.items()}


def freeze(model: nn.Module, num_layers: int) -> None:
    """Let the embeddings and the first `num_layers` layers of each stack be as they are; with 0, nothing changes.

    Raises `UsageError` if there are not so many layers.
    """
    if num_layers == 0:
        return
    found, last = depths(model)
    if num_layers > last:
        raise UsageError(f"training.frozen_layers: {num_layers} is more than the {last} layers of the model")
    for name, parameter in model.named_parameters():
        if found[name] <= num_layers:
            parameter.requires_grad_(False)
