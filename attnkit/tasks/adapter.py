"""Few weights in place of all: the methods of PEFT, merged into the model at the end."""

import warnings
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnkit.errors import UsageError, nearest


@dataclass(kw_only=True)
class AdapterConfig:
    """Which weights are trained in place of all."""

    method: str | None = None
    """A PEFT method whose weights merge into the model, e.g. `lora` (extra `peft`); null trains all weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of that method's config, e.g. `{r: 8, lora_alpha: 16, use_dora: true}`; where they are silent, all
    linear layers of the body are adapted, and a new head is trained whole."""


def adapter_class(adapter: AdapterConfig) -> Any:
    """The config class of a method. Raises `UsageError` for unknown methods and options, and ones that do not merge."""
    if find_spec("peft") is None:
        raise UsageError("adapter.method: it needs the package 'peft'; install the extra: pip install 'attnkit[peft]'")
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
    from peft.tuners.tuners_utils import BaseTuner

    merging = {
        kind.value.lower(): config
        for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()
        if not issubclass(config, PromptLearningConfig) and issubclass(PEFT_TYPE_TO_TUNER_MAPPING[kind], BaseTuner)
    }
    if adapter.method not in merging:
        raise UsageError(f"adapter.method: unknown method {adapter.method!r}: {nearest(str(adapter.method), merging)}")
    found = merging[adapter.method]
    known = {entry.name for entry in fields(found)}
    wrong = [f"adapter.options: no option {name!r}: {nearest(name, known)}" for name in adapter.options.keys() - known]
    if wrong:
        raise UsageError("\n".join(sorted(wrong)))
    return found


def adapt(model: PreTrainedModel, adapter: AdapterConfig, *, new_head: bool) -> Any:
    """The model with the weights of a method beside its own, which no longer learn; without a method, itself.

    Raises `UsageError` for what `adapter_class` refuses, and for values that the method itself does.
    """
    if adapter.method is None:
        return model
    config_class = adapter_class(adapter)
    from peft import get_peft_model

    usual = {"target_modules": linear_layers(model), "modules_to_save": head_modules(model) if new_head else None}
    known = {entry.name for entry in fields(config_class)}
    options = {name: value for name, value in usual.items() if name in known} | adapter.options
    try:
        with warnings.catch_warnings():
            # PEFT asks for an attribute that transformers has renamed.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return get_peft_model(model, config_class(**options))
    except (ValueError, TypeError) as error:
        raise UsageError(f"adapter.options: {str(error).splitlines()[0]}") from error


def merge(model: Any, adapter: AdapterConfig) -> PreTrainedModel:
    """The model alone, what `adapt` put beside its weights added to them."""
    return model if adapter.method is None else model.merge_and_unload()


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The linear layers of the body."""
    prefix = f"{model.base_model_prefix}."
    kinds = (nn.Linear, Conv1D)
    return [name for name, part in model.named_modules() if name.startswith(prefix) and isinstance(part, kinds)]


def head_modules(model: PreTrainedModel) -> list[str]:
    """The parts of the model beside the body, which are new and have to be trained."""
    return [
        name for name, part in model.named_children() if name != model.base_model_prefix and list(part.parameters())
    ]
