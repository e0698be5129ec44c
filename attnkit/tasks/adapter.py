"""Few weights in place of all: the methods of PEFT, merged into the model at the end."""

import re
import warnings
from collections.abc import Set
from copy import deepcopy
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any, get_type_hints

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attnkit.attention.options import choices, fits
from attnkit.errors import UsageError, check_count, check_number, first_line, in_one_line, nearest

IN_LAYER = re.compile(r".*?\.[0-9]+\.(.+)")
"""A part of a numbered layer, and its name there."""
FROM_TEXTS = ("corda", "eva", "lora_ga")  # ways to begin
BESIDE_STEPS = ("adalora", "kasa_config", "monteclora_config", "use_asa")
"""Methods and options with a loss of their own, or with something to do after each step, which PEFT leaves to the
loop; without it they are something else than they say."""


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
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig, PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
    from peft.tuners.tuners_utils import BaseTuner

    merging = {
        kind.value.lower(): config
        for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()
        if not issubclass(config, PromptLearningConfig) and issubclass(PEFT_TYPE_TO_TUNER_MAPPING[kind], BaseTuner)
    }
    if str(adapter.method).upper() in PEFT_TYPE_TO_CONFIG_MAPPING.keys() - {name.upper() for name in merging}:
        raise UsageError(
            f"adapter.method: {adapter.method!r} does not merge into weights, so that no model could be saved "
            "whole: use 'lora', or another that does"
        )
    if adapter.method not in merging:
        raise UsageError(f"adapter.method: unknown method {adapter.method!r}: {nearest(str(adapter.method), merging)}")
    if adapter.method in BESIDE_STEPS:
        raise UsageError(f"adapter.method: {adapter.method!r} prunes between steps, which no run does: use 'lora'")
    found = merging[adapter.method]
    # What all methods have is said by the run and the model, and not by the user.
    known = {it.name: it.default for it in fields(found) if it.name not in {own.name for own in fields(PeftConfig)}}
    wrong = [f"adapter.options: no option {name!r}: {nearest(name, known)}" for name in adapter.options.keys() - known]
    if wrong:
        raise UsageError(*sorted(wrong))
    hints = get_type_hints(found)
    for name, value in adapter.options.items():
        check_value(name, value, hint=hints[name], default=known[name])
    return found


def check_value(option: str, value: Any, *, hint: Any, default: Any) -> None:
    """Raise `UsageError` for a value that is not of the type of its option, or that PEFT could not compute with."""
    name = f"adapter.options.{option}"
    if hint is bool and not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, not {value!r}")
    if hint in (int, float):
        # A default below 0 stands for a value that PEFT finds itself.
        least = default if isinstance(default, int) and default < 0 else 0
        is_factor = option.endswith(("alpha", "lambda"))  # which may be any number, even where PEFT says int
        check = check_count if hint is int and not is_factor else check_number
        check(name, value, least=least)
        if option.endswith("dropout") and value >= 1:
            raise UsageError(f"{name} must be less than 1, not {value}: nothing would pass")
        return
    if isinstance(value, str) and value in FROM_TEXTS and option.startswith("init_"):
        raise UsageError(f"{name}: {value!r} is computed from texts before training, which no run does; choose another")
    if option in BESIDE_STEPS and value:
        raise UsageError(f"{name}: it has a loss of its own, or prunes between steps, which no run does: leave it out")
    allowed = list(map(str, choices(hint)))
    # A value with a number in it, such as `pissa_niter_[number of iters]`, is left to PEFT.
    has_number = isinstance(value, str) and any("[number" in it for it in allowed)
    if not fits(value, hint) and not has_number:
        raise UsageError(f"{name} must be {' or '.join(allowed).replace('NoneType', 'null')}, not {value!r}")
    if option.endswith("_pattern") and isinstance(value, dict):
        for part, number in value.items():
            check_number(f"{name}[{part!r}]", number)


def adapt(model: PreTrainedModel, adapter: AdapterConfig, *, new_head: bool, drawn: Set[str] = frozenset()) -> Any:
    """The model with the weights of a method beside its own, which no longer learn; without a method, itself.

    A new head is trained whole, and so is a pooler before it whose weights were `drawn` as the saved model had none,
    whatever `modules_to_save` names beside them. Raises `UsageError` for what
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
    whole = new_parts(model, drawn) if new_head else []
    names = [name for name in usual(model) if not f"{name}.".startswith(tuple(f"{part}." for part in whole))]
    if adapter.options.get("layers_to_transform") is not None:
        names = sorted({found[1] for found in map(IN_LAYER.fullmatch, names) if found})
    options = {"target_modules": names} if "target_modules" in known else {}
    options |= {"feedforward_modules": []} if "feedforward_modules" in known else {}  # part of them, as IA3 demands
    options |= adapter.options
    if new_head:
        if "modules_to_save" not in known:
            raise UsageError(
                f"adapter.method: {adapter.method!r} trains no new head, as this task needs one: use 'lora'"
            )
        options["modules_to_save"] = sorted({*whole, *(options.get("modules_to_save") or [])})
    try:
        with warnings.catch_warnings():
            # PEFT asks for an attribute that transformers has renamed.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            # And takes norms, of which it has no list, with a warning.
            warnings.filterwarnings("ignore", "Unsupported layer type .*Norm'>'", UserWarning)
            # And finds out by itself how the weights of a layer lie.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to", UserWarning)
            # What is set is heeded or refused.
            warnings.filterwarnings("error", "(?s).*(be|were) ignored|.* was matched")
            adapted = get_peft_model(model, config_class(**options))
    except Exception as error:  # PEFT checks little of what it is given, and falls over the rest
        raise UsageError(
            f"adapter.options: {adapter.options} do not fit this model ({in_one_line(error)}); correct them, or leave "
            "them out for the usual ones"
        ) from error
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
        for part in given if isinstance(given, list) else []:
            if not any(f".{name}".endswith(f".{part}") for name in names):
                last = {name.rpartition(".")[2] for name in names if name}
                existing = [name for name in last if not name.isdecimal()]
                raise UsageError(f"adapter.options.{option}: the model has no part {part!r}: {nearest(part, existing)}")
    check_layers(names, adapter.options)


def check_layers(names: list[str], options: dict[str, Any]) -> None:
    """Raise `UsageError` for layers that PEFT would not heed."""
    layers, targets = options.get("layers_to_transform"), options.get("target_modules")
    if layers is None:
        return
    whole = [part for part in targets if part in names] if isinstance(targets, list) else []
    if whole:
        raise UsageError(
            f"adapter.options.layers_to_transform: {whole[0]!r} of target_modules is one part in one layer; name "
            "parts by what follows the number of their layer"
        )
    numbers = {int(number) for name in names for number in re.findall(r"(?<=\.)[0-9]+(?=\.|$)", name)}
    for layer in layers if isinstance(layers, list) else [layers]:
        if layer not in numbers:
            last = max(numbers, default=None)
            raise UsageError(
                f"adapter.options.layers_to_transform: the model has no layer {layer}; its layers are 0 to {last}"
            )


def merge(model: Any, adapter: AdapterConfig) -> PreTrainedModel:
    """The model alone, what `adapt` put beside its weights added to them."""
    if adapter.method is None:
        return model
    from peft.utils.other import AuxiliaryTrainingWrapper

    # Some methods leave the parts that were trained whole inside what PEFT wrapped them in, or fall over those without
    # a weight of their own: they go first.
    wrapped = [(name, part) for name, part in model.named_modules() if isinstance(part, AuxiliaryTrainingWrapper)]
    for name, part in wrapped:
        model.set_submodule(name, part.unload_and_optionally_merge_module(True, False, None))
    return model.merge_and_unload()


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


def new_parts(model: PreTrainedModel, drawn: Set[str]) -> list[str]:
    """The parts of the model beside the body, and the pooler in it if its weights were drawn, which have to learn."""
    body, pooler = model.base_model_prefix, f"{model.base_model_prefix}.pooler"
    beside = [name for name, part in model.named_children() if name != body and list(part.parameters())]
    return beside + ([pooler] if any(name.startswith(f"{pooler}.") for name in drawn) else [])
