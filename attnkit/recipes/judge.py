"""How good a fine-tuned model is on some examples: its answers, the figures, and the files that show both."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from accelerate import Accelerator
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from attnkit.errors import UsageError, batch_problems
from attnkit.files.disk import replacing
from attnkit.files.text import json_text
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.tasks import Answer, Example, Task
from attnkit.tasks.examples import KEPT
from attnkit.tasks.rows import Row, predicts
from attnkit.training.evaluation import read_rows
from attnkit.training.run_folder import writing

LABELLED = 30  # classes of which a picture can hold the names
NUMBERED = 12  # and of which it can hold a number for each pair
WIDTH = 30  # characters of such a name


@dataclass(kw_only=True)
class BatchConfig:
    """How many rows are evaluated together."""

    per_device_batch_size: int = 16
    """Rows per process and forward pass."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        return batch_problems("training.per_device_batch_size", self.per_device_batch_size)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a model says to all examples of a split, and how good that is."""

    examples: Sequence[Example]
    answers: list[Answer]
    figures: dict[str, float]


def make_rows(
    task: Task,
    examples: Sequence[Example],
    *,
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig,
    sequence_length: int,
    setting: str,
) -> list[Row]:
    """The rows of some examples, whose source `setting` gives.

    Raises `UsageError` if texts have no token, or none that the model pools at, or if no row has anything to predict.
    """
    smallest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if sequence_length < smallest:
        raise UsageError(
            f"data.sequence_length: {sequence_length} leaves no room for text: set it to {smallest} or more"
        )
    rows = task.encode(examples, tokenizer, max_length=sequence_length)
    empty = sum(not row["input_ids"] for row in rows)
    if empty:
        raise UsageError(f"{setting}: the tokenizer makes no token of {empty} texts: remove them")
    if rows and not any(map(predicts, rows)):
        raise UsageError(
            f"{setting}: nothing that is to be predicted is left of its {len(rows):,} rows in data.sequence_length "
            f"{sequence_length}: raise it, or shorten the texts"
        )
    pools_at_end = isinstance(config, AttnKitConfig) and config.pooling == "eos" and not task.is_generated
    if pools_at_end and not all(tokenizer.eos_token_id in np.ravel(row["input_ids"]) for row in rows):
        raise UsageError(
            "model.pooling: 'eos' reads the state of an end token, and this tokenizer puts none after a text: choose "
            "'last', 'mean' or 'first'"
        )
    return rows


def judge(
    model: nn.Module,
    task: Task,
    *,
    examples: Sequence[Example],
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    accelerator: Accelerator,
) -> Judged:
    """The answers of a model and their figures, the loss first. Equal on every process; see `evaluation.read_rows`."""
    collate = task.collator(tokenizer)
    loss, labels, outcomes = read_rows(
        model, rows, collate=collate, batch_size=batch_size, accelerator=accelerator, outcomes=task.outcomes
    )
    answers = task.answers(examples, rows=rows, outcomes=outcomes)
    return Judged(examples=examples, answers=answers, figures={"loss": loss / labels, **task.score(examples, answers)})


def write_predictions(
    path: Path, task: Task, *, examples: Sequence[Example], answers: Sequence[Answer], setting: str
) -> None:
    """One line of JSON per example: `data.kept_columns` and what was asked, by the names of their columns, what is true
    (`gold`, where it is known) and what is predicted.

    `setting` is the one that says where the file is.
    """
    asked = {role: it.column for role, it in task.fields().items() if not it.is_answer}
    answered = task.fields().keys() - asked.keys()
    with writing(path, setting=setting):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            for example, answer in zip(examples, answers, strict=True):
                line = {**example.get(KEPT, {}), **{column: example[role] for role, column in asked.items()}}
                is_answered = bool(answered & example.keys()) or "likelihood" in answer
                line |= ({"gold": task.gold(example)} if is_answered else {}) | answer
                file.write(json_text(line) + "\n")


@mpl.rc_context({"text.parse_math": False})  # a $ in the name of a class is a sign like others
def plot_report(path: Path, task: Task, judged: Judged) -> None:
    """Draw the figures with their intervals, and beside them which class was taken for which, into a PNG file."""
    has_classes = bool(task.names()) and "label" in task.judged
    drawing = Figure(figsize=(11 if has_classes else 6, 4.5), layout="constrained")
    FigureCanvasAgg(drawing)  # no display, and no state that other plots share
    bars, *rest = drawing.subplots(1, 2 if has_classes else 1, squeeze=False)[0]
    intervals = task.intervals(judged.examples, judged.answers)
    values = np.array([judged.figures[name] for name in intervals])
    ends = np.array(list(intervals.values())).reshape(-1, 2)
    bars.barh(list(intervals), values, xerr=np.clip([values - ends[:, 0], ends[:, 1] - values], 0, None), capsize=4)
    bars.invert_yaxis()
    bars.set_xlabel("held-out, with 95% intervals")
    for axes in rest:
        true = [task.gold(example) for example in judged.examples]
        said = [answer["prediction"] for answer in judged.answers]
        shares = confusion_matrix(true, said, labels=task.names(), normalize="true")
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set(xlabel="predicted", ylabel="true", title="share of each true class")
        if len(task.names()) <= NUMBERED:
            for (row, column), share in np.ndenumerate(shares):
                color = "white" if share > 0.5 else "black"
                axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=color, fontsize=7)
        if len(task.names()) <= LABELLED:
            short = [name if len(name) <= WIDTH else f"{name[:WIDTH]}…" for name in task.names()]
            axes.set_xticks(range(len(short)), short, rotation=90, fontsize=7)
            axes.set_yticks(range(len(short)), short, fontsize=7)
    with writing(path), replacing(path) as unfinished, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # labels may be in any script
        drawing.savefig(str(unfinished), dpi=120, format="png")


def show(value: float | None) -> str:
    """A figure with as many digits as do not depend on how rows were put into batches."""
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.6g}"


def say_figures(figures: dict[str, float], intervals: dict[str, Any], *, baseline: dict[str, float], guess: str) -> str:
    """Figures on one line, each with its interval and the baseline where there is one."""
    said = []
    for name, value in figures.items():
        low, high = intervals.get(name, (None, None))
        around = "" if low is None else f" [{show(low)}, {show(high)}]"
        said.append(
            f"{name} {show(value)}{around}" + (f" ({guess}: {show(baseline[name])})" if name in baseline else "")
        )
    return ", ".join(said)
