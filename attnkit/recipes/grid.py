"""Several runs of one kind: seeds, learning rates and batch sizes, judged on the same held-out examples."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from attnkit.config.finetune_run import FinetuneRun, GridConfig
from attnkit.errors import UsageError
from attnkit.files.disk import replacing
from attnkit.files.text import read_json
from attnkit.recipes.folder import SUMMARY
from attnkit.training.run_folder import writing

GRID = "grid.json"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may differ between the groups of a grid; a group is one setting under several seeds."""

    learning_rate: float
    per_device_batch_size: int

    def __str__(self) -> str:
        return f"learning_rate {self.learning_rate}, batch {self.per_device_batch_size}"


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


def run_grid(run: FinetuneRun, finetune: Callable[[FinetuneRun], str]) -> str:
    """Finetune each run of the grid and return what they have reached, with the mean and deviation over seeds.

    With `training.resume` runs that have finished are not run again. Raises `UsageError` before the first run if one of
    them has impossible settings or a folder that is taken.
    """
    members = list(runs_of(run))
    problems = [problem for _, _, member in members for problem in member.training.problems()]
    taken = [member for _, _, member in members if (Path(member.training.output_dir) / SUMMARY).exists()]
    if taken and not (run.training.resume or run.training.overwrite):
        problems.append(
            f"training.output_dir: {taken[0].training.output_dir} already holds a run; go on with the grid by "
            "--resume, or choose another folder"
        )
    path = Path(run.training.output_dir) / GRID
    if path.exists() and not taken:
        problems.append(f"training.output_dir: {path} is of no grid whose runs are there: choose another folder")
    if problems:
        raise UsageError("\n".join(dict.fromkeys(problems)))
    figures: dict[Setting, dict[int, dict[str, float]]] = {}
    for setting, seed, member in members:
        summary = Path(member.training.output_dir) / SUMMARY
        if not (run.training.resume and summary.exists()):
            said = finetune(member)
            if not summary.exists():  # a signal ended it
                return said
        figures.setdefault(setting, {})[seed] = held_out_of(summary)
    report = summarize(figures)
    with writing(path), replacing(path) as unfinished:
        unfinished.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return say(report, path)


def held_out_of(summary: Path) -> dict[str, float]:
    """The held-out figures of a finished run. Raises `UsageError` for a damaged file."""
    figures = read_json(summary).get("held_out")
    if not isinstance(figures, dict):
        raise UsageError(f"{summary}: has no held-out figures: the file is damaged; delete it and run again")
    return figures


def summarize(figures: dict[Setting, dict[int, dict[str, float]]]) -> list[dict[str, Any]]:
    """Mean and deviation of each metric over the seeds of each setting, and of its difference to the first setting.

    Runs of equal seeds see the same weights, so differences are paired: the deviation that seeds cause in both is out.
    """
    first = next(iter(figures.values()))
    report = []
    for setting, by_seed in figures.items():
        names = next(iter(by_seed.values()))
        values = {name: [one[name] for one in by_seed.values()] for name in names}
        paired = {name: [one[name] - first[seed][name] for seed, one in by_seed.items()] for name in names}
        report.append(
            {
                **vars(setting),
                "seeds": list(by_seed),
                "metrics": {name: spread(found) for name, found in values.items()},
                "difference_to_first": {name: spread(found) for name, found in paired.items()},
            }
        )
    return report


def spread(values: list[float]) -> dict[str, float | None]:
    """Mean and standard deviation; one value has none."""
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else None}


def say(report: list[dict[str, Any]], path: Path) -> str:
    """The report for people."""
    lines = []
    for group in report:
        setting = Setting(**{name: group[name] for name in ("learning_rate", "per_device_batch_size")})
        lines.append(f"{setting}, seeds {', '.join(map(str, group['seeds']))}")
        for name, found in group["metrics"].items():
            change = group["difference_to_first"][name]
            beside = "" if group is report[0] else f"   {show(change)} to the first, paired"
            lines.append(f"  {name:<22}{show(found)}{beside}")
    return "\n".join([*lines, f"written to {path}"])


def show(found: dict[str, float | None]) -> str:
    """A mean and its deviation."""
    return f"{found['mean']:.4f}" + ("" if found["sd"] is None else f" ± {found['sd']:.4f}")
