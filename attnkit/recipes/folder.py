"""What every training run keeps in its folder: resolved config and tokenizer first, model and summary at the end."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator, PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load_saved
from attnkit.config.runs import PretrainRun, keys_of
from attnkit.config.save import save
from attnkit.data.sources import DataConfig
from attnkit.errors import UsageError, first_line
from attnkit.files import strict_yaml
from attnkit.files.disk import check_free, claim, filling, replacing, seal
from attnkit.files.hub import open_repository, upload
from attnkit.files.saved import CHECKPOINTS, CONFIG, MODEL
from attnkit.files.text import json_text, read_json
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.recipes import manifest
from attnkit.recipes.card import write_run_card
from attnkit.recipes.inputs import absolute_data, is_path
from attnkit.training.checkpoint import check_intact, newest_complete
from attnkit.training.launch import check_shared_folder, on_main
from attnkit.training.loop import TrainResult
from attnkit.training.run_folder import (
    ENVIRONMENT,
    LOG,
    SUMMARY,
    TOKENIZER,
    check_output_folder,
    open_output_folder,
    refuse_foreign_files,
    writing,
)
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import Tracker, read_log

PUSH = "training.push_to_hub"
JUDGED_BY = {"training.best_metric", "training.best_mode"}
"""By what the evaluations of a run have been judged up to now."""
NOT_COMPARED = {"tracking", "grid", "imports"}
"""The sections of a run that may be others when it goes on."""
WITHOUT_EFFECT = {
    *("output_dir", "num_processes", "timeout", "resume", "overwrite", "from_checkpoint", "push_to_hub"),
    *("log_steps", "save_steps", "keep_last", "keep_every", "peak_flops", "activation_checkpointing"),
}
"""Of `training`: what changes no step of a run."""

Run = TypeVar("Run", PretrainRun, FinetuneRun)
Data = TypeVar("Data", bound=DataConfig)


def resolve(run: Run, model: PreTrainedModel) -> Run:
    """The run with the model as it was built, its number of steps, and data that are found from any folder.

    What a saved model says is not repeated.
    """
    training = replace(run.training, max_steps=run.training.num_steps)
    run = replace(run, data=absolute_data(run.data), training=training)
    if run.model.path is not None or not isinstance(model.config, AttnKitConfig):
        return run
    names = [entry.name for entry in fields(run.model) if entry.name != "path"]
    return replace(run, model=replace(run.model, **{name: vars(model.config)[name] for name in names}))


def check_same_run(run: PretrainRun | FinetuneRun) -> list[str]:
    """The settings of training with which a run goes on otherwise than it began, in words.

    Raises `UsageError` if the folder to go on in is damaged, or holds a run that differs in anything else.
    """
    folder = Path(run.training.output_dir)
    newest, path = newest_complete(folder / CHECKPOINTS), folder / CONFIG
    if newest is not None:
        read_log(folder / LOG)
    if newest is None and not path.is_file():
        return []
    if not path.is_file():
        raise UsageError(f"training.resume: {path} is missing: write it with the same command and --print_config")
    manifest.check_same_files(path.parent, setting="training.resume", otherwise="start a new run")
    saved, now = asdict(saved_run(run, folder)), asdict(run)
    changed = {
        f"{section}.{name}": f"{section}.{name} was {value!r} and is {now[section][name]!r}"
        for section in saved
        if section not in NOT_COMPARED
        for name, value in saved[section].items()
        if value != now[section][name]
    }
    others = [said for key, said in changed.items() if not key.startswith("training.") or key in JUDGED_BY]
    if others:
        raise UsageError(f"training.resume: {path} is of another run: {'; '.join(others)}")
    free = {f"training.{name}" for name in WITHOUT_EFFECT}
    return [said for key, said in changed.items() if key not in free] + other_processes(folder)


def other_processes(folder: Path) -> list[str]:
    """That a run goes on with more or fewer processes than it had, in words, as a step then has other rows."""
    now = PartialState().num_processes
    try:
        before = read_json(folder / ENVIRONMENT).get("processes", now)
    except (OSError, UsageError):  # written anew by each start
        return []
    return [f"the number of processes was {before} and is {now}"] if before != now else []


def saved_run(run: PretrainRun | FinetuneRun, folder: Path) -> PretrainRun | FinetuneRun:
    """The run of the same kind of which a folder holds the config. Raises `UsageError` for one that is damaged, or was
    cut short: all keys after the cut would have their defaults."""
    path = folder / CONFIG
    try:
        last, (_, lines) = list(keys_of(type(run)))[-1], strict_yaml.read(path)
        if last not in lines:
            raise UsageError(f"it ends before {last}")
        return load_saved(type(run), folder, imports=run.imports)
    except UsageError as error:
        raise UsageError(
            f"training.resume: {path} is damaged ({first_line(error)}): write it again with the same command and "
            "--print_config"
        ) from error


def check_places(training: TrainingConfig, *, accelerator: Accelerator) -> None:
    """Raise `UsageError` where a run cannot go on or must not write, in its folder or on the hub, before anything
    costly."""
    folder = training.output_dir

    def check() -> None:
        check_output_folder(folder, resume=training.resume, overwrite=training.overwrite)
        newest = newest_complete(Path(folder) / CHECKPOINTS) if training.resume else None
        if newest is not None:
            check_intact(newest)
        check_free(Path(folder), setting="training.output_dir")
        if training.push_to_hub is not None:
            open_repository(training.push_to_hub, key=PUSH)

    on_main(accelerator, check)
    check_shared_folder(accelerator, folder)


def say_changes(changes: list[str], *, tracker: Tracker) -> None:
    """Say with which settings a run goes on otherwise than it began."""
    if changes:
        tracker.note(f"going on otherwise than the run began: {'; '.join(changes)}")


@contextmanager
def claimed(folder: Path, *, accelerator: Accelerator) -> Iterator[None]:
    """The folder of a run, kept from other runs until this one is over."""
    with ExitStack() as stack:

        def take() -> None:
            with writing(folder):
                stack.enter_context(claim(folder, setting="training.output_dir"))

        on_main(accelerator, take)
        yield


def open_run(run: Run, tokenizer: PreTrainedTokenizerBase, *, data: manifest.Manifest) -> None:
    """Begin to write: the config of the run, its tokenizer and the manifest of its data.

    Raises `UsageError` if the folder is not to be written, or if what the run starts from would be deleted with it.
    """
    training, folder = run.training, Path(run.training.output_dir)
    starting_points = [
        ("model.path", run.model.path),
        ("tokenizer.path", run.tokenizer.path),
        ("training.from_checkpoint", training.from_checkpoint),
    ]
    for key, paths in vars(run.data).items():
        if is_path(key):
            entries = [paths] if isinstance(paths, str) else paths or []
            starting_points += [(f"data.{key}", path) for entry in entries for path in paths_in(entry)]
    for key, path in starting_points:
        if training.overwrite and path is not None and Path(path).resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"training.overwrite: {folder} holds {key}: choose another training.output_dir")
    check_output_folder(folder, resume=training.resume, overwrite=training.overwrite)
    refuse_foreign_files(folder)
    open_output_folder(folder, overwrite=training.overwrite)
    with writing(folder):
        save(run, folder)
        with filling(folder / TOKENIZER, setting="training.output_dir") as staging:
            tokenizer.save_pretrained(staging)
            seal(staging)
    manifest.save(data, folder)


def paths_in(entry: str | dict[str, Any]) -> list[str]:
    """The paths in an entry of `data.source`."""
    named = entry["source"] if isinstance(entry, dict) else entry
    return [named] if isinstance(named, str) else list(named)


def save_model(
    run: PretrainRun | FinetuneRun,
    model: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    summary: dict[str, Any],
    use: str | None = None,
) -> None:
    """Write the trained model, its tokenizer and its card beside it; `use` is the section of the card on how the model
    is used."""
    folder = Path(run.training.output_dir)
    # Whoever finds a config in the folder of a model takes it for whole.
    filled = filling(folder / MODEL, setting="training.output_dir", last="config.json")
    with writing(folder), filled as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        write_run_card(run, model, staging, summary=summary, use=use)


def said_of_stop(result: TrainResult) -> str | None:
    """Where and why a run was over before its time, if it was, and of which step the saved model is."""
    if result.stop_reason is None:
        return None
    saved = result.steps if result.best_step is None else result.best_step
    return f"{result.stop_reason}; the saved model is that of step {saved:,}"


def conclude(run: PretrainRun | FinetuneRun, summary: dict[str, Any], *, said: str) -> str:
    """Write `summary.json`, which marks a run as finished, so that all its other files are to be there; upload the
    model where `training.push_to_hub` asks for it; return what there is to say."""
    path = Path(run.training.output_dir) / SUMMARY
    with writing(path), replacing(path) as unfinished:
        unfinished.write_text(json_text(summary, indent=2) + "\n", encoding="utf-8")
    name = run.training.push_to_hub
    if name is None:
        return said
    return f"{said}\npublished   {upload(Path(run.training.output_dir) / MODEL, name, key=PUSH)}"
