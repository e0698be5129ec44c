"""The saved form of a run: every key, what it means, and the value it had; `--config` takes it back."""

import textwrap
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedConfig

from attnkit.config import strict_yaml
from attnkit.config.runs import FinetuneRun, PretrainRun, keys_of, sections_of
from attnkit.models.configuration_attnkit import AttnKitConfig

Run = TypeVar("Run", PretrainRun, FinetuneRun)


def resolved(run: Run, config: PreTrainedConfig) -> Run:
    """A run with nothing left to defaults: the model as it was built, and a start from the beginning.

    With `model.path` the saved model holds what its config says, and the section keeps the changes that were given.
    `training.resume` and `training.overwrite` say what to do with a folder, not what the run is: they are reset.
    """
    model = run.model
    if model.path is None and isinstance(config, AttnKitConfig):
        model = replace(
            model, **{entry.name: vars(config)[entry.name] for entry in fields(model) if entry.name != "path"}
        )
    return replace(run, model=model, training=replace(run.training, resume=False, overwrite=False))


def to_text(run: Any) -> str:
    """A run as YAML with every key explicit, each beneath its meaning."""
    lines, section = [], ""
    values = values_of(run)
    for name, key in keys_of(type(run)).items():
        parent, _, leaf = name.rpartition(".")
        if parent != section:
            section = parent
            lines.append(f"\n{section}:" if section else "")
        text = f"{comment(key.doc)}{strict_yaml.dump({leaf: values[name]})}".rstrip("\n")
        lines.append(textwrap.indent(text, "  " if section else ""))
    return "\n".join(lines).strip("\n") + "\n"


def values_of(run: Any) -> dict[str, Any]:
    """The value of every key of a run by its dotted name."""
    sections = sections_of(type(run))
    nested = asdict(run)
    flat = {name: value for name, value in nested.items() if name not in sections}
    return flat | {f"{section}.{name}": value for section in sections for name, value in nested[section].items()}


def comment(doc: str) -> str:
    """A meaning as the comment above its key."""
    return "".join(f"# {line}\n" for line in textwrap.wrap(" ".join(doc.split()), width=110))


def save(run: Any, path: Path) -> None:
    """Write a run for people to read and for `--config` to take back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(run), encoding="utf-8")
