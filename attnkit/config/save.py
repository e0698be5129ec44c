"""The saved form of a run: every key, what it means, and the value it had; `--config` takes it back."""

import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.runs import PretrainRun, keys_of
from attnkit.config.source import read_settings
from attnkit.files import strict_yaml
from attnkit.files.disk import replacing
from attnkit.files.saved import CONFIG

Run = TypeVar("Run", PretrainRun, FinetuneRun)


def to_text(run: Any) -> str:
    """A run as YAML with every key explicit, each beneath its meaning."""
    settings = read_settings(type(run).__module__, type(run).__qualname__)
    docs = {name: setting.doc for name, setting in settings.fields.items()}
    for section, inner in settings.sections.items():
        docs |= {f"{section}.{name}": setting.doc for name, setting in inner.fields.items()}
    values = asdict(run)
    lines, section = [], ""
    for name in keys_of(type(run)):
        parent, _, leaf = name.rpartition(".")
        if parent != section:
            section = parent
            lines.append(f"\n{section}:" if section else "")
        value = values[section][leaf] if section else values[leaf]
        meaning = textwrap.wrap(docs[name], width=110, initial_indent="# ", subsequent_indent="# ")
        text = "\n".join([*meaning, strict_yaml.dump({leaf: value}).rstrip("\n")])
        lines.append(textwrap.indent(text, "  " if section else ""))
    return "\n".join(lines).strip("\n") + "\n"


def save(run: Run, folder: Path) -> Path:
    """Write a run into its folder, for people to read and for `--config` to take back; return the file.

    `training.resume` and `training.overwrite` say what to do with a folder, not what the run is: they are saved as
    false, so that giving the file back neither deletes nor continues anything.
    """
    run = replace(run, training=replace(run.training, resume=False, overwrite=False))
    path = folder / CONFIG
    with replacing(path) as unfinished:
        unfinished.write_text(to_text(run), encoding="utf-8")
    return path
