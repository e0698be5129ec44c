"""Exchange of checkpoints with transformers: import from its formats, export to them or with the code to load them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnkit.attention.scorers import scorers
from attnkit.data.tokenizer import load_tokenizer
from attnkit.errors import UsageError
from attnkit.files.disk import filling, is_free
from attnkit.files.text import read_json
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.card import read_training
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.convert import from_hf, to_hf
from attnkit.models.permutation import AttnKitForPermutationLM
from attnkit.models.remote_code import save_with_code
from attnkit.models.surgery import ScorerChange, replace_scorer
from attnkit.recipes.model import load_model
from attnkit.recipes.saved import find_tokenizer, holds_tokenizer, model_path, tokenizer_of
from attnkit.training.run_folder import writing

# No Auto class is for the last one.
LOADERS: dict[str, Any] = {model_class.__name__: auto_class for auto_class, model_class in AUTO_CLASSES.items()}
LOADERS |= {AttnKitForPermutationLM.__name__: AttnKitForPermutationLM}
FormatName = Literal["bert", "gpt2", "llama", "marian", "roberta", "t5", "xlnet"]


@dataclass(kw_only=True)
class ImportRun:
    """Which checkpoint becomes an attnkit model, and where."""

    source: str
    """The folder of a checkpoint of transformers of type bert, gpt2, llama, marian, roberta, t5 or xlnet."""
    target: str
    """The folder in which the attnkit model is saved; it must not exist, or be empty."""
    scorer: str | None = None
    """A scorer in place of the checkpoint's, a name of the registry `attnkit.scorers`; all else is carried over."""
    scorer_options: dict[str, Any] | None = None
    """Arguments of the scorer; null for those with which it starts nearest to the old one."""
    layers: list[int] | None = None
    """The layers that get it, counted from 0, the encoder's before the decoder's; null for all."""
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register scorers."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        given = {"scorer_options": self.scorer_options, "layers": self.layers}
        return [f"{key}: needs a scorer" for key, value in given.items() if self.scorer is None and value is not None]


@dataclass(kw_only=True)
class ExportRun:
    """Which attnkit model is written for others, and how."""

    path: str
    """A run, or the folder of a model."""
    target: str
    """The folder that is written; it must not exist, or be empty."""
    format: FormatName | None = None
    """The model type of transformers whose own class is to load it."""
    remote_code: bool = False
    """Lay the code beside the weights, for `from_pretrained(…, trust_remote_code=True)` without attnkit."""
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register parts; those of the run that made the model need not be named."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        return (
            ["format: give either --format or --remote-code"] if (self.format is None) is (not self.remote_code) else []
        )


def import_checkpoint(run: ImportRun) -> str:
    """Save a checkpoint of transformers as an attnkit model, its tokenizer with it.

    Raises `UsageError` if the checkpoint is not whole or of no class that is read, if there is no such scorer, or if
    the target is in use.
    """
    source, target = Path(run.source).expanduser(), free_folder(run.target)
    if run.scorer is not None:
        scorers[run.scorer]  # an unknown one is refused before much is read
    model, change = from_hf(source), None
    if run.scorer is not None:
        model, change = replace_scorer(model, run.scorer, scorer_options=run.scorer_options, layers=run.layers)
    tokenizer = None
    if holds_tokenizer(source):
        tokenizer = load_tokenizer(source, named=f"source: {source}", remedy="import one that loads")
    with writing(target, setting="target"), filling(target, setting="target", last="config.json") as staging:
        model.save_pretrained(staging)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
    said = f"{type(model).__name__} with {model.num_parameters():,} parameters in {target}"
    return said if change is None else "\n".join([said, *lines_of(change)])


def lines_of(change: ScorerChange) -> Iterator[str]:
    """What has become of the parameters and of the scores."""
    yield f"carried over: {len(change.carried)} tensors, of which a factor of the score has moved into " + (
        every_layer(change.rescaled) or "none"
    )
    yield f"dropped: {every_layer(change.dropped) or 'nothing'}"
    yield f"new: {every_layer(change.new) or 'nothing'}"
    differences = ", ".join(f"{depth}: {value:.3g}" for depth, value in change.score_difference.items())
    yield f"new scores of random states from the old ones, in units of their spread, by layer: {differences}"


def every_layer(names: list[str]) -> str:
    """Names of parameters, one for all layers."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))


def export_checkpoint(run: ExportRun) -> str:
    """Write an attnkit model as transformers' own class reads it, or with the code that loads it, and its tokenizer.

    Raises `UsageError` if there is no such model, if the format cannot say what it computes, or if the target is used.
    """
    target, model = free_folder(run.target), load_own(run.path)
    tokenizer = None if find_tokenizer(run.path) is None else tokenizer_of(run.path)
    with writing(target, setting="target"), filling(target, setting="target", last="config.json") as staging:
        if run.format is None:
            save_with_code(model, staging, training=read_training(model_path(run.path)))
            said = f"{type(model).__name__} with its code in {target}: load it with trust_remote_code=True"
        else:
            exported = to_hf(model, run.format)
            exported.save_pretrained(staging)
            said = f"{type(exported).__name__} in {target}"
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
    return said


def load_own(path: str) -> Any:
    """A saved attnkit model with the head that it was saved with."""
    config = read_json(Path(model_path(path)) / "config.json")
    kind, names = config.get("model_type"), config.get("architectures") or []
    if kind != AttnKitConfig.model_type:
        raise UsageError(
            f"model {path}: config.json says model_type {kind!r}, which is none of attnkit: transformers loads it as "
            "it is, and `attnkit import` makes a model of attnkit of it"
        )
    classes = [auto_class for name, auto_class in LOADERS.items() if name in names]
    if not classes:
        raise UsageError(f"model {path}: config.json names no class of attnkit in 'architectures'")
    return load_model(path, auto_class=classes[0])


def free_folder(name: str) -> Path:
    """The folder of that name, refused where something is in it."""
    folder = Path(name).expanduser()
    if not is_free(folder):
        raise UsageError(f"target: {name} is in use: give a folder that does not exist")
    return folder
