"""The model of a run: built from the `model` section or loaded, and checked against tokenizer and rows."""

import os
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.config.runs import ModelConfig
from attnkit.errors import UsageError
from attnkit.files.hub import require_repository
from attnkit.files.saved import CHECKPOINTS
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.causality import check_causal
from attnkit.models.checks import num_positions
from attnkit.models.configuration_attnkit import AttnKitConfig, make_config
from attnkit.models.foreign import FORMATS, check_generation, not_finite, said_of, some
from attnkit.models.labels import LabelModel
from attnkit.recipes.saved import model_path
from attnkit.scaling.parameters import count_parameters
from attnkit.scaling.units import in_bytes
from attnkit.training.checkpoint import newest_complete
from attnkit.training.optimizer import chosen_transfer
from attnkit.training.settings import TrainingConfig

FP32 = 4  # bytes
IMPORT = "`attnkit import` makes a model of it that has this head"
USUAL_LENGTH = 256  # tokens of a row where neither the run nor the model says less


def build_model(
    model: ModelConfig,
    *,
    auto_class: Any,
    tokenizer: PreTrainedTokenizerBase,
    sequence_length: int | None,
    training: TrainingConfig,
    head: dict[str, Any] | None = None,
) -> tuple[PreTrainedModel, set[str]]:
    """The model of a run with the head of `auto_class`, checked against the tokenizer and the length of the rows.

    Beside it, the names of the weights that a saved model did not bring, and that were drawn for it. Without
    `model.path` its weights are random; where the section is silent, vocabulary and special ids are those of the
    tokenizer, and there are as many positions as a row has tokens. Rows whose length is null follow the model (see
    `row_length`). `head` holds the fields of the config that a new head needs; without it a saved model has to bring
    all of its weights. A rule of `training.transfer` scales random weights. A run that goes on from a checkpoint needs
    no saved model: it is the one of the checkpoint; but that of an adapter has no config.

    Raises `UsageError` if the three do not fit together, or if the saved model is missing, damaged or another one.
    """
    if training.transfer is not None and (model.path is not None or head is not None):
        raise UsageError("training.transfer: its rules are for pretraining from random weights: set it to null")
    changes = {name: value for name, value in asdict(model).items() if name != "path" and value is not None}
    if model.path is not None:
        newest = newest_complete(Path(training.output_dir) / CHECKPOINTS) if training.resume else None
        if newest is not None and (newest / "config.json").is_file():
            built, drawn = load_or_draw(str(newest), auto_class=auto_class, changes={}, head=None)
        else:
            built, drawn = load_or_draw(model.path, auto_class=auto_class, changes=changes, head=head)
        keep_fixed(built)
        check_fit(built.config, tokenizer, sequence_length=sequence_length)
        return built, drawn
    config = fresh_config(changes, tokenizer, sequence_length=sequence_length, head=head or {})
    check_fit(config, tokenizer, sequence_length=sequence_length)
    check_memory(config)
    if training.transfer is None:
        return auto_class.from_config(config), set()
    factors = chosen_transfer(config, training)
    built = auto_class.from_config(factors.scaled(config))
    factors.start(built)
    return built, set()


def fresh_config(
    given: dict[str, Any], tokenizer: PreTrainedTokenizerBase, *, sequence_length: int | None, head: dict[str, Any]
) -> AttnKitConfig:
    """The config of a model with random weights."""
    special_ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    for name, token_id in special_ids.items():
        if given.get(name, token_id) != token_id:
            raise UsageError(f"model.{name}: {given[name]} is not the tokenizer's, {token_id}: leave it out")
    silent = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": sequence_length or USUAL_LENGTH,
        **special_ids,
        **head,
    }
    return make_config(**{**silent, **given})


def check_memory(config: AttnKitConfig) -> None:
    """Raise `UsageError` if a model is so large that this machine could not hold its weights with their gradients.

    Where there is an accelerator, the weights alone, which are drawn before they go there. What else training takes is
    known to `attnkit scale memory`.
    """
    copies = 1 if torch.accelerator.is_available() else 2
    needed = copies * FP32 * least_parameters(config)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        what = "weights" if copies == 1 else "weights and gradients"
        raise UsageError(
            f"model.hidden_size: {config.hidden_size}, with {config.num_all_layers} layers and {config.vocab_size} "
            f"tokens, takes {in_bytes(needed)} for {what} alone, and this machine has {in_bytes(available)}: make the "
            "model smaller"
        )


def least_parameters(config: AttnKitConfig) -> int:
    """The parameters of a model whose layers are as many as it says and all as small as the first.

    Counted on one and two layers, so that an absurd number of them takes no time.
    """

    def count(layers: int) -> int:
        changes = {"num_hidden_layers": layers, "layer_scorers": None, "layer_patterns": None}
        if config.is_encoder_decoder:
            changes["num_decoder_layers"] = layers
        return count_parameters(AttnKitConfig(**{**config.to_diff_dict(), **changes}))

    one = count(1)
    return one + (config.num_hidden_layers - 1) * (count(2) - one)


def check_fit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, *, sequence_length: int | None) -> None:
    """Raise `UsageError` if the tokenizer has more tokens than the model, or a row more than its positions."""
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"model.vocab_size: {config.vocab_size} rows in the embedding for the {len(tokenizer)} entries of the "
            "tokenizer: leave model.vocab_size out, or lower tokenizer.vocab_size"
        )
    limit = num_positions(config)
    if limit is not None and sequence_length is not None and sequence_length > limit:
        raise UsageError(
            f"data.sequence_length: {sequence_length} is more than model.max_position_embeddings: {limit}, "
            f"{meaning_of_limit(config)}: set data.sequence_length to {limit} or less, or raise the other"
        )


def row_length(given: int | None, config: PreTrainedConfig) -> int:
    """The tokens of a row: as many as were given, or as the model has positions, but no more than is usual."""
    return given or min(num_positions(config) or USUAL_LENGTH, USUAL_LENGTH)


def meaning_of_limit(config: PreTrainedConfig) -> str:
    """What `max_position_embeddings` says of a model, for errors."""
    if isinstance(config, AttnKitConfig) and config.position != "learned":
        return f"how far this model with position {config.position!r} is said to be trained"
    return "the positions that the model has"


def load_model(path: str, *, auto_class: Any) -> PreTrainedModel:
    """A saved model, whole.

    `path` is the folder of the model or of its run, or a hub name. Raises `UsageError` if there is none, if it is
    damaged, or if its weights are not those of the kind that `auto_class` makes.
    """
    return load_or_draw(path, auto_class=auto_class, changes={}, head=None)[0]


def load_or_draw(
    path: str, *, auto_class: Any, changes: dict[str, Any], head: dict[str, Any] | None
) -> tuple[PreTrainedModel, set[str]]:
    """A saved model, with changes to its config that leave its weights as they are, and the weights drawn for it.

    Drawn are those of a new head, whose fields of the config are `head`. Raises `UsageError` as `load_model` does.
    """
    place, fields = find_model(path), {**changes, **(head or {})}
    config = load_config(place, auto_class=auto_class, named=path, **fields)
    if unknown := [name for name in changes if not hasattr(config, name)]:
        remedy = "leave it out, as it is of models of attnkit"
        raise UsageError(*(f"model.{name}: the config of {path} has no such field: {remedy}" for name in unknown))
    check_generation(Path(place))
    with said_of(f"model {path}"):
        model, info = auto_class.from_pretrained(
            place, output_loading_info=True, ignore_mismatched_sizes=True, **fields
        )
    drawn = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    left_over = set(info["unexpected_keys"])
    check_weights(model, drawn, left_over, path=path, changed=bool(changes), has_new_head=head is not None)
    check_use(model, auto_class=auto_class, named=f"model {path}")
    return model, drawn


def keep_fixed(model: PreTrainedModel) -> None:
    """Let the weights not learn that their class makes fixed, such as sinusoids: transformers lets all learn that it
    reads."""
    with torch.device("meta"):
        as_made = type(model)(deepcopy(model.config)).named_parameters()
    fixed = {name for name, parameter in as_made if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        if name in fixed:
            parameter.requires_grad_(False)


def check_use(model: PreTrainedModel, *, auto_class: Any, named: str) -> None:
    """Raise `UsageError` for a model of transformers that would go on from a text, and reads what comes."""
    if auto_class is AutoModelForCausalLM and not isinstance(model.config, AttnKitConfig):
        check_causal(model, named=named)


def find_model(path: str) -> str:
    """The folder of a model, given that of its run, or its name on the hub. Raises `UsageError` if there is none."""
    place = model_path(path)
    if not Path(place).is_dir():
        require_repository(place, kind="model", remedy="give the folder of a run or of a saved model")
    return place


def has_two_stacks(path: str) -> bool:
    """Whether a saved model reads one text and writes another, or goes on from one.

    Raises `UsageError` if there is none, and for an encoder, which does neither.
    """
    place = find_model(path)
    with said_of(f"model {path}"):
        config = AutoConfig.from_pretrained(place)
    if isinstance(config, AttnKitConfig) and config.architecture == "encoder":
        raise UsageError(f"model {path}: an encoder writes nothing; `attnkit evaluate {path}` says its loss")
    return bool(config.is_encoder_decoder)


def load_config(place: str, *, auto_class: Any, named: str, **fields: Any) -> PreTrainedConfig:
    """The config of a saved model, which `named` is for errors, with other values of some fields.

    Raises `UsageError` if it is damaged, or if `auto_class` makes no model of its kind.
    """
    with said_of(f"model {named}"):
        config = AutoConfig.from_pretrained(place, **fields)
    if issubclass(auto_class, PreTrainedModel) or type(config) in auto_class._model_mapping:
        return config
    is_for_all = issubclass(AUTO_CLASSES.get(auto_class, PreTrainedModel), LabelModel)
    remedy = IMPORT if is_for_all and config.model_type in FORMATS else "give a model of another type"
    raise UsageError(f"model {named}: transformers has no {auto_class.__name__} of {config.model_type!r}: {remedy}")


def check_weights(
    model: PreTrainedModel, drawn: set[str], left_over: set[str], *, path: str, changed: bool, has_new_head: bool
) -> None:
    """Raise `UsageError` if weights were drawn, left over or are NaN; a new head has to be drawn.

    So has the pooler between body and head, which language models of transformers are saved without.
    """
    wrong = set(drawn)
    # Models of transformers leave weights over where all is well: a pooler, say.
    if changed or isinstance(model.config, AttnKitConfig):
        wrong |= left_over
    if has_new_head:
        body, pooler = f"{model.base_model_prefix}.", f"{model.base_model_prefix}.pooler."
        wrong = {key for key in wrong if key.startswith(body) and not key.startswith(pooler)}
    if wrong:
        named = ", ".join(sorted(wrong)[:3]) + ", …" * (len(wrong) > 3)
        remedy = "change no key of `model` that changes weights" if changed else "give a model of this kind"
        # Of some heads transformers calls the body otherwise than of all others, and finds none of its weights.
        if has_new_head and wrong == {key for key in model.state_dict() if key.startswith(body)}:
            named = f"it has none named {body}…"
            remedy = IMPORT if model.config.model_type in FORMATS else "give a model that was saved with this head"
        raise UsageError(f"model {path}: these are not weights of {type(model).__name__} ({named}): {remedy}")
    if damaged := not_finite(model) - drawn:
        raise UsageError(f"model {path}: holds NaN or infinity in {some(damaged)}: give one that did not diverge")
