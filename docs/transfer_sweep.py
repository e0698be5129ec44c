"""Train decoders of three widths at several learning rates, with and without muP, and draw the losses.

    python docs/transfer_sweep.py FOLDER

FOLDER gets the runs, `transfer-sweep.csv` and `transfer-sweep.png`. It takes some minutes on one CPU core.
"""

import csv
import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from attnkit.cli import main

WIDTHS = (32, 64, 128)  # the first is the base
RATES = tuple(2.0**power for power in range(-8, -4))
RUN = {
    "model.num_hidden_layers": 2,
    "model.initializer_range": 0.1,
    "tokenizer.vocab_size": 512,
    "data.sequence_length": 64,
    "training.max_steps": 100,
    "training.warmup_steps": 10,
    "training.per_device_batch_size": 16,
    "training.weight_decay": 0,
    "training.eval_steps": 1000,
    "training.save_steps": 1000,
    "training.log_steps": 100,
}


def train(folder: Path, *, width: int, rate: float, rule: str) -> float:
    """The held-out loss of one run, in nats per token; a run that is there already is not made again."""
    rule = "none" if width == WIDTHS[0] else rule  # on its base a rule changes nothing
    place = folder / f"{rule}-{width}-{rate:g}"
    if not (place / "summary.json").is_file():
        run = {**RUN, "model.hidden_size": width, "model.num_attention_heads": width // 16}
        run |= {"training.learning_rate": rate, "training.output_dir": place}
        if rule != "none":
            base = {"training.base_hidden_size": WIDTHS[0], "training.base_num_hidden_layers": 2}
            run |= {"training.transfer": rule, **base}
        flags = [word for name, value in run.items() for word in (f"--{name}", str(value))]
        if main(["pretrain", *flags]) != 0:
            sys.exit(f"{place}: this run failed")
    return float(json.loads((place / "summary.json").read_text(encoding="utf-8"))["held_out"]["loss"])


def sweep(folder: Path) -> list[dict[str, str | float]]:
    """A line for each run."""
    return [
        {"rule": rule, "width": width, "rate": rate, "loss": train(folder, width=width, rate=rate, rule=rule)}
        for rule in ("none", "mup")
        for width in WIDTHS
        for rate in RATES
    ]


def draw(lines: list[dict[str, str | float]], path: Path) -> None:
    """Loss over learning rate, a curve for each width; the best rate of each is marked."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (rule, title) in zip(axes, (("none", "no rule"), ("mup", "muP, base 32 wide")), strict=True):
        for width in WIDTHS:
            curve = [(it["rate"], it["loss"]) for it in lines if it["rule"] == rule and it["width"] == width]
            (line,) = axis.plot(*zip(*curve, strict=True), marker=".", label=f"{width} wide")
            axis.plot(*min(curve, key=lambda point: point[1]), marker="o", color=line.get_color())
        axis.set(title=title, xscale="log", xlabel="learning rate", ylabel="held-out loss (nats/token)")
        axis.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    found = sweep(target)
    with (target / "transfer-sweep.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    draw(found, target / "transfer-sweep.png")
