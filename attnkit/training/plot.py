"""The loss curve of a run as a picture."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnkit.files.disk import replacing
from attnkit.training.run_folder import writing
from attnkit.training.tracking import read_log


@mpl.rc_context({"text.parse_math": False})  # a $ in a name that a user gives is a sign like others
def plot_loss(
    log: str | Path,
    image: str | Path,
    *,
    reference: float | None = None,
    reference_label: str = "unigram model",
    unit: str = "nats per token",
) -> None:
    """Draw training and held-out loss over optimizer steps from a `log.jsonl` into a PNG file.

    `reference` is a loss to compare with, drawn as a horizontal line. Raises `UsageError` if `image` cannot be written.
    """
    records = read_log(log)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no state that other plots share
    axes = figure.add_subplot()
    for kind, label, marker in (("train", "training", ""), ("eval", "held-out", "o")):
        points = [(r["step"], r["loss"]) for r in records if r["kind"] == kind and r["loss"] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4)
    if reference is not None:
        axes.axhline(reference, linestyle="--", color="gray", label=f"{reference_label}: {reference:.2f}")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"loss [{unit}]")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    with writing(image), replacing(Path(image)) as unfinished:
        figure.savefig(str(unfinished), dpi=120, format="png")
