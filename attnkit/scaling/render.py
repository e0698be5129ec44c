"""Figures as text for people and as JSON; the size table as CSV, Markdown, LaTeX and a picture too."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedConfig

from attnkit.files.text import json_text
from attnkit.scaling.table import Line
from attnkit.scaling.units import count, duration, power

WIDTH = 80  # columns of a terminal


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a job of `attnkit scale` has found, and what it tells people of it."""

    figures: Any
    """A dataclass, or a mapping or sequence of figures."""
    text: str
    others: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """The same in other formats."""

    def written(self, form: str) -> str:
        """The text, all figures unrounded as JSON, or one of the other formats."""
        if form == "json":
            return json_text(plain(self.figures), indent=2)
        return self.others[form]() if form in self.others else self.text


def plain(value: Any) -> Any:
    """A value in the types of JSON: of a dataclass its fields and properties."""
    if isinstance(value, PreTrainedConfig):
        return value.to_diff_dict()
    if is_dataclass(value):
        derived = [name for name, it in vars(type(value)).items() if isinstance(it, property)]
        return plain(vars(value) | {name: getattr(value, name) for name in derived})
    if isinstance(value, Mapping):
        return {str(name): plain(it) for name, it in value.items()}
    if isinstance(value, list | tuple):
        return [plain(it) for it in value]
    return value


COLUMNS: dict[str, Callable[[Line], str]] = {
    "Model": lambda line: line.model,
    "Year": lambda line: str(line.year),
    "Layers": lambda line: str(line.layers),
    "Width": lambda line: str(line.width),
    "Heads": lambda line: f"{line.table_heads} {line.heads}".strip(),
    "Parameters": lambda line: f"{line.parameters:,}",
    "Table": lambda line: line.table_parameters,
    "Error": lambda line: f"{line.error:+.1%}",
    "Data": lambda line: line.data,
    "Tokens": lambda line: count(line.tokens),
    "6ND": lambda line: power(line.flops_6nd),
    "Exact": lambda line: power(line.flops_exact),
    "Useful": lambda line: power(line.flops_causal_useful),
    "Hardware": lambda line: power(line.flops_hardware),
    "Published": lambda line: power(line.published_flops),
    "Devices": lambda line: line.devices,
    "Predicted": lambda line: duration(line.predicted_hours),
    "Table time": lambda line: duration(line.table_hours),
    "MFU": lambda line: "" if line.implied_mfu is None else f"{line.implied_mfu:.1%}",
    "Memory": lambda line: "" if line.memory_gib is None else f"{line.memory_gib:,.1f} GiB",
    "Fewest": lambda line: "" if line.fewest_devices is None else str(line.fewest_devices),
}
SPLITS = (0, 9, 15, len(COLUMNS))  # where tables for people begin and end; each repeats the model


def rows_of(lines: Sequence[Line], names: Sequence[str]) -> list[list[str]]:
    """The cells of some columns."""
    return [[COLUMNS[name](line) for name in names] for line in lines]


def grid(names: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> str:
    """A rich table as text: the first column to the left, the others to the right; what is too wide is folded."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=WIDTH, markup=False, emoji=False)
    console.print(table)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue().rstrip("\n")


def folded(*lines: str) -> str:
    """Sentences on lines of their own, that fit a terminal."""
    return "\n".join(fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines)


def for_people(lines: Sequence[Line], *, mfu: float) -> str:
    """Three tables, the legend and the notes."""
    names = list(COLUMNS)
    parts = [["Model", *names[max(start, 1) : end]] for start, end in pairwise(SPLITS)]
    tables = "\n\n".join(grid(part, rows_of(lines, part)) for part in parts)
    return "\n".join([tables, "", folded(*legend(mfu)), "Notes", folded(*notes_of(lines))])


def legend(mfu: float) -> list[str]:
    """What the columns mean."""
    return [
        "Table, Error, Table time: what the table of sizes that is recomputed here states, and how far parameters are "
        "from it. ?: not published",
        "Exact, Useful, Hardware: FLOPs of training by convention",
        f"Predicted: at {mfu:.0%} MFU. MFU: what the table's time implies; both of the peak in the precision of the "
        "time, fp32 on P100 and 16 bits on others",
        "Memory: one row of text on one device, mixed precision, AdamW, recomputed blocks. Fewest: devices of that "
        "kind under ZeRO-3 (V100 where the table names none)",
    ]


def notes_of(lines: Sequence[Line]) -> list[str]:
    """The notes of all models."""
    return [f"{line.model}: {note}" for line in lines for note in line.notes]


def as_csv(lines: Sequence[Line]) -> str:
    """All figures, unrounded, with the notes in the last column."""
    records = [asdict(line) | {"notes": " | ".join(line.notes)} for line in lines]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def as_markdown(lines: Sequence[Line], *, mfu: float) -> str:
    """The columns for people, and legend and notes below."""
    names = list(COLUMNS)
    rows = [names, ["---"] + ["---:"] * (len(names) - 1), *rows_of(lines, names)]
    below = [f"- {said}" for said in (*legend(mfu), *notes_of(lines))]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *below])


def as_latex(lines: Sequence[Line], *, mfu: float) -> str:
    """The columns for people as a tabular, and legend and notes as paragraphs below."""
    names = list(COLUMNS)
    body = [" & ".join(escape(cell) for cell in row) + r" \\" for row in rows_of(lines, names)]
    head = " & ".join(escape(name) for name in names) + r" \\"
    columns = "l" + "r" * (len(names) - 1)
    table = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return "\n".join([*table, *(rf"\par {escape(said)}" for said in (*legend(mfu), *notes_of(lines)))])


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("~", r"$\sim$")


def draw_table(lines: Sequence[Line], path: Path) -> None:
    """Parameters over years, and compute over parameters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter([line.year for line in lines], [line.parameters for line in lines])
    left.set(yscale="log", xlabel="year", ylabel="parameters", xticks=sorted({line.year for line in lines}))
    known = [line for line in lines if line.flops_exact is not None]
    right.scatter([line.parameters for line in known], [line.flops_exact for line in known])
    right.set(xscale="log", yscale="log", xlabel="parameters", ylabel="FLOPs of training (exact)")
    for axis, points in ((left, lines), (right, known)):
        axis.margins(x=0.25)
        for index, line in enumerate(points):
            place: Any = (line.year, line.parameters) if axis is left else (line.parameters, line.flops_exact)
            above = 4 if index % 2 else -10  # neighbours in the table may lie on each other
            axis.annotate(
                line.model, place, xytext=(5, above), textcoords="offset points", fontsize=8, parse_math=False
            )
    figure.savefig(path, dpi=150)
