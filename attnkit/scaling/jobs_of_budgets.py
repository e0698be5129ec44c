"""The jobs of `attnkit scale` that are about money, time and many models."""

import argparse
import json
from dataclasses import asdict
from functools import partial

from attnkit.errors import UsageError, check_number
from attnkit.scaling.fit import LawFit, Run, constants, draw_fit, fit_scaling_law, read_runs
from attnkit.scaling.flags import writable
from attnkit.scaling.hardware import estimate_time
from attnkit.scaling.planner import plan
from attnkit.scaling.plans import Plan
from attnkit.scaling.render import (
    Answer,
    as_csv,
    as_latex,
    as_markdown,
    draw_table,
    folded,
    for_people,
    grid,
)
from attnkit.scaling.table import size_table
from attnkit.scaling.units import count, duration, in_bytes


def do_table(given: argparse.Namespace) -> Answer:
    """The size table."""
    png = None if given.png is None else writable(given.png)
    lines = size_table(mfu=given.mfu)
    if png is not None:
        draw_table(lines, png)
    others = {"csv": partial(as_csv, lines), "markdown": partial(as_markdown, lines, mfu=given.mfu)}
    others["latex"] = partial(as_latex, lines, mfu=given.mfu)
    return Answer(figures=lines, text=for_people(lines, mfu=given.mfu), others=others)


def do_time(given: argparse.Namespace) -> Answer:
    """Time, utilization, cost and energy."""
    if given.mfu is not None and given.hours is not None:
        raise UsageError("give --mfu or --hours, not both: one follows from the other")
    if given.hours is not None:
        check_number("hours", given.hours)
    found = estimate_time(
        given.flops,
        device=given.device,
        num_devices=given.num_devices,
        mfu=given.mfu,
        seconds=None if given.hours is None else given.hours * 3600,
        dtype=given.dtype,
        price=given.price,
    )
    devices = f"{found.num_devices} x {found.device.name}, {found.device.peak_of(found.dtype) / 1e12:,.4g} TFLOP/s each"
    assumed = " (assumed: --mfu)" if given.mfu is None and given.hours is None else ""
    lines = [
        f"time          {duration(found.hours)}",
        f"device-hours  {found.device_hours:,.4g}",
        f"utilization   {found.mfu:.2%}{assumed} of {devices}",
    ]
    if found.cost is not None:
        lines.append(f"cost          {found.cost:,.4g}")
    if found.energy is not None:
        lines.append(f"energy        {found.energy:,.4g} kWh")
    return Answer(figures=found, text="\n".join([*lines, f"source        {found.device.source}"]))


def do_plan(given: argparse.Namespace) -> Answer:
    """The plan, its front and its reasons; or the run as a file."""
    elsewhere = ("source", "output_dir", "output")
    asked = {name: value for name, value in vars(given).items() if name not in elsewhere}
    output = None if given.output is None else writable(given.output, ending=".yaml")
    found = plan(**asked)
    layouts = [
        [str(it), str(it.rows), in_bytes(it.memory.total), "fits" if it.fits and found.limit is not None else ""]
        for it in found.considered[-8:]
    ]
    doubt = ", no prediction" if found.is_extrapolated else ""
    front = [[count(it.parameters), count(it.tokens), f"{it.loss:.3f}"] for it in found.front]
    parts = [grid(["plan", ""], rows_of_plan(found)), grid(["same FLOPs: parameters", "tokens", f"loss{doubt}"], front)]
    parts += [grid(["layouts, the last ones considered", "rows", "memory", ""], layouts), "Reasons"]
    parts.append(folded(*found.reasons, found.source_reason(given.source)))
    if output is not None:
        output.write_text(found.to_yaml(source=given.source, output_dir=given.output_dir), encoding="utf-8")
        parts.append(f"run: {found.command(str(output))}")
    return Answer(figures=found, text="\n".join(parts))


def rows_of_plan(found: Plan) -> list[list[str]]:
    """What was decided, and what it costs."""
    config, time = found.config, found.time
    doubt = ", no prediction for so small a model" if found.is_extrapolated else ""
    rows = [
        ["parameters", f"{found.parameters:,}"],
        ["layers, width, heads", f"{config.num_hidden_layers}, {config.hidden_size}, {config.num_attention_heads}"],
        ["feed-forward width", str(config.intermediate_size)],
        ["vocabulary, tokens of a row", f"{config.vocab_size:,}, {found.seq_len:,}"],
        ["tokens", f"{count(found.tokens)} in {found.steps:,} steps of {count(found.tokens / found.steps)}"],
        ["rows per rank", f"{found.chosen.rows} x {found.accumulation} accumulated"],
        ["FLOPs (6ND, exact)", f"{found.flops:.4g}, {found.exact_flops:.4g}"],
        ["loss by the law", f"{found.loss:.3f} nats per token{doubt}"],
        ["learning rate", f"{found.learning_rate:g}, {found.warmup_steps} steps of warm-up"],
        ["precision, optimizer", f"{found.precision}, {found.workload.optimizer}"],
        ["devices", f"{found.num_devices}: {found.chosen}"],
        ["memory per device", in_bytes(found.memory.total) + (f" of {in_bytes(found.limit)}" if found.limit else "")],
    ]
    if time is None:
        return [*rows, ["time", "no device was named"]]
    rows.append(["time", f"{duration(time.hours)} at {time.mfu:.0%} MFU: {time.device_hours:,.4g} device-hours"])
    rows += [] if time.cost is None else [["cost", f"{time.cost:,.2f}"]]
    return rows if time.energy is None else [*rows, ["energy", f"{time.energy:,.4g} kWh, the house included"]]


def do_fit(given: argparse.Namespace) -> Answer:
    """The law of some runs."""
    if (given.parameters is None) != (given.tokens is None):
        raise UsageError("to extrapolate, give both --parameters and --tokens")
    if given.parameters is not None and not all(0 < it < float("inf") for it in (given.parameters, given.tokens)):
        raise UsageError("parameters and tokens must be more than 0 and finite")
    png = None if given.png is None else writable(given.png)
    output = None if given.output is None else writable(given.output, ending=".json")
    runs = [run for path in given.runs for run in read_runs(path)]
    found = fit_scaling_law(runs)
    parts = [f"{len(runs)} runs", *tables_of_fit(found, runs)]
    parts.append("exponent: the best number of parameters grows as FLOPs to this power")
    parts.append(f"outliers, left out of the fit: {', '.join(found.outliers) or 'none'}")
    if found.undetermined:
        parts.append(f"not determined by these runs: {', '.join(found.undetermined)}")
    flops = [6 * run.parameters * run.tokens for run in runs]
    best = found.law.best_parameters(10 * max(flops))
    parts.append(
        f"best for 10 times the FLOPs of the largest run, {10 * max(flops):.3g}: {best:.3g} parameters on "
        f"{found.law.best_tokens(10 * max(flops)):.3g} tokens"
    )
    if given.parameters is not None:
        loss, low, high = found.predict(given.parameters, given.tokens)
        parts.append(
            f"{given.parameters:.3g} parameters on {given.tokens:.3g} tokens: {loss:.4f} ({low:.4f} … {high:.4f}), "
            f"at {6 * given.parameters * given.tokens / max(flops):.3g} times the FLOPs of the largest run"
        )
    if png is not None:
        draw_fit(found, runs, png)
    if output is not None:
        output.write_text(json.dumps(asdict(found.law), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        parts.append(f"law: attnkit scale plan --law {output} ...")
    names = ("law", "intervals", "outliers", "residuals", "at_bounds", "undetermined")
    return Answer(figures={name: getattr(found, name) for name in names}, text="\n".join(parts))


def tables_of_fit(found: LawFit, runs: list[Run]) -> list[str]:
    """The constants, and how far each run is from the law."""
    rows = [
        [
            name,
            f"{value:.5g}",
            "at its bound" if name in found.at_bounds else "{:.5g} … {:.5g}".format(*found.intervals[name]),
        ]
        for name, value in constants(found.law).items()
    ]
    residuals = [
        [
            run.name,
            f"{run.loss:.4f}",
            f"{found.law.loss(run.parameters, run.tokens):.4f}",
            f"{run.loss / found.law.loss(run.parameters, run.tokens) - 1:+.1%}",
        ]
        for run in runs
    ]
    return [
        grid(["constant", "value", "95% of the bootstrap"], rows),
        grid(["run", "loss", "by the law", "off by"], residuals),
    ]
