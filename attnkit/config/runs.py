"""The runs that read text: which settings each of them gathers, and the keys that follow from that."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING, Any, Optional, get_type_hints

from attnkit.data.objectives import ObjectiveConfig
from attnkit.data.sources import PretrainDataConfig
from attnkit.data.tokenizer import TokenizerConfig
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import TrackingConfig

if TYPE_CHECKING:

    class ModelConfig(AttnKitConfig):
        """The model: a saved one, or the fields of `AttnKitConfig`."""

        path: str | None = None
        """A model to start from, a folder or a hub name; the other keys of `model` then change what its config says."""

else:

    def model_fields() -> Iterator[tuple[str, Any, Any]]:
        """`path`, and the fields that `AttnKitConfig` itself declares; null where the run does not set them."""
        yield "path", str | None, None
        for name, hint in inspect.get_annotations(AttnKitConfig, eval_str=True).items():
            yield name, Optional[hint], None  # noqa: UP045 -- `|` refuses some hints

    ModelConfig = make_dataclass("ModelConfig", model_fields(), kw_only=True, namespace={"__module__": __name__})


@dataclass(kw_only=True)
class PretrainRun:
    """Everything that a pretraining run depends on."""

    data: PretrainDataConfig = field(default_factory=PretrainDataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    imports: list[str] = field(default_factory=list)
    """Python files (relative to the config that names them) or modules that register parts; imported first."""


@dataclass(kw_only=True)
class TokenizerRun:
    """Everything that training a tokenizer depends on."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: PretrainDataConfig = field(default_factory=PretrainDataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    output_dir: str = "runs/tokenizer"
    """Folder of the tokenizer, to be given to a run as `tokenizer.path`."""
    overwrite: bool = False
    """Replace the tokenizer that `output_dir` already holds."""


def keys_of(run_class: type, prefix: str = "") -> dict[str, Any]:
    """The type of every key of a run by its dotted name, in the order of declaration."""
    sections, keys = sections_of(run_class), {}
    for name, hint in get_type_hints(run_class).items():
        keys.update(keys_of(hint, f"{prefix}{name}.") if name in sections else {prefix + name: hint})
    return keys


def may_be_empty(run_class: type) -> set[str]:
    """The keys whose text may be empty, since it is without their being given."""
    own = {entry.name for entry in fields(run_class) if entry.default == ""}
    sections = sections_of(run_class)
    return own | {
        f"{name}.{entry.name}" for name, it in sections.items() for entry in fields(it) if entry.default == ""
    }


def sections_of(run_class: type) -> dict[str, Any]:
    """The sections of a run by name: each a dataclass of settings."""
    return {name: hint for name, hint in get_type_hints(run_class).items() if is_dataclass(hint)}
