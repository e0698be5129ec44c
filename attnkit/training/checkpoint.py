"""Checkpoints: complete or not there at all.

    <output_dir>/checkpoints/step-000100/
        model.safetensors, config.json   the weights; `from_pretrained` of the model's class reads the folder
        optimizer.pt                     moments, and the scale of fp16 gradients; read with `weights_only=True`
        state.json                       counters, best score, position in the data, and the run's facts
        COMPLETE                         written last: a folder without it does not count

Random numbers need no file: they are a function of the seed and the position in the data (`randomness.py`).
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from attnkit.errors import UsageError
from attnkit.files.disk import sync_to_disk
from attnkit.training.progress import Progress
from attnkit.training.run_folder import writing

MARKER = "COMPLETE"
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
UNFINISHED = ".unfinished-"
NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What must be the same when a run goes on, or the rows it meets would not be those of one run."""

    seed: int
    num_rows: int


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lives."""
    return folder / f"step-{step:06d}"


def complete_steps(folder: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    names = [match for path in folder.glob("step-*/") if (match := NAME.fullmatch(path.name))]
    return sorted(int(match[1]) for match in names if (folder / match[0] / MARKER).exists())


def newest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None."""
    steps = complete_steps(folder)
    return checkpoint_path(folder, steps[-1]) if steps else None


def save_checkpoint(
    folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, progress: Progress, facts: Facts
) -> Path:
    """Write a checkpoint so that a crash at any moment leaves the older ones intact and no half one that counts.

    Temporary folder → contents on disk → rename → marker. `model` is the bare model, `scaler` the fp16 gradient scaler
    or None. A step that has a complete checkpoint keeps it. Call it on the main process. Raises `UsageError` if the
    disk refuses, the temporary folder removed.
    """
    path = checkpoint_path(folder, progress.step)
    if (path / MARKER).exists():
        return path
    unfinished = folder / f"{UNFINISHED}{path.name}"
    try:
        with writing(path):
            for leftover in (*folder.glob(f"{UNFINISHED}step-*"), path):
                if leftover.exists():
                    shutil.rmtree(leftover)
            unfinished.mkdir(parents=True)
            _write_contents(unfinished, model=model, optimizer=optimizer, scaler=scaler, progress=progress, facts=facts)
            for file in unfinished.iterdir():
                sync_to_disk(file)
            sync_to_disk(unfinished)
            unfinished.rename(path)
            sync_to_disk(folder)
            (path / MARKER).touch()
            sync_to_disk(path)
    except UsageError:
        for leftover in (unfinished, path):
            shutil.rmtree(leftover, ignore_errors=True)
        raise
    _point(folder, "last", path)
    if progress.best_step == progress.step:
        _point(folder, "best", path)
    return path


def _write_contents(
    path: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, progress: Progress, facts: Facts
) -> None:
    save_file(weights(model), path / WEIGHTS, metadata={"format": "pt"})
    if isinstance(model, PreTrainedModel):
        config = deepcopy(model.config)
        config.architectures = [type(model).__name__]  # as `save_pretrained` of the model has it
        config.save_pretrained(path)
    moments = {"optimizer": optimizer.state_dict(), "scaler": None if scaler is None else scaler.state_dict()}
    try:
        torch.save(moments, path / OPTIMIZER)
    except RuntimeError as error:  # what torch makes of a failed write
        raise OSError(str(error).splitlines()[0]) from error
    state = {"progress": progress.state(), "facts": vars(facts)}
    (path / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's state by name; tensors that are tied appear once, under the first of their names."""
    state: dict[str, torch.Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            state[name] = tensor.contiguous()
    return state


def _point(folder: Path, name: str, target: Path) -> None:
    """Let the link `name` lead to a checkpoint; readers see the old link or the new one."""
    link = folder / f"{UNFINISHED}{name}"
    with suppress(OSError):  # a convenience that nothing here reads, and some file systems have no links
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(folder / name)


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a model the weights of a checkpoint. Raises `UsageError` if they are those of another model."""
    state = load_file(path / WEIGHTS)
    expected = weights(model)
    wrong = sorted(expected.keys() ^ state.keys()) or [n for n in state if state[n].shape != expected[n].shape]
    if wrong:
        raise UsageError(f"{path} holds another model: {', '.join(wrong[:5])}{' …' * (len(wrong) > 5)} do not match")
    model.load_state_dict(state, strict=False)  # tied names are not in the file


def load_checkpoint(
    path: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, facts: Facts
) -> Progress:
    """Put model, optimizer and scaler back where a checkpoint left them and return its counters.

    The settings of the optimizer (decay, betas) stay those of this run. Nothing is unpickled that could run code.
    Raises `UsageError` if the checkpoint is of another model, seed or number of rows.
    """
    with reading(path):
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        differences, progress = _differences(state["facts"], vars(facts)), Progress(**state["progress"])
    if differences:
        raise UsageError(f"cannot go on from {path}: {'; '.join(differences)}; set them back or start a new run")
    with reading(path):
        load_weights(model, path)
        moments = torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True)
        saved_names = [group["param_names"] for group in moments["optimizer"]["param_groups"]]
    groups = optimizer.state_dict()["param_groups"]
    if saved_names != [group["param_names"] for group in groups]:
        raise UsageError(f"cannot go on from {path}: it trained other parameters than this run")
    optimizer.load_state_dict({"state": moments["optimizer"]["state"], "param_groups": groups})
    if scaler is not None and moments["scaler"] is not None:
        scaler.load_state_dict(moments["scaler"])
    return progress


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
    names = {"seed": "training.seed", "num_rows": "the number of training rows"}
    return [f"{names[key]} was {saved[key]} and is {now[key]}" for key in names if saved[key] != now[key]]


def prune(folder: Path, *, keep_last: int, best_step: int | None) -> None:
    """Delete all checkpoints but the newest `keep_last` and the best. Raises `UsageError` if the disk refuses."""
    steps = complete_steps(folder)
    keep = {*steps[-keep_last:], best_step}
    with writing(folder):
        for step in steps:
            if step not in keep:
                path = checkpoint_path(folder, step)
                (path / MARKER).unlink()  # first, so that a crash midway leaves a folder that does not count
                shutil.rmtree(path)
