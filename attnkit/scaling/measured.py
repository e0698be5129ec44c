"""FLOPs and cache of any model of transformers: it runs on fake tensors, where products and bytes are counted.

Fake tensors have a device, shapes and the values of constants, which is more than meta tensors have: a model that looks
at a constant of its own, or makes a tensor on the CPU, runs on them too.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import Cache, EncoderDecoderCache, PreTrainedModel
from transformers.initialization import no_init_weights

from attnkit.errors import UsageError, first_line
from attnkit.scaling.attention_flops import Work
from attnkit.scaling.parameters import component_of
from attnkit.scaling.subject import MODEL_FAULTS, Subject


def measured_work(subject: Subject, *, rows: int, tokens: int, target: int) -> dict[str, Work]:
    """FLOPs per component on `rows` of `tokens`, and of `target` tokens for a decoder of two stacks.

    Backward is divided among the components like forward: autograd does not tell to which module it belongs. Experts
    are computed for the tokens that choose them. Raises `UsageError` for a model that needs values or other inputs.
    """
    with (
        without_values(subject, tokens=tokens, remedy="its parameters can be counted: give convention '6nd'"),
        no_init_weights(),
    ):
        model = subject.build(experts_implementation="batched_mm").eval()
        given = token_ids(subject, rows=rows, tokens=tokens, target=target, use_cache=False)
        with FlopCounterMode(display=False) as counter:
            out = model(**given)
            modules = {name: sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
            ends = (value for value in out.values() if isinstance(value, torch.Tensor) and value.requires_grad)
            torch.stack([value.sum() for value in ends]).sum().backward()
    return divided(sort_by_component(model, modules), backward=counter.get_total_flops() - modules["Global"])


def token_ids(subject: Subject, *, rows: int, tokens: int, target: int, use_cache: bool) -> dict[str, Any]:
    """Inputs of a model, and whether it returns a cache where it can."""
    given: dict[str, Any] = {"input_ids": torch.zeros(rows, tokens, dtype=torch.long)}
    if subject.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.zeros(rows, target, dtype=torch.long)
    return given | ({"use_cache": use_cache} if "use_cache" in subject.config.to_dict() else {})


def measured_cache(subject: Subject, *, rows: int, tokens: int, target: int, dtype: torch.dtype) -> int:
    """Bytes of the cache that a model returns: of windows, latent or shared heads, states, and of the source too.

    None are those of a model without a cache. Raises `UsageError` as `measured_work` does.
    """
    with (
        without_values(subject, tokens=tokens, remedy="its parameters can be counted"),
        no_init_weights(),
        torch.no_grad(),
    ):
        model = subject.build(dtype=dtype, experts_implementation="batched_mm").eval()
        out = model(**token_ids(subject, rows=rows, tokens=tokens, target=target, use_cache=True))
        layers = [layer for value in out.values() if isinstance(value, Cache) for layer in layers_of(value)]
        held = [it for layer in layers for it in vars(layer).values()]
        held += [it for states in held if isinstance(states, dict) for it in states.values()]
        return sum(it.numel() * it.itemsize for it in held if isinstance(it, torch.Tensor) and it.dim())


def layers_of(cache: Cache) -> list[Any]:
    """The layers of a cache, or of both of a decoder that reads a source."""
    if isinstance(cache, EncoderDecoderCache):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return cache.layers


@contextmanager
def without_values(subject: Subject, *, tokens: int, remedy: str) -> Iterator[None]:
    """Run a model on fake tensors. Raises `UsageError` with a remedy where its code does not bear that, or not rows of
    so many tokens."""
    torchs_own = logging.getLogger("torch._subclasses.fake_tensor")  # it prints what is raised as well
    before, torchs_own.disabled = torchs_own.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    except UsageError:
        raise
    except MODEL_FAULTS as error:
        subject.check_length(tokens)
        looks = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
        reason = "it looks at the values of tensors" if looks else first_line(error).rstrip(".")
        raise UsageError(
            f"{subject.config.model_type} does not run on token ids without values ({reason}); {remedy}"
        ) from error
    finally:
        torchs_own.disabled = before


def divided(forward: Counter[str], *, backward: int) -> dict[str, Work]:
    """Backward in the proportions of forward, to the integer."""
    total, given, work = forward.total(), 0, dict[str, Work]()
    for name, flops in sorted(forward.items(), key=lambda item: item[1]):
        part = math.floor(backward * flops / total) if len(work) < len(forward) - 1 else backward - given
        given += part
        work[name] = Work(forward=flops, backward=part)
    return dict(reversed(work.items()))


def sort_by_component(model: PreTrainedModel, modules: dict[str, int]) -> Counter[str]:
    """The forward FLOPs of each module without those inside it, by component."""
    components: Counter[str] = Counter()
    root, kinds = type(model).__name__, dict(model.named_modules())
    for path, flops in modules.items():
        name = path.removeprefix(root).removeprefix(".")
        if path == "Global" or name not in kinds:
            continue
        parent = next((it for it in parents_of(path) if it in modules), None)
        components[component_of(name, kinds[name])] += flops
        if parent is not None:
            above = parent.removeprefix(root).removeprefix(".")
            components[component_of(above, kinds[above])] -= flops
    components["other"] += modules["Global"] - components.total()
    return +components


def parents_of(path: str) -> list[str]:
    """The paths of the modules around one, the nearest first."""
    words = path.split(".")
    return [".".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
