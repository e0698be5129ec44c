"""The output folder of a run: who may write into it, and what a disk error says."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnkit.errors import UsageError
from attnkit.files import strict_yaml
from attnkit.files.disk import is_of_disk, said_by_disk
from attnkit.files.saved import CHECKPOINTS, CONFIG, MODEL

LOG = "log.jsonl"
ENVIRONMENT = "environment.json"
RUN_MARKS = (CHECKPOINTS, LOG)  # a folder with one of these holds a run
PREDICTIONS, REPORT, ADAPTER = "predictions", "report.png", "adapter"
DATA_MANIFEST, PAGE = "data_manifest.json", "report.html"
SUMMARY, LOSS_CURVE, TOKENIZER = "summary.json", "loss.png", "tokenizer"
BEGINNING = {CONFIG, TOKENIZER, ENVIRONMENT, DATA_MANIFEST}  # what a run writes before there is one
PRODUCTS = (LOSS_CURVE, SUMMARY, MODEL, PREDICTIONS, REPORT, PAGE, ADAPTER)
# What an overwrite deletes, in this order: one that is cut short leaves a folder that can be overwritten again.
RUN_FILES = (TOKENIZER, ENVIRONMENT, DATA_MANIFEST, *PRODUCTS, *RUN_MARKS, CONFIG)
RUN_FOLDERS = {TOKENIZER, MODEL, PREDICTIONS, ADAPTER, CHECKPOINTS}  # the others are files


def holds_run(output_dir: str | Path) -> bool:
    """Whether a run has begun in this folder."""
    return any((Path(output_dir) / mark).exists() for mark in RUN_MARKS)


def nearest_existing(folder: str | Path) -> Path:
    """A folder, or the nearest around it that is there."""
    return next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())


def check_output_folder(output_dir: str | Path, *, resume: bool, overwrite: bool) -> None:
    """Raise `UsageError` if a run cannot or must not write into this folder; change nothing.

    Refused are a folder that holds a run, unless it is to be resumed or overwritten; one in which a file stands where a
    run has a folder, or the other way round; one inside a run; a path that is a file; and a place that cannot be
    written. Meant for the time before anything costly is done.
    """
    folder = Path(output_dir)
    if resume and overwrite:
        raise UsageError("training.resume and training.overwrite exclude each other: set one of them to false")
    with writing(folder):  # a folder that may not even be looked into
        existing, swapped = nearest_existing(folder), swapped_files(folder)
        taken = holds_run(folder) and not (resume or overwrite)
        # A folder that happens to have such a name among others is none: a run has its config too.
        around = next((it for it in folder.resolve().parents if holds_run(it) and (it / CONFIG).is_file()), None)
    if swapped:
        raise UsageError(
            f"training.output_dir: {' and '.join(swapped)}; remove what is there, or choose another folder"
        )
    if taken:
        raise UsageError(
            f"training.output_dir: {folder} already holds a run; go on with it by --resume, delete it by --overwrite, "
            "or choose another folder"
        )
    if around is not None:
        raise UsageError(f"training.output_dir: {folder} is inside the run {around}; choose a folder beside it")
    if not existing.is_dir():
        raise UsageError(f"training.output_dir: {existing} is a file; choose a folder")
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UsageError(f"training.output_dir: {existing} is not writable; choose a folder that is")


def swapped_files(folder: Path) -> list[str]:
    """What is a file where a run has a folder, or a folder where it has a file, in words."""
    there = [folder / name for name in RUN_FILES if os.path.lexists(folder / name)]
    return [
        f"{path} is no folder" if path.name in RUN_FOLDERS else f"{path} is a folder"
        for path in there
        if path.is_dir() is not (path.name in RUN_FOLDERS)
    ]


def refuse_foreign_files(folder: Path) -> None:
    """Raise `UsageError` if the folder has files of the names that a run would write, but not the config of a run,
    or too much for the beginning of a run that was stopped before it held anything."""
    present = [name for name in RUN_FILES if (folder / name).exists()]
    begun = holds_run(folder) or BEGINNING.issuperset(present)
    foreign = [] if begun and is_config_of_run(folder / CONFIG) else present
    if foreign:
        raise UsageError(
            f"training.output_dir: {folder} holds no run, but has {', '.join(foreign)}, which a run would write over; "
            "choose another folder"
        )


def is_config_of_run(path: Path) -> bool:
    """Whether this is the config that a run saved."""
    try:
        mapping, _ = strict_yaml.read(path)
    except UsageError:
        return False
    return isinstance(mapping.get("training"), dict) and "output_dir" in mapping["training"]


def open_output_folder(output_dir: str | Path, *, overwrite: bool) -> Path:
    """Make the folder, without the run it holds when that is to be overwritten; on the main process only.

    Files that no run wrote stay. Raises `UsageError` if the disk refuses.
    """
    folder = Path(output_dir)
    with writing(folder):
        if overwrite and holds_run(folder):
            for name in RUN_FILES:
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(path: str | Path, *, setting: str = "training.output_dir") -> Iterator[None]:
    """Turn what a full, read-only or missing disk raises into a `UsageError` that names the path, and its setting."""
    try:
        yield
    except Exception as error:
        if not is_of_disk(error):
            raise
        raise UsageError(
            f"cannot write {path}: {said_by_disk(error)}; free space or choose another {setting}"
        ) from error
