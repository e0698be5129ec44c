"""Few weights in place of all: the methods of PEFT, merged into the model at the end."""

import warnings
from copy import deepcopy
from dataclasses import Field, dataclass, field, fields
from importlib.util import find_spec
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnkit.errors import UsageError, check_number, first_line, nearest


@dataclass(kw_only=True)
class AdapterConfig:
    """Which weights are trained in place of all."""

    method: str | None = None
    """A PEFT method whose weights merge into the model, e.g. `lora` (extra `peft`); null trains all weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of that method's config, e.g. `{r: 8, lora_alpha: 16, use_dora: true}`; where they are silent, all
    linear layers of the body are adapted (by `ln_tuning` its norms), and a new head is trained whole."""


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
    known = {entry.name: entry for entry in fields(found)}
    wrong = [f"adapter.options: no option {name!r}: {nearest(name, known)}" for name in adapter.options.keys() - known]
    if wrong:
        raise UsageError("\n".join(sorted(wrong)))
    for name, value in adapter.options.items():
        check_value(known[name], value)
    return found


def check_value(entry: Field[Any], value: Any) -> None:
    """Raise `UsageError` for a value that PEFT would take without a word, and could not compute with."""
    name, kind = f"adapter.options.{entry.name}", entry.type if isinstance(entry.type, str) else entry.type.__name__
    if kind == "bool" and not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, not {value!r}")
    if kind not in ("int", "float"):
        return
    # A default below 0 stands for a value that PEFT finds itself.
    check_number(name, value, least=entry.default if isinstance(entry.default, int) and entry.default < 0 else 0)
    if entry.name.endswith("dropout") and value >= 1:
        raise UsageError(f"{name} must be less than 1, not {value}: nothing would pass")


def adapt(model: PreTrainedModel, adapter: AdapterConfig, *, new_head: bool) -> Any:
    """The model with the weights of a method beside its own, which no longer learn; without a method, itself.

    A new head is trained whole, whatever `modules_to_save` names beside it. Raises `UsageError` for what
    `adapter_class` refuses, for parts that the model has not, for values that the method itself does not take, and for
    methods that do not merge.
    """
    if adapter.method is None:
        return model
    config_class = adapter_class(adapter)
    from peft import LNTuningConfig, get_peft_model

    check_parts(model, adapter)
    known = {entry.name for entry in fields(config_class)}
    usual = norms if issubclass(config_class, LNTuningConfig) else linear_layers
    options = {"target_modules": usual(model)} if "target_modules" in known else {}
    options |= {"feedforward_modules": []} if "feedforward_modules" in known else {}  # part of them, as IA3 demands
    options |= adapter.options
    if new_head:
        if "modules_to_save" not in known:
            raise UsageError(f"adapter.method: {adapter.method!r} trains no new head: choose another")
        options["modules_to_save"] = sorted({*head_modules(model), *(options.get("modules_to_save") or [])})
    try:
        with warnings.catch_warnings():
            # PEFT asks for an attribute that transformers has renamed.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            # And takes norms, of which it has no list, with a warning.
            warnings.filterwarnings("ignore", "Unsupported layer type .*Norm'>'", UserWarning)
            adapted = get_peft_model(model, config_class(**options))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UsageError(f"adapter.options: {first_line(error)}") from error
    factors = [vars(part).get("scaling") for part in adapted.modules()]
    if any(isinstance(factor, dict) and 0 in factor.values() for factor in factors):
        raise UsageError(f"adapter.options: {adapter.options} multiply the adapter by 0, so that it learns nothing")
    check_merge(adapted, adapter)
    return adapted


def check_merge(adapted: Any, adapter: AdapterConfig) -> None:
    """Raise `UsageError` for a method whose layers do not merge: a copy of one of each kind is tried.

    Of one kind are layers of one class over parts whose weights have the same names: some do not merge without a bias.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [part for part in adapted.modules() if isinstance(part, BaseTunerLayer)]
    kinds = {(type(it), *(name for name, _ in it.get_base_layer().named_parameters())): it for it in layers}
    try:
        for layer in kinds.values():
            deepcopy(layer).merge()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"adapter.method: {adapter.method!r} does not merge into the weights of this model ({first_line(error)}): "
            "choose another, or other adapter.options"
        ) from error


def check_parts(model: PreTrainedModel, adapter: AdapterConfig) -> None:
    """Raise `UsageError` for options that name no part of the model."""
    names = [name for name, _ in model.named_modules()]
    for option in ("modules_to_save", "target_modules", "exclude_modules"):
        given = adapter.options.get(option)
        if option == "modules_to_save" and given is not None and not isinstance(given, list):
            raise UsageError(f"adapter.options.{option} must be a list of names, not {given!r}")
        for part in given if isinstance(given, list) else []:
            if not any(f".{name}".endswith(f".{part}") for name in names):
                last = {name.rpartition(".")[2] for name in names if name}
                existing = [name for name in last if not name.isdecimal()]
                raise UsageError(f"adapter.options.{option}: the model has no part {part!r}: {nearest(part, existing)}")


def merge(model: Any, adapter: AdapterConfig) -> PreTrainedModel:
    """The model alone, what `adapt` put beside its weights added to them."""
    if adapter.method is None:
        return model
    from peft.utils.other import AuxiliaryTrainingWrapper

    merged = model.merge_and_unload()
    # Some methods leave the parts that were trained whole inside what PEFT wrapped them in.
    wrapped = [(name, part) for name, part in merged.named_modules() if isinstance(part, AuxiliaryTrainingWrapper)]
    for name, part in wrapped:
        merged.set_submodule(name, part.unload_and_optionally_merge_module(True, False, None))
    return merged


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The linear layers of the body, which of T5 is the model itself, without the head that predicts tokens."""
    body, head = set(model.base_model.modules()), model.get_output_embeddings()
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)]
    return [name for name, part in linear if part in body and part is not head]


def norms(model: PreTrainedModel) -> list[str]:
    """The layers of the body with a factor, or a factor and a term, for each feature and nothing else."""
    body = set(model.base_model.modules())
    alone = [(name, part) for name, part in model.named_modules() if part in body and not list(part.children())]
    return [name for name, part in alone if {weight.ndim for weight in part.parameters()} == {1}]


def head_modules(model: PreTrainedModel) -> list[str]:
    """The parts of the model beside the body, which are new and have to be trained."""
    return [
        name for name, part in model.named_children() if name != model.base_model_prefix and list(part.parameters())
    ]
