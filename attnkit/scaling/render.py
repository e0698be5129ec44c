"""The size table and other figures as text: for people, JSON, CSV, Markdown and LaTeX, and as a picture."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from attnkit.scaling.table import Line
from attnkit.scaling.units import count, duration, power

WIDTH = 80  # columns of a terminal

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
    console = Console(file=io.StringIO(), width=WIDTH)
    console.print(table)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue().rstrip("\n")


def folded(*lines: str) -> str:
    """Sentences on lines of their own, that fit a terminal."""
    return "\n".join(fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines)


def for_people(lines: Sequence[Line], *, mfu: float) -> str:
    """Three tables and the notes."""
    names = list(COLUMNS)
    parts = [["Model", *names[max(start, 1) : end]] for start, end in pairwise(SPLITS)]
    notes = [f"{line.model}: {note}" for line in lines for note in line.notes]
    legend = (
        "Exact, Useful, Hardware: FLOPs of training by convention",
        f"Predicted: at {mfu:.0%} MFU. MFU: what the table's time implies",
        "Memory: one row of text on one device, mixed precision, AdamW, recomputed blocks. Fewest: devices of that "
        "kind under ZeRO-3 (V100 where the table names none)",
    )
    tables = [grid(part, rows_of(lines, part)) for part in parts]
    return "\n".join(["\n\n".join(tables), "", folded(*legend), "Notes", folded(*notes)])


def as_json(lines: Sequence[Line]) -> str:
    """All figures, unrounded."""
    return json.dumps([asdict(line) for line in lines], indent=2, ensure_ascii=False)


def as_csv(lines: Sequence[Line]) -> str:
    """All figures, unrounded, with the notes in the last column."""
    records = [asdict(line) | {"notes": " | ".join(line.notes)} for line in lines]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def as_markdown(lines: Sequence[Line]) -> str:
    """The columns for people, and the notes below."""
    names = list(COLUMNS)
    rows = [names, ["---"] + ["---:"] * (len(names) - 1), *rows_of(lines, names)]
    notes = [f"- {line.model}: {note}" for line in lines for note in line.notes]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *notes])


def as_latex(lines: Sequence[Line]) -> str:
    """The columns for people as a tabular."""
    names = list(COLUMNS)
    body = [" & ".join(escape(cell) for cell in row) + r" \\" for row in rows_of(lines, names)]
    head = " & ".join(escape(name) for name in names) + r" \\"
    columns = "l" + "r" * (len(names) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    )


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("~", r"$\sim$")


FORMATS: dict[str, Callable[[Sequence[Line]], str]] = {
    "json": as_json,
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}


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
            axis.annotate(line.model, place, xytext=(5, above), textcoords="offset points", fontsize=8)
    figure.savefig(path, dpi=150)
