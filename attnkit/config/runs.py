"""The runs: which settings each of them gathers, and the keys that follow from that."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING, Any, Optional, get_type_hints

from attnkit.data.objectives import ObjectiveConfig
from attnkit.data.sources import DataConfig
from attnkit.data.tokenizer import TokenizerConfig
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.tasks.base import TaskConfig
from attnkit.training.loop import TrainingConfig
from attnkit.training.tracking import TrackingConfig


def attribute_docs(cls: type) -> dict[str, str]:
    """The string beneath each field in the source of a class: what the field means, for `--help` and saved configs."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for declared, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(declared, ast.AnnAssign) or not isinstance(declared.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs[declared.target.id] = inspect.cleandoc(below.value.value)
    return docs


def model_fields() -> Iterator[tuple[str, Any, Any]]:
    """`path`, and the fields that `AttnKitConfig` itself declares, each of them optional."""
    doc = "A model to start from, a folder or a hub name; the other keys of `model` then change what its config says."
    yield "path", str | None, field(default=None, metadata={"doc": doc, "default": None})
    hints, docs = inspect.get_annotations(AttnKitConfig, eval_str=True), attribute_docs(AttnKitConfig)
    for entry in fields(AttnKitConfig):
        if entry.name in hints:
            metadata = {"doc": docs.get(entry.name, ""), "default": entry.default}
            yield entry.name, Optional[hints[entry.name]], field(default=None, metadata=metadata)  # noqa: UP045


if TYPE_CHECKING:

    @dataclass(kw_only=True)
    class ModelConfig:
        """For type checkers; the class below has the other fields too."""

        path: str | None = None

else:
    ModelConfig = make_dataclass(
        "ModelConfig",
        model_fields(),
        kw_only=True,
        namespace={
            "__doc__": "The model: a saved one, or the fields of `AttnKitConfig` (null: its default).",
            "__module__": __name__,
        },
    )


@dataclass(kw_only=True)
class PretrainRun:
    """Everything that a pretraining run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    imports: list[str] = field(default_factory=list)
    """Python files (relative to the config that names them) or modules that register parts; imported first."""


@dataclass(kw_only=True)
class FinetuneRun:
    """Everything that a fine-tuning run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    imports: list[str] = field(default_factory=list)
    """Python files (relative to the config that names them) or modules that register parts; imported first."""


@dataclass(kw_only=True)
class TokenizerRun:
    """Everything that training a tokenizer depends on."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    output_dir: str = "runs/tokenizer"
    """Folder of the tokenizer, to be given to a run as `tokenizer.path`."""
    overwrite: bool = False
    """Replace the tokenizer that `output_dir` already holds."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One leaf of a run: its type, the default that it shows and what it means."""

    hint: Any
    default: Any
    doc: str


def keys_of(run_class: type, prefix: str = "") -> dict[str, Key]:
    """All keys of a run by their dotted name, in the order of declaration."""
    hints, keys = get_type_hints(run_class), {}
    docs = {} if run_class is ModelConfig else attribute_docs(run_class)
    for entry in fields(run_class):
        hint, name = hints[entry.name], prefix + entry.name
        if is_dataclass(hint):
            keys.update(keys_of(hint, f"{name}."))
            continue
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        keys[name] = Key(hint=hint, **{"default": default, "doc": docs.get(entry.name, "")} | dict(entry.metadata))
    return keys


def sections_of(run_class: type) -> dict[str, type]:
    """The sections of a run by name: each a dataclass of settings."""
    hints = get_type_hints(run_class)
    return {entry.name: hints[entry.name] for entry in fields(run_class) if is_dataclass(hints[entry.name])}
