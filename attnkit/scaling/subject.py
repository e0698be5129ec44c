"""What is counted: the config that the user means, and the head that its model has."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from attnkit.errors import UsageError, first_line, nearest
from attnkit.files import strict_yaml
from attnkit.files.hub import require_repository
from attnkit.files.saved import import_parts, imports_of, remembered_imports
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.configuration_attnkit import AttnKitConfig, make_config
from attnkit.models.language import LanguageModel
from attnkit.models.permutation import AttnKitForPermutationLM

HEADS: dict[str, Any] = {
    "none": AutoModel,
    "causal_lm": AutoModelForCausalLM,
    "masked_lm": AutoModelForMaskedLM,
    "permutation_lm": AttnKitForPermutationLM,
    "pre_training": AutoModelForPreTraining,
    "seq2seq_lm": AutoModelForSeq2SeqLM,
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "multiple_choice": AutoModelForMultipleChoice,
}
OF_OBJECTIVE = {
    "causal": "causal_lm",
    "masked": "masked_lm",
    "permuted": "permutation_lm",
    "denoising": "seq2seq_lm",
    "sequence_to_sequence": "seq2seq_lm",
    "next_sentence": "pre_training",
}
GUESSES = ("pre_training", "causal_lm", "seq2seq_lm", "masked_lm", "none")

SIZES = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
NEARLY = 0.85  # how alike a misspelt key and the field are
MOST_LAYERS = 2**14  # each is looked at
MODEL_FAULTS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(NotImplementedError, RuntimeError, TypeError, ValueError),
)
"""What the code of a model raises for a config or inputs that it was not written for."""

Config = PreTrainedConfig | str | Path

if TYPE_CHECKING:

    class FilledConfig(AttnKitConfig):
        """An `AttnKitConfig` as it is after its construction, which fills in every size and switch."""

        num_key_value_heads: int
        head_dim: int
        intermediate_size: int
        embedding_norm: bool
        final_norm: bool
        attention_output_bias: bool
        output_bias: bool
        output_transform: bool
        embedding_dropout: float
        num_labels: int

else:
    FilledConfig = AttnKitConfig


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A config and the head of its model, a name of `HEADS`."""

    config: PreTrainedConfig
    head: str

    @property
    def ours(self) -> FilledConfig | None:
        """The config of an AttnKit model, for which there are closed formulas; None for models of transformers."""
        return self.config if isinstance(self.config, FilledConfig) else None

    @property
    def is_language_model(self) -> bool:
        """Whether the loss of the model can be computed chunk by chunk."""
        return self.ours is not None and issubclass(class_of(self.head), LanguageModel)

    def build(
        self, *, backend: str = "eager", dtype: torch.dtype = torch.float32, experts_implementation: str | None = None
    ) -> PreTrainedModel:
        """The model on torch's current default device; on "meta" it takes no memory.

        Raises `UsageError` where no such model can be built.
        """
        experts = {} if experts_implementation is None else {"experts_implementation": experts_implementation}
        chosen = HEADS[self.head]
        build = chosen._from_config if issubclass(chosen, PreTrainedModel) else chosen.from_config
        try:
            # A copy, as some models of transformers change the config that they are built from.
            return build(copy.deepcopy(self.config), attn_implementation=backend, dtype=dtype, **experts)
        except MODEL_FAULTS as error:
            raise UsageError(f"{self.config.model_type}, head {self.head!r}: {first_line(error)}") from error

    def check_length(self, tokens: int) -> None:
        """Say why a model of transformers may have failed on so many tokens: it has fewer positions."""
        limit = self.config.to_dict().get("max_position_embeddings")
        if isinstance(limit, int) and tokens > limit:
            raise UsageError(f"seq_len: {tokens} tokens for the {limit} positions of {self.config.model_type}")

    def build_without_memory(self) -> PreTrainedModel:
        """The model on the meta device."""
        with torch.device("meta"):
            return self.build()


def read_subject(config: Config, *, head: str | None = None) -> Subject:
    """The subject that the user means.

    `config` is a config of attnkit or transformers, or a path: a YAML file with a section `model` (a run, or a row of
    the size table), a JSON file, the folder of a model or of a run, or a hub name. `head` is a name of `HEADS`;
    without it the config's own (`architectures`), or the one that such a model is pretrained with.

    Raises `UsageError` for what is no config, says nonsense, or has no such head.
    """
    if head is not None and not (isinstance(head, str) and head in HEADS):
        raise UsageError(f"unknown head {head!r}: {nearest(head, HEADS)}")
    found_head = None
    if not isinstance(config, PreTrainedConfig | str | Path):
        raise UsageError(f"config must be a config of attnkit or transformers, or a path, not {type(config).__name__}")
    if isinstance(config, PreTrainedConfig):
        check(config)
    else:
        path = config
        config, found_head = read_path(path)
        try:
            check(config)
        except UsageError as error:
            raise UsageError(*(f"{path}: {line}" for line in str(error).splitlines())) from error
    subject = Subject(config=config, head=head or found_head or default_head(config))
    if isinstance(config, AttnKitConfig):
        check_head(config, subject.head)
    return subject


def read_path(path: str | Path) -> tuple[PreTrainedConfig, str | None]:
    """The config behind a path, and the head that it says the model has."""
    if not str(path) or "\0" in str(path):
        raise UsageError(f"{str(path)!r}: no such file or folder")
    place = Path(path).expanduser()
    if place.suffix in (".yaml", ".yml"):
        return read_yaml(place)
    import_parts(remembered_imports(place))
    if (folder := folder_of_config(place)) is not None:
        return load_config(str(folder)), None
    if (place / "config.yaml").is_file():
        return read_yaml(place / "config.yaml")
    if not place.exists() and (place.is_absolute() or place.suffix == ".json" or len(place.parts) > 2):
        raise UsageError(f"{path}: no such file or folder")
    if place.is_dir():
        raise UsageError(f"{path}: holds no config: give a YAML or JSON file, or the folder of a model or a run")
    if place.is_file():
        return load_config(str(place)), None
    require_repository(str(path), kind="model", remedy="give a YAML or JSON file, or the folder of a model or a run")
    return load_config(str(path)), None


def folder_of_config(place: Path) -> Path | None:
    """The folder of a model, or the one inside the folder of a run."""
    return next((inner for inner in (place, place / "model") if (inner / "config.json").is_file()), None)


def load_config(path: str, **changes: Any) -> PreTrainedConfig:
    """A saved config, with changes."""
    try:
        config = AutoConfig.from_pretrained(path, **changes)
        check_keys(PreTrainedConfig.get_config_dict(path)[0], config)
        return config
    except StrictDataclassError as error:
        raise UsageError(f"{path}: {first_line(error.__cause__ or error)}") from error
    except UsageError as error:
        raise UsageError(*(f"{path}: {line}" for line in str(error).splitlines())) from error
    except (OSError, *MODEL_FAULTS) as error:
        raise UsageError(f"{path}: no config can be read there: {first_line(error)}") from error


def check_keys(given: dict[str, Any], config: PreTrainedConfig) -> None:
    """Refuse a key that misspells a field: transformers keeps it, and the field has its default, a size even."""
    fields = {it.name for it in dataclasses.fields(config)} | set(config.attribute_map)
    for key in given.keys() - fields:
        if not key.startswith("_") and (meant := get_close_matches(key, fields - given.keys(), n=1, cutoff=NEARLY)):
            raise UsageError(f"{key}: no field of a {config.model_type}: did you mean {meant[0]!r}?")


def read_yaml(path: Path) -> tuple[PreTrainedConfig, str | None]:
    """The `model` section of a run; where it is silent, what the run's other sections say of the model."""
    run, _ = strict_yaml.read(path)
    import_parts(imports_of(path))
    if not isinstance(run.get("model"), Mapping):
        raise UsageError(f"{path}: has no section `model`: give a run, or a row of configs/sizes")
    given = {name: value for name, value in run["model"].items() if value is not None}
    saved = given.pop("path", None)
    if saved is not None:
        if not isinstance(saved, str):
            raise UsageError(f"{path}: model.path: {saved} is no text: give the folder of a model or a run")
        import_parts(remembered_imports(saved))
    fields = get_annotations(AttnKitConfig)
    for name in given:
        if name not in fields:
            raise UsageError(f"{path}: model.{name}: no such key: {nearest(name, fields)}")
    section = {
        name: run[name] if isinstance(run.get(name), Mapping) else {} for name in ("tokenizer", "data", "objective")
    }
    objective = section["objective"].get("name")
    if objective is not None and not (isinstance(objective, str) and objective in OF_OBJECTIVE):
        raise UsageError(f"{path}: objective.name: unknown objective {objective!r}: {nearest(objective, OF_OBJECTIVE)}")
    head = None if objective is None else OF_OBJECTIVE[objective]
    if saved is not None:
        return load_config(str(folder_of_config(Path(saved).expanduser()) or saved), **given), head
    silent = {
        "vocab_size": section["tokenizer"].get("vocab_size"),
        "max_position_embeddings": section["data"].get("sequence_length"),
    }
    try:
        return make_config(**{name: value for name, value in silent.items() if value is not None} | given), head
    except UsageError as error:
        raise UsageError(*(f"{path}: model: {line}" for line in str(error).splitlines())) from error


def default_head(config: PreTrainedConfig) -> str:
    """The head that `architectures` names; else an AttnKit model's by its stacks; else the first that exists."""
    named = (config.architectures or [""])[0]
    if isinstance(config, AttnKitConfig):
        of_class = {model.__name__: auto for auto, model in AUTO_CLASSES.items()}
        of_auto = {auto: head for head, auto in HEADS.items()}
        if named in of_class:
            return of_auto[of_class[named]]
        if config.two_stream:
            return "permutation_lm"
        if config.architecture == "encoder":
            return "pre_training" if config.pooler else "masked_lm"
        return "causal_lm" if config.architecture == "decoder" else "seq2seq_lm"
    autos = {head: auto for head, auto in HEADS.items() if not issubclass(auto, PreTrainedModel)}
    try:
        classes = {
            head: auto._model_mapping[type(config)]
            for head, auto in autos.items()
            if type(config) in auto._model_mapping
        }
    except ValueError as error:  # the mapping names a class that is not there
        raise UsageError(f"transformers has no model for {type(config).__name__}: {first_line(error)}") from error
    for head, model_class in classes.items():
        if not isinstance(model_class, tuple) and model_class.__name__ == named:
            return head
    # A config of two stacks may have a class that is its decoder alone.
    for head in ("seq2seq_lm", *GUESSES) if config.is_encoder_decoder else GUESSES:
        if head in classes:
            return head
    raise UsageError(f"transformers has no model for {type(config).__name__}")


def class_of(head: str) -> Any:
    """The class of AttnKit models with a head."""
    return AUTO_CLASSES.get(HEADS[head], HEADS[head])


def check_head(config: AttnKitConfig, head: str) -> None:
    """Refuse a head that no model of this config has."""
    model_class = class_of(head)
    if issubclass(model_class, LanguageModel):
        try:
            model_class.check_config(config)
        except UsageError as error:
            raise UsageError(f"head {head!r}: {error}") from error


def check(config: PreTrainedConfig) -> None:
    """Refuse what no model can have. An `AttnKitConfig` has checked itself, but its fields may have changed since."""
    values = config.to_dict()  # a config whose layers differ does not let all of its attributes be read
    sizes = {config.attribute_map.get(name, name): values.get(config.attribute_map.get(name, name)) for name in SIZES}
    layers = values.get(config.attribute_map.get("num_hidden_layers", "num_hidden_layers"))
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise UsageError(f"num_hidden_layers must be at most {MOST_LAYERS}, not {layers}")
    if isinstance(config, AttnKitConfig):
        config.validate_function()
        return
    for name, size in sizes.items():
        if isinstance(size, int) and size < 1:
            raise UsageError(f"{name} must be at least 1, not {size}")
