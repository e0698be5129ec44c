"""Checkpoints: complete or not there at all.

    <output_dir>/checkpoints/step-000100/
        model.safetensors, config.json   the weights; `from_pretrained` of the model's class reads the folder
        generation_config.json           how it writes, where it does
        tokenizer.json …                 the tokenizer, where the run has one
        average.safetensors              the moving average of the weights, where the run keeps one
        optimizer.pt                     moments by name of parameter, and the scale of fp16 gradients; read with
                                         `weights_only=True`
        stream.arrow                     where the reading of streamed rows is, with its packing and shuffle buffers
        state.json                       counters, best score, position in the data, and the run's facts
        COMPLETE                         written last, with a checksum of each file: a folder without it does not count

Random numbers need no file: they are a function of the seed and the position in the data (`randomness.py`).
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnkit.errors import UsageError
from attnkit.files.disk import SEAL, damage, seal, sync_to_disk
from attnkit.training.average import WeightAverage
from attnkit.training.order import Mark, Remembers, TrainRows, count_rows, rows_of_step
from attnkit.training.progress import Progress
from attnkit.training.run_folder import SUMMARY, writing
from attnkit.training.settings import TrainingConfig
from attnkit.training.shards import fill, load_optimizer, own_weights, share_out

WEIGHTS, AVERAGE, OPTIMIZER, STATE = "model.safetensors", "average.safetensors", "optimizer.pt", "state.json"
STREAM = "stream.arrow"
UNFINISHED = ".unfinished-"
NAME = re.compile(r"step-(\d+)")


class Savable(Protocol):
    """What can be saved into a folder beside the weights, as transformers saves configs and tokenizers."""

    def save_pretrained(self, save_directory: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What must be the same when a run goes on, or the rows it meets would not be those of one run."""

    seed: int
    num_rows: int | None
    """None for rows that have no end."""
    grouped_rows: int | None
    """Rows of a step, which `group_by_length` sorts together; None where it is false."""


def facts_of(training: TrainingConfig, rows: TrainRows, *, num_processes: int) -> Facts:
    """What decides on the order of the rows of a run."""
    grouped = rows_of_step(training, num_processes=num_processes) if training.group_by_length else None
    return Facts(seed=training.seed, num_rows=count_rows(rows), grouped_rows=grouped)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint holds, whole: tensors that processes share out are gathered, on all processes together."""

    weights: dict[str, Tensor]
    average: dict[str, Tensor] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any] | None
    progress: Progress
    facts: Facts
    mark: Mark | None
    """Where the reading of rows is, where these need more than the position."""
    companions: Sequence[Savable]
    """Whatever else is saved with the model: its configs, the tokenizer."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lives."""
    return folder / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint by its folder's name; -1 if that is none of ours."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def is_complete(path: Path) -> bool:
    """Whether a folder is a checkpoint that was written to its end."""
    return (path / SEAL).exists()


def complete_steps(folder: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    steps = [step_of(path) for path in folder.glob("step-*/") if is_complete(path)]
    return sorted(step for step in steps if step >= 0)


def newest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None."""
    steps = complete_steps(folder)
    return checkpoint_path(folder, steps[-1]) if steps else None


def save_checkpoint(folder: Path, contents: Contents) -> Path:
    """Write a checkpoint so that a crash at any moment leaves the older ones intact and no half one that counts.

    Temporary folder → contents on disk → rename → marker. A step that has a complete checkpoint keeps it. With a new
    one a run has gone on beyond its end: only now the summary of that goes. Call it on the main process. Raises
    `UsageError` if the disk refuses, the temporary folder removed.
    """
    progress = contents.progress
    path = checkpoint_path(folder, progress.step)
    if is_complete(path):
        return path
    unfinished = folder / f"{UNFINISHED}{path.name}"
    try:
        with writing(path):
            sweep(folder)
            unfinished.mkdir(parents=True)
            _write(unfinished, contents)
            for file in unfinished.iterdir():
                sync_to_disk(file)
            sync_to_disk(unfinished)
            unfinished.rename(path)
            sync_to_disk(folder)
            seal(path)
    except UsageError:
        for leftover in (unfinished, path):
            shutil.rmtree(leftover, ignore_errors=True)
        raise
    with writing(folder.parent):
        (folder.parent / SUMMARY).unlink(missing_ok=True)
    point(folder, progress)
    return path


def sweep(folder: Path) -> None:
    """Delete what a crash has left of checkpoints: those never finished, and those half deleted."""
    named = [path for path in folder.glob("step-*/") if path.name == checkpoint_path(folder, step_of(path)).name]
    for path in (*folder.glob(f"{UNFINISHED}step-*"), *(path for path in named if not is_complete(path))):
        shutil.rmtree(path)


def _write(path: Path, contents: Contents) -> None:
    save_file(contents.weights, path / WEIGHTS, metadata={"format": "pt"})
    if contents.average is not None:
        save_file(contents.average, path / AVERAGE, metadata={"format": "pt"})
    if contents.mark is not None:
        contents.mark.save(path / STREAM)
    for companion in contents.companions:
        companion.save_pretrained(path)
    try:
        torch.save({"optimizer": contents.optimizer, "scaler": contents.scaler}, path / OPTIMIZER)
    except RuntimeError as error:  # what torch makes of a failed write, in words about its own source
        raise OSError(f"{OPTIMIZER} could not be written to its end") from error
    state = {"progress": contents.progress.state(), "facts": vars(contents.facts)}
    (path / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def point(folder: Path, progress: Progress) -> None:
    """Let the links `last` and `best` lead to their checkpoints; readers see the old link or the new one."""
    for name, step in {"last": progress.step, "best": progress.best_step}.items():
        link, target = folder / f"{UNFINISHED}{name}", checkpoint_path(folder, step or 0)
        if is_complete(target):
            with suppress(OSError):  # a convenience that nothing here reads, and some file systems have no links
                link.unlink(missing_ok=True)
                link.symlink_to(target.name)
                link.replace(folder / name)


def load_weights(model: nn.Module, path: Path, *, averaged: bool = False) -> None:
    """Give a model the weights of a checkpoint, or their average where it has one and that is asked for.

    Raises `UsageError` if they are those of another model.
    """
    state = load_file(path / WEIGHTS)
    if averaged and (path / AVERAGE).exists():
        state |= load_file(path / AVERAGE)
    expected = own_weights(model)
    wrong = sorted(expected.keys() ^ state.keys()) or [n for n in state if state[n].shape != expected[n].shape]
    if wrong:
        raise UsageError(f"{path} holds another model: {', '.join(wrong[:5])}{' …' * (len(wrong) > 5)} do not match")
    if any(tensor.is_meta for tensor in expected.values()):
        fill(model, state)
        return
    shared_out = {name: share_out(tensor, expected[name]) for name, tensor in state.items()}
    model.load_state_dict(shared_out, strict=False)  # tied names are not in the file


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    scaler: Any,
    rows: TrainRows,
    facts: Facts,
) -> Progress:
    """Put model, optimizer, average, scaler and rows back where a checkpoint left them and return its counters.

    The settings of the optimizer (decay, betas) stay those of this run; an average that the checkpoint lacks begins
    with its weights. Nothing is unpickled that could run code. Raises `UsageError` if the checkpoint is of another
    model or order of rows, or if it is damaged.
    """
    check_intact(path)
    with reading(path):
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        differences, progress = _differences(state["facts"], vars(facts)), Progress(**state["progress"])
    if differences:
        raise UsageError(f"cannot go on from {path}: {'; '.join(differences)}; set them back or start a new run")
    with reading(path):
        load_weights(model, path)
        saved = torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True)
        if not load_optimizer(optimizer, saved["optimizer"]):
            raise UsageError(f"cannot go on from {path}: it trained other parameters, or with another optimizer")
        if average is not None:
            has_average = (path / AVERAGE).exists()
            average.load(load_file(path / AVERAGE) if has_average else average.parameters)
    if scaler is not None and saved["scaler"] is not None:
        scaler.load_state_dict(saved["scaler"])
    if isinstance(rows, Remembers) and (path / STREAM).exists():
        with reading(path):
            rows.go_to(path / STREAM)
    return progress


def check_intact(path: Path) -> None:
    """Raise `UsageError` for a checkpoint of which any file is not as it was written."""
    if what := damage(path):
        raise UsageError(
            f"cannot go on from {path}: it is damaged ({what}); delete this folder to go on from the one before it"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a damaged checkpoint raises into a `UsageError` that says how to go on without it."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # torch, json and safetensors each have kinds of their own
        what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no more is known'}"
        raise UsageError(
            f"cannot go on from {path}: it is damaged ({what}); delete this folder to go on from the one before it"
        ) from error


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = {
        "seed": "training.seed",
        "num_rows": "the number of training rows",
        "grouped_rows": "the number of rows that training.group_by_length sorts together",
    }
    return [f"{names[key]} was {saved[key]} and is {now[key]}" for key in names if saved[key] != now[key]]


def prune(folder: Path, *, keep_last: int, keep_every: int | None, best_step: int | None) -> None:
    """Delete what a crash has left, and all checkpoints but the newest `keep_last`, the best, and those of every
    `keep_every` steps.

    Raises `UsageError` if the disk refuses.
    """
    steps = complete_steps(folder)
    keep = {*steps[-keep_last:], best_step, *(step for step in steps if keep_every and step % keep_every == 0)}
    with writing(folder):
        sweep(folder)
        for step in steps:
            if step not in keep:
                path = checkpoint_path(folder, step)
                (path / SEAL).unlink()  # first, so that a crash midway leaves a folder that does not count
                shutil.rmtree(path)
