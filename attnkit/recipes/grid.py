"""Several runs of one kind: seeds, learning rates and batch sizes, judged on the same held-out examples."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from accelerate import PartialState

from attnkit.config.finetune_run import FinetuneRun, GridConfig
from attnkit.errors import NotFiniteError, UsageError
from attnkit.files.disk import replacing
from attnkit.files.saved import CONFIG
from attnkit.files.text import json_text, read_json
from attnkit.recipes.folder import check_same_run, saved_run
from attnkit.training.run_folder import SUMMARY, writing

GRID = "grid.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may differ between the groups of a grid; a group is one setting under several seeds."""

    learning_rate: float
    per_device_batch_size: int

    def __str__(self) -> str:
        return f"learning_rate {self.learning_rate}, batch {self.per_device_batch_size}"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A finished run of a group."""

    seed: int
    folder: Path
    figures: dict[str, dict[str, float]]
    """By split: `held_out` and perhaps `test`."""


def runs_of(run: FinetuneRun) -> Iterator[tuple[Setting, int, FinetuneRun]]:
    """The runs of a grid, each in a folder of its own."""
    training, grid = run.training, run.grid
    rates = grid.learning_rates or [training.learning_rate]
    sizes = grid.batch_sizes or [training.per_device_batch_size]
    for rate, size in product(rates, sizes):
        setting = Setting(learning_rate=rate, per_device_batch_size=size)
        for seed in grid.seeds or [training.seed]:
            folder = Path(training.output_dir) / f"rate{rate}-batch{size}-seed{seed}"
            changed = replace(training, **vars(setting), seed=seed, output_dir=str(folder))
            yield setting, seed, replace(run, training=changed, grid=GridConfig())


def run_grid(
    run: FinetuneRun, finetune: Callable[[FinetuneRun], str], *, resolved: Callable[[FinetuneRun], FinetuneRun]
) -> str:
    """Finetune each run of the grid and return what they have reached, with the mean and deviation over seeds.

    A setting of which a run comes to no finite number has no figures; the others go on. With `training.resume` runs
    that have finished are not run again; `resolved` says what one would be now. Raises `UsageError` before the first
    run if one of them has impossible settings or a folder that is taken, or has begun with other settings or data, and
    after the last if no setting has figures.
    """
    members = list(runs_of(run))
    check_folders(run, [member for _, _, member in members])
    if run.training.resume:
        check_begun([member for _, _, member in members], resolved=resolved)
    groups: dict[Setting, list[Member]] = {}
    failed: dict[Setting, dict[int, str]] = {}
    splits = ["held_out"] + ["test"] * (run.data.test_source is not None)
    for setting, seed, member in members:
        summary = Path(member.training.output_dir) / SUMMARY
        try:
            if not (member.training.resume and has_ended(member)):
                said = finetune(member)
                if not has_ended(member):  # a signal ended it
                    return said
            figures = figures_of(summary, splits)
            groups.setdefault(setting, []).append(Member(seed=seed, folder=summary.parent, figures=figures))
        except NotFiniteError as error:
            logger.warning("%s: %s; the grid goes on without it", summary.parent, error)
            failed.setdefault(setting, {})[seed] = str(error)
    report = summarize(groups, failed, best_metric=run.training.best_metric, best_mode=run.training.best_mode)
    path = Path(run.training.output_dir) / GRID
    if PartialState().is_main_process:
        with writing(path), replacing(path) as unfinished:
            unfinished.write_text(json_text(report, indent=2) + "\n", encoding="utf-8")
    return say(report, path)


def check_folders(run: FinetuneRun, members: Sequence[FinetuneRun]) -> None:
    """Raise `UsageError` for a grid one of whose runs has impossible settings, or a folder that is taken."""
    problems = [problem for member in members for problem in member.training.problems()]
    taken = [folder for member in members if (folder := Path(member.training.output_dir) / SUMMARY).exists()]
    if taken and not (run.training.resume or run.training.overwrite):
        problems.append(
            f"training.output_dir: {taken[0].parent} already holds a run; go on with the grid by --resume, or choose "
            "another folder"
        )
    path = Path(run.training.output_dir) / GRID
    if path.is_dir() or (path.exists() and not taken):
        problems.append(f"training.output_dir: {path} is of no grid whose runs are there: choose another folder")
    if run.training.push_to_hub is not None:
        problems.append(
            "training.push_to_hub: a grid has a model for each of its runs, and one repository holds one: leave it "
            "out, and give it to a run with the best setting"
        )
    if problems:
        raise UsageError(*dict.fromkeys(problems))


def has_ended(run: FinetuneRun) -> bool:
    """Whether a run has left the figures of all its steps: those of fewer stay until it has a newer checkpoint."""
    folder = Path(run.training.output_dir)
    if not (folder / SUMMARY).exists() or saved_run(run, folder).training.num_steps != run.training.num_steps:
        return False
    summary = read_json(folder / SUMMARY)
    return bool(summary.get("stopped_early")) or summary.get("steps") == run.training.num_steps


def check_begun(members: list[FinetuneRun], *, resolved: Callable[[FinetuneRun], FinetuneRun]) -> None:
    """Raise `UsageError` where a run of the grid has begun with other settings, or on other files, than it would now:
    its figures would be reported as those of what is asked for. It may go on to more steps."""
    begun = [member for member in members if (Path(member.training.output_dir) / CONFIG).exists()]
    if not begun:
        return
    whole = resolved(begun[0])  # they differ in nothing but `training`
    for member in begun:
        training = replace(member.training, max_steps=member.training.num_steps)
        changed = check_same_run(replace(whole, training=training))
        if others := [said for said in changed if not said.startswith("training.max_steps ")]:
            raise UsageError(
                f"training.resume: {training.output_dir} has begun otherwise: {'; '.join(others)}: set it back, or "
                "choose another training.output_dir"
            )


def figures_of(summary: Path, splits: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of a finished run by split. Raises `UsageError` for a damaged file, for a run that judged other
    splits, and `NotFiniteError` for figures that have no mean."""
    found = read_json(summary)
    for split in splits:
        if not isinstance(found.get(split), dict):
            name = split.replace("_", "-")
            raise UsageError(
                f"{summary}: has no {name} figures: it is damaged, or of a run without data.{split}_source; delete "
                f"{summary.parent} and run again"
            )
        if infinite := [metric for metric, value in found[split].items() if value is None]:
            raise NotFiniteError(f"{summary}: {', '.join(infinite)} of {split} is not finite")
    return {split: found[split] for split in splits}


def summarize(
    groups: dict[Setting, list[Member]], failed: dict[Setting, dict[int, str]], *, best_metric: str, best_mode: str
) -> dict[str, Any]:
    """Mean and deviation of each metric over the seeds of each setting, and of its difference to the first setting.

    Runs of equal seeds see the same weights, so differences are paired: the deviation that seeds cause in both is out.
    The best setting is that of the best mean of `best_metric` on held-out examples: test examples only report. A
    setting of which a run `failed` has no mean, but the reason by seed. Raises `UsageError` if all have.
    """
    groups = {setting: members for setting, members in groups.items() if setting not in failed}
    if not groups:
        setting, reasons = next(iter(failed.items()))
        raise UsageError(f"grid: no setting has figures; {setting}: {next(iter(reasons.values()))}")
    settings = [
        {
            **vars(setting),
            "seeds": [member.seed for member in members],
            "runs": [str(member.folder) for member in members],
            **over_seeds(members),
            "difference_to_first": over_seeds(members, beside=next(iter(groups.values()))),
        }
        for setting, members in groups.items()
    ]
    choose = min if best_mode == "min" else max
    without = [{**vars(setting), "reasons": reasons} for setting, reasons in failed.items()]
    report = {"best_metric": best_metric, "settings": settings, "without_figures": without}
    best = choose(settings, key=lambda group: score_of(group, report))
    return {**report, "best": settings.index(best)}


def score_of(group: dict[str, Any], report: dict[str, Any]) -> float:
    """The mean by which the settings of a report are compared."""
    return float(group["held_out"][report["best_metric"]]["mean"])


def over_seeds(members: list[Member], *, beside: Sequence[Member] = ()) -> dict[str, dict[str, dict[str, Any]]]:
    """Mean and deviation by split and metric, of the figures or of how far they are from those of the same seeds."""
    return {
        split: {
            name: spread(
                [
                    member.figures[split][name] - (beside[place].figures[split][name] if beside else 0)
                    for place, member in enumerate(members)
                ]
            )
            for name in names
        }
        for split, names in members[0].figures.items()
    }


def spread(values: list[float]) -> dict[str, float | None]:
    """Mean and standard deviation; one value has none."""
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else None}


def say(report: dict[str, Any], path: Path) -> str:
    """The report for people."""
    lines, settings = [], report["settings"]
    for group in report["without_figures"]:
        lines.append(f"{setting_of(group)}: no figures")
        lines += [f"  seed {seed}: {reason}" for seed, reason in group["reasons"].items()]
    for group in settings:
        lines.append(f"{setting_of(group)}, seeds {', '.join(map(str, group['seeds']))}")
        for split, differences in group["difference_to_first"].items():
            for name, found in group[split].items():
                label = f"{split.replace('_', '-')} {name}"
                beside = "" if group is settings[0] else f"   {show(differences[name])} to the first, paired"
                lines.append(f"  {label:<27}{show(found)}{beside}")
        lines += [f"  {'run':<27}{folder}" for folder in group["runs"]]
    if len(settings) > 1:
        chosen = f"{setting_of(settings[report['best']])}, by the mean of held-out {report['best_metric']}"
        equal = [group for group in settings if score_of(group, report) == score_of(settings[report["best"]], report)]
        tie = f", the first of {len(equal)} with equal ones" if len(equal) > 1 else ""
        lines.append(f"best of these: {chosen}{tie}")
    return "\n".join([*lines, f"written to {path}"])


def setting_of(group: dict[str, Any]) -> Setting:
    """The setting of a group of the report."""
    return Setting(**{it.name: group[it.name] for it in fields(Setting)})


def show(found: dict[str, float | None]) -> str:
    """A mean and its deviation."""
    return f"{found['mean']:.4f}" + ("" if found["sd"] is None else f" ± {found['sd']:.4f}")
