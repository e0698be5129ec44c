"""Checkpoints of transformers' models: read whole, or refused in one line before anything is made of them."""

import copy
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedModel

from attnkit.errors import UsageError, first_line, nearest
from attnkit.files.text import read_json
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.formats import Format, Head
from attnkit.models.formats_one_stack import BERT, GPT2, LLAMA, ROBERTA
from attnkit.models.formats_permuted import XLNET
from attnkit.models.formats_two_stacks import MARIAN, T5

logger = logging.getLogger(__name__)

FORMATS = {form.model_type: form for form in (BERT, ROBERTA, GPT2, LLAMA, MARIAN, T5, XLNET)}
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
GENERATION = "generation_config.json"
REMEDY = ": config.json and weights have to be those of one whole checkpoint"
IN_A_LAYER = re.compile(r"\.\d+\.")


def find_format(model_type: str, class_name: str) -> tuple[Format, Head]:
    """What reads a class of transformers. Raises `UsageError` for one that is not among the formats."""
    if model_type == AttnKitConfig.model_type:
        raise UsageError("is a model of attnkit already: load it as it is")
    if model_type not in FORMATS:
        raise UsageError(f"no import of {model_type!r}: {nearest(model_type, FORMATS)}")
    form = FORMATS[model_type]
    if class_name in form.heads:
        return form, form.heads[class_name]
    others = [other for other, its in FORMATS.items() if class_name in its.heads]
    if others:
        raise UsageError(f"model_type {model_type!r} and architectures {class_name!r}, of {others[0]!r}, disagree")
    raise UsageError(f"no import of {class_name} of {model_type!r}: {nearest(class_name, form.heads)}")


def load_hf(folder: Path) -> PreTrainedModel:
    """The model of a checkpoint folder, as the class that saved it, with all of its weights.

    Raises `UsageError` that names the folder or file for whatever is missing, damaged, or not of one model. Weights
    that the class has no use for, such as those of another head, are left out and named in a warning; those of a layer
    are refused.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file: give the folder that it is in")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json: give the folder of a checkpoint")
    class_name = named_class(folder / "config.json")
    check_generation(folder)
    model_class = getattr(transformers, class_name)
    check_memory(folder, model_class)
    with said_of(str(folder), remedy=REMEDY):
        whole, imaginary = (tensors_of_kind(folder, letters) for letters in ("IUB", "C"))
        if imaginary:
            raise UsageError(f"complex numbers, which no weights are, in {some(imaginary)}{REMEDY}")
        model, info = model_class.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=True
        )
    problems = list(weight_problems(model, info, whole=whole))
    if problems:
        raise UsageError(f"{folder}: {'; '.join(problems)}{REMEDY}")
    if info["unexpected_keys"]:
        logger.warning("%s: %s has no %s: left out", folder, class_name, some(info["unexpected_keys"]))
    return model


def check_memory(folder: Path, model_class: type[PreTrainedModel]) -> None:
    """Raise `UsageError` for a config.json whose weights alone this machine could not hold, or of which no model can be
    made."""
    with said_of(str(folder), remedy=REMEDY), torch.device("meta"):
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
        numbers = count_weights(model_class, config)
    needed = numbers * (config.dtype or torch.float32).itemsize
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise UsageError(
            f"{folder}: config.json describes weights of {needed / 2**30:,.1f} GiB, and this machine has "
            f"{available / 2**30:,.1f} GiB: correct it, or import on a larger machine"
        )


def count_weights(model_class: type[PreTrainedModel], config: Any) -> int:
    """The weights of the model that config.json describes, from those of one and of two layers of each stack: a number
    of layers that no machine could hold would take as long to build."""
    depths = {key: getattr(config, key) for key in DEPTHS if key in vars(config)}

    def count(**layers: int) -> int:
        shallow = copy.deepcopy(config)
        for key, value in (dict.fromkeys(depths, 1) | layers).items():
            setattr(shallow, key, value)
        return sum(parameter.numel() for parameter in model_class(shallow).parameters())

    least = count()
    return least + sum((depth - 1) * (count(**{key: 2}) - least) for key, depth in depths.items())


def check_generation(folder: Path) -> None:
    """Raise `UsageError` for a damaged generation_config.json: transformers goes on without it, and a model would
    generate otherwise than it was saved to."""
    if (folder / GENERATION).is_file():
        read_json(folder / GENERATION)
        with said_of(str(folder / GENERATION)):
            GenerationConfig.from_pretrained(folder, local_files_only=True)


def named_class(file: Path) -> str:
    """The class that config.json names, one that is imported. Raises `UsageError` if it names none."""
    config = read_json(file)
    model_type, names = config.get("model_type"), config.get("architectures")
    if not isinstance(model_type, str):
        raise UsageError(f"{file}: names no model_type: give the config.json that transformers saved the model with")
    if model_type in FORMATS and not (isinstance(names, list) and names and isinstance(names[0], str)):
        heads = ", ".join(FORMATS[model_type].heads)
        raise UsageError(f"{file}: names no class in 'architectures': write [the class that was saved], one of {heads}")
    try:
        find_format(model_type, names[0] if names else "")
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return names[0]


def weight_problems(model: PreTrainedModel, info: dict[str, Any], *, whole: set[str]) -> Iterator[str]:
    """What is wrong with the weights that were read into a model, some of which are `whole` numbers in their files."""
    missing = set(info["missing_keys"])
    if missing:
        yield f"no weights for {some(missing)}"
    shapes = {f"{key} is {list(found)}, not {list(wanted)}" for key, found, wanted in info["mismatched_keys"]}
    if shapes:
        yield some(shapes)
    extra = {key for key in info["unexpected_keys"] if IN_A_LAYER.search(key)}
    if extra:
        yield f"no place for {some(extra)}"
    damaged = not_finite(model) - missing
    if damaged:
        yield f"NaN or infinity in {some(damaged)}"
    if rounded := whole & {name for name, _ in model.named_parameters()}:
        yield f"whole numbers, which no weights are, in {some(rounded)}"


def not_finite(model: PreTrainedModel) -> set[str]:
    """The tensors that hold what is no finite number: a run that diverged, or a damaged file, leaves them."""
    return {key for key, tensor in model.state_dict().items() if not tensor.isfinite().all()}


def tensors_of_kind(folder: Path, letters: str) -> set[str]:
    """The tensors in a checkpoint's files whose numbers are of a kind: I, U and B are whole, C are complex. Loading
    makes others of them unasked."""
    found = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            found |= {key for key in tensors.keys() if tensors.get_slice(key).get_dtype()[0] in letters}  # noqa: SIM118
    return found


def some(names: set[str]) -> str:
    """The first few of many."""
    return ", ".join(sorted(names)[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


@contextmanager
def said_of(named: str, *, remedy: str = "") -> Iterator[None]:
    """Turn whatever a model's files make transformers, torch or safetensors raise into a line that names the model."""
    try:
        yield
    except StrictDataclassError as error:
        raise UsageError(f"{named}: {first_line(error.__cause__ or error)}{remedy}") from error
    except UsageError as error:
        raise UsageError(*(f"{named}: {line}" for line in str(error).splitlines())) from error
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{named}: cannot be loaded: {said}{remedy}") from error
