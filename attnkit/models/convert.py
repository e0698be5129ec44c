"""Import of transformers' models, and export to what transformers' own classes load.

A format is a table of names (`formats.py`). Both directions move the
same numbers; where a format cannot say what a model computes, the export is refused.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from attnkit.errors import UsageError, first_line, nearest
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.embeddings import build_position
from attnkit.models.foreign import FORMATS, find_format, load_hf, said_of
from attnkit.models.formats import Format, Fused, Head, Rule
from attnkit.models.pretrained import AttnKitPreTrainedModel

# What changes how a model is trained or started, and not what it computes.
NOT_FUNCTION = {
    "hidden_dropout",
    "embedding_dropout",
    "attention_dropout",
    "activation_dropout",
    "output_dropout",
    "initializer_range",
    "scale_residual_init",
    "use_cache",
}


def from_hf(source: PreTrainedModel | str | Path) -> AttnKitPreTrainedModel:
    """The AttnKit model that computes what one of transformers' models computes, with the same weights.

    `source` is the model itself, or the folder of its checkpoint. Raises `UsageError` for a class that is not among the
    formats, for an option of its configuration that AttnKit has no field for, and for a checkpoint that is not whole.
    """
    if isinstance(source, PreTrainedModel):
        return convert(source)
    if not isinstance(source, str | Path):
        raise UsageError(f"source must be a model of transformers or the folder of a checkpoint, not {source!r}")
    model = load_hf(Path(source).expanduser())
    with said_of(str(source)):
        return convert(model)


def convert(model: PreTrainedModel) -> AttnKitPreTrainedModel:
    """The same of a model in memory."""
    form, head = find_format(model.config.model_type, type(model).__name__)
    config = AttnKitConfig(**read_config(form, head, model))
    with torch.device("meta"):
        converted = head.model_class(config)
    theirs = model.state_dict()
    ours = dict(import_weights(form, head, config, converted, theirs))
    converted = converted.to_empty(device=model.device).to(model.dtype)
    converted.load_state_dict(ours, strict=True)
    refresh_buffers(converted)
    converted.tie_weights()
    if model.can_generate() and converted.can_generate():
        converted.generation_config = copy.deepcopy(model.generation_config)
    return converted.train(model.training)


def to_hf(model: AttnKitPreTrainedModel, format: str) -> PreTrainedModel:  # noqa: A002 -- the public name
    """The model of transformers' own class that computes what an AttnKit model computes, with the same weights.

    `format` is transformers' model type, e.g. "bert". Raises `UsageError` where that class cannot: another scorer,
    another norm, a head that it does not have.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: {nearest(format, FORMATS)}")
    if not isinstance(model, AttnKitPreTrainedModel):
        raise UsageError(f"model must be one of attnkit, not {type(model).__name__}: give what from_hf makes of it")
    form = FORMATS[format]
    head, hf_class = find_class(form, model)
    hf_config = write_config(form, hf_class, model.config)
    check_function(form, head, model.config, form.read(hf_config, head) | form.expect(model.config))
    exported: Any = hf_class(hf_config).to(device=model.device, dtype=model.dtype)
    empty = exported.state_dict()
    theirs = {key: torch.zeros_like(tensor) for key, tensor in empty.items() if key.endswith(form.zeros)}
    theirs |= {key: tensor.reshape(empty[key].shape) for key, tensor in export_weights(form, head, model)}
    result = exported.load_state_dict(theirs, strict=False)
    missing = set(result.missing_keys) - set(exported.all_tied_weights_keys)
    missing = {key for key in missing if not key.endswith(form.own_weights)}
    assert not missing, f"no weights for {sorted(missing)}"
    assert not result.unexpected_keys, f"no place for {result.unexpected_keys}"
    check_function(form, head, model.config, form.read(hf_config, head) | form.observe(exported))
    if exported.can_generate() and model.can_generate():
        exported.generation_config = copy.deepcopy(model.generation_config)
    return exported.train(model.training)


def find_class(form: Format, model: AttnKitPreTrainedModel) -> tuple[Head, Any]:
    """The class of transformers for one of our models."""
    for name, head in form.heads.items():
        fixed = (form.constants | head.fields).get("architecture")
        if type(model) is head.model_class and fixed in (None, model.config.architecture):
            return head, getattr(transformers, name)
    kind = f"{type(model).__name__} with architecture {model.config.architecture!r}"
    raise UsageError(f"format {form.model_type!r} has no class for {kind}")


def write_config(form: Format, hf_class: Any, config: AttnKitConfig) -> PreTrainedConfig:
    """Their configuration for one of ours. Raises `UsageError` for sizes that theirs cannot have together."""
    try:
        return hf_class.config_class(**form.write(config))
    except StrictDataclassError as error:
        raise UsageError(f"format {form.model_type!r} refuses: {first_line(error.__cause__ or error)}") from error


def read_config(form: Format, head: Head, model: PreTrainedModel) -> dict[str, Any]:
    """The fields of our configuration that say what a model of transformers computes."""
    output = model.get_output_embeddings()
    tied = model.config.tie_word_embeddings if output is None else output.weight is input_weight(model)
    return form.read(model.config, head) | form.observe(model) | {"tie_word_embeddings": tied}


def input_weight(model: PreTrainedModel) -> Tensor:
    """The embedding that the output embedding may be tied to: the decoder's where there are two."""
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    return decoder.get_input_embeddings().weight


def check_function(form: Format, head: Head, config: AttnKitConfig, read_back: dict[str, Any]) -> None:
    """Refuse an export whose configuration, read back, is that of another function."""
    back = AttnKitConfig(**read_back)
    kept = set(AttnKitConfig.__annotations__) - NOT_FUNCTION - form.unsaid - head.unused
    lost = {key: getattr(config, key) for key in sorted(kept) if not same(getattr(config, key), getattr(back, key))}
    if "position_options" in lost and position_facts(config) == position_facts(back):
        del lost["position_options"]
    if lost:
        said = ", ".join(f"{key} {value!r} (there: {getattr(back, key)!r})" for key, value in lost.items())
        raise UsageError(f"format {form.model_type!r} cannot say {said}")


def position_facts(config: AttnKitConfig) -> dict[str, Any]:
    """What a position knows of itself, whether its options say it or it is the default."""
    with torch.device("meta"):
        position = build_position(config, config.position, causal=config.architecture == "decoder")
    return {name: value for name, value in vars(position).items() if not name.startswith("_")}


def same(one: Any, other: Any) -> bool:
    """Equal, where no options and None are the same."""
    return one == other or (not one and not other and {type(one), type(other)} <= {dict, type(None)})


def rules_of(form: Format, head: Head, config: AttnKitConfig) -> dict[str, Rule]:
    """Our module or parameter -> theirs, all layers written out, with the prefixes of the head's class."""
    ours, theirs = head.prefixes
    rules: dict[str, Rule] = {}
    for pattern, rule in form.body(config).items():
        for index in range(max(config.num_hidden_layers, config.num_decoder_layers or 0) if "{i}" in pattern else 1):
            rules[ours + pattern.format(i=index)] = rule.placed(theirs, index)
    return rules | {name: rule.placed("", 0) for name, rule in head.rules.items()}


def find_rule(rules: dict[str, Rule], key: str) -> tuple[Rule, str]:
    """The rule of a parameter by its own name or its module's, and the name of theirs."""
    module, _, parameter = key.rpartition(".")
    if key in rules:
        return rules[key], rules[key].theirs
    assert module in rules, f"no rule for {key}"
    return rules[module], f"{rules[module].theirs}.{parameter}"


def import_weights(
    form: Format, head: Head, config: AttnKitConfig, model: nn.Module, theirs: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Every entry of our state dict, made from theirs."""
    rules = rules_of(form, head, config)
    for key, empty in model.state_dict().items():
        rule, name = find_rule(rules, key)
        if rule.absent:
            yield key, torch.zeros(empty.shape, dtype=next(iter(theirs.values())).dtype)
        else:
            yield key, rule.part_of(theirs[name]).reshape(empty.shape).clone()


def export_weights(form: Format, head: Head, model: AttnKitPreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every entry of their state dict, made from ours."""
    rules = rules_of(form, head, model.config)
    fused: dict[str, dict[int, Tensor]] = {}
    for key, tensor in model.state_dict().items():
        rule, name = find_rule(rules, key)
        if rule.absent:
            if tensor.any():
                raise UsageError(f"format {form.model_type!r} has no {key!r}, and it is not zero")
        elif isinstance(rule, Fused):
            parts = fused.setdefault(name, {})
            parts[rule.index] = tensor
            if len(parts) == rule.count:
                yield name, rule.whole([parts[index] for index in range(rule.count)])
        else:
            yield name, rule.whole([tensor])


def refresh_buffers(model: AttnKitPreTrainedModel) -> None:
    """Compute the buffers that no checkpoint holds."""
    for module in model.modules():
        if module._non_persistent_buffers_set:
            module.reset_parameters()
