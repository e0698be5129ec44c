"""What finished runs have reached, side by side."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnkit.config.load import listed
from attnkit.errors import UsageError, first_line
from attnkit.files.text import read_json
from attnkit.recipes import finetune, pretrain
from attnkit.recipes.judge import show
from attnkit.training.run_folder import SUMMARY


@dataclass(kw_only=True)
class SummaryRun:
    """Which runs are shown."""

    path: str | list[str]
    """Folders of runs, or folders that hold several."""


def summarize_runs(run: SummaryRun) -> str:
    """Each run below some folders in its own words, then the fine-tuned ones of one task in a table.

    Raises `UsageError` if below one of the folders no run has finished.
    """
    below = {path: sorted(Path(path).expanduser().rglob(SUMMARY)) for path in listed(run.path)}
    if without := [path for path, files in below.items() if not files]:
        raise UsageError(*(f"{it}: no finished run is in this folder: there is no {SUMMARY}" for it in without))
    summaries = {file: read_json(file) for files in below.values() for file in files}
    pretrained = {file: summary for file, summary in summaries.items() if "task" not in summary}
    finetuned = {file: summary for file, summary in summaries.items() if "task" in summary}
    blocks = [said_of(file, summary, pretrain.say) for file, summary in pretrained.items()]
    blocks += [said_of(file, summary, finetune.say) for file, summary in finetuned.items()]
    tasks: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for summary in finetuned.values():
        tasks[summary["task"], summary["predicts"]].append(summary)
    blocks += [table(f"{task}, {predicts}", rows) for (task, predicts), rows in tasks.items() if len(rows) > 1]
    return "\n\n".join(blocks)


def said_of(file: Path, summary: dict[str, Any], say: Callable[[dict[str, Any]], str]) -> str:
    """A run in its own words, below its folder. Raises `UsageError` for a file that is no summary of a run."""
    try:
        return f"{file.parent}\n{indent(say(summary))}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: is no summary of a run ({first_line(error)}): remove it, or run it again") from error


def table(title: str, summaries: list[dict[str, Any]]) -> str:
    """The metrics of runs of one task, a line each, above those of a guess that reads no text."""
    names = list(dict.fromkeys(name for it in summaries for name in it["held_out"]))
    lines = {f"  from {it['started_from'] or 'random weights'}": it["held_out"] for it in summaries}
    lines[f"  {summaries[0]['guess']}"] = summaries[0]["baseline"]
    width = max(map(len, [title, *lines]))
    head = title.ljust(width) + "".join(f"{name:>{width_of(name)}}" for name in names)
    body = [
        label.ljust(width)
        + "".join((show(values[name]) if name in values else "-").rjust(width_of(name)) for name in names)
        for label, values in lines.items()
    ]
    return "\n".join([head, *body])


def width_of(name: str) -> int:
    """The width of the column of a metric."""
    return max(12, len(name) + 2)


def indent(text: str) -> str:
    """Text two columns to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())
