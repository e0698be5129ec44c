"""Which parameters are vectors and which are matrices of the body: optimizers treat them unalike."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from attnkit.attention.normalizers import Normalizer
from attnkit.attention.patterns import Pattern
from attnkit.attention.positions import Position
from attnkit.attention.scorers import Scorer


def vectors(model: nn.Module) -> set[int]:
    """The `id` of each bias, norm and other vector; also where one tensor holds those of all heads."""
    named = model.named_parameters()
    found = {id(parameter) for name, parameter in named if parameter.ndim < 2 or "bias" in name.rpartition(".")[2]}
    for part in model.modules():
        if isinstance(part, Scorer | Normalizer | Pattern | Position):
            own = part.parameters(recurse=False)
            found |= {id(each) for each in own if each.ndim == 2 and len(each) == getattr(part, "num_heads", None)}
    return found


def matrices_of_body(model: nn.Module) -> Iterator[nn.Parameter]:
    """The matrices between embeddings and head: those of the base model, where a model of transformers names one."""
    body, others = model.base_model if isinstance(model, PreTrainedModel) else model, vectors(model)
    for module in body.modules():
        if not isinstance(module, nn.Embedding):
            own = module.parameters(recurse=False)
            yield from (parameter for parameter in own if parameter.ndim == 2 and id(parameter) not in others)
