"""FLOPs of any model of transformers: it runs on fake tensors, forward and backward, and its products are counted.

Fake tensors have a device, shapes and the values of constants, which is more than meta tensors have: a model that looks
at a constant of its own, or makes a tensor on the CPU, runs on them too.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel
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
    inputs = {"input_ids": (rows, tokens)}
    if subject.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = (rows, target)
    switches = {"use_cache": False} if "use_cache" in subject.config.to_dict() else {}
    with without_values(subject, remedy="its parameters can be counted: give convention '6nd'"), no_init_weights():
        model = subject.build(experts_implementation="batched_mm").eval()
        given = {name: torch.zeros(shape, dtype=torch.long) for name, shape in inputs.items()}
        with FlopCounterMode(display=False) as counter:
            out = model(**given, **switches)
            modules = {name: sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
            ends = (value for value in out.values() if isinstance(value, torch.Tensor) and value.requires_grad)
            torch.stack([value.sum() for value in ends]).sum().backward()
    return divided(sort_by_component(model, modules), backward=counter.get_total_flops() - modules["Global"])


@contextmanager
def without_values(subject: Subject, *, remedy: str) -> Iterator[None]:
    """Run a model on fake tensors. Raises `UsageError` with a remedy where its code does not bear that."""
    torchs_own = logging.getLogger("torch._subclasses.fake_tensor")  # it prints what is raised as well
    before, torchs_own.disabled = torchs_own.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    except UsageError:
        raise
    except MODEL_FAULTS as error:
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
