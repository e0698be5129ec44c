"""`attnkit scale`: the jobs of this package by name, each with its own flags."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from attnkit.errors import UsageError, nearest

DESCRIPTION = "what a configuration costs, before any of it is spent"


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are `UsageError`s."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('attnkit ')}: {message}; see {self.prog} --help")


def answer(arguments: Sequence[str]) -> str:
    """What `attnkit scale ARGUMENTS` has to say. Raises `UsageError` for what it cannot be told."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return overview()
    name, *rest = arguments
    if name not in JOBS:
        raise UsageError(f"unknown job {name!r} of scale: {nearest(name, JOBS)}")
    fill, do, summary = JOBS[name]
    parser = Parser(prog=f"attnkit scale {name}", description=summary, add_help=False, allow_abbrev=False)
    fill(parser)
    if "-h" in rest or "--help" in rest:
        return parser.format_help().rstrip("\n")
    return str(do(parser.parse_args(rest)))


def overview() -> str:
    """The help of the verb."""
    jobs = "\n".join(f"  {name:<12}{summary}" for name, (_, _, summary) in JOBS.items())
    return f"usage: attnkit scale JOB [--help] ...\n\nWhat a configuration costs, before any of it is spent.\n\n{jobs}"


def add_subject(parser: Parser) -> None:
    """The config that most jobs are about."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a YAML or JSON file, the folder of a model or run, a hub name"
    )
    parser.add_argument("--head", help="head of the model; by default the one it is pretrained with")


def add_batch(parser: Parser) -> None:
    """The tokens that a model is given."""
    parser.add_argument("--batch_size", type=int, default=1, help="rows of a batch")
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--target_len", type=int, help="tokens of the decoder, where there are two stacks")
    parser.add_argument("--predicted", type=int, help="positions of a row that go through the head")


def fill_table(parser: Parser) -> None:
    """The flags of `table`."""
    parser.add_argument("--format", default="rich", help="rich, json, csv, markdown or latex")
    parser.add_argument("--mfu", type=float, default=0.3, help="model FLOPs utilization of the predicted times")
    parser.add_argument("--png", metavar="FILE", help="draw parameters over years and compute over parameters")


def do_table(given: argparse.Namespace) -> str:
    """The size table."""
    from attnkit.scaling.render import FORMATS, draw_table, for_people
    from attnkit.scaling.table import size_table

    if given.format not in (*FORMATS, "rich"):
        raise UsageError(f"unknown format {given.format!r}: {nearest(given.format, [*FORMATS, 'rich'])}")
    lines = size_table(mfu=given.mfu)
    if given.png is not None:
        draw_table(lines, writable(given.png))
    return for_people(lines, mfu=given.mfu) if given.format == "rich" else FORMATS[given.format](lines)


def writable(path: str) -> Path:
    """A file that can be written, as far as its folder tells."""
    place = Path(path).expanduser()
    if not place.parent.is_dir() or place.is_dir():
        raise UsageError(f"{path}: cannot be written: give a file in a folder that exists")
    return place


def do_count(given: argparse.Namespace) -> str:
    """Parameters per component."""
    from attnkit.scaling.parameters import parameters_by_component
    from attnkit.scaling.render import grid

    found = parameters_by_component(given.config, head=given.head)
    rows = [[name, f"{number:,}", f"{number / found.total:.1%}"] for name, number in found.components.items()]
    rows += [["body", f"{found.body:,}", ""], ["active", f"{found.active:,}", ""], ["total", f"{found.total:,}", ""]]
    return grid(["component", "parameters", "share"], rows)


def fill_flops(parser: Parser) -> None:
    """The flags of `flops`."""
    from attnkit.scaling.flops import Convention, Recompute

    add_subject(parser)
    add_batch(parser)
    parser.add_argument("--past", type=int, default=0, help="tokens in the cache")
    parser.add_argument("--convention", default="exact", help=" or ".join(get_args(Convention)))
    parser.add_argument("--recompute", default="none", help=" or ".join(get_args(Recompute)))
    parser.add_argument("--backend", default="eager", help="the attention backend, for the convention 'hardware'")


def do_flops(given: argparse.Namespace) -> str:
    """FLOPs per component."""
    from attnkit.scaling.flops import count_flops
    from attnkit.scaling.render import grid

    found = count_flops(
        given.config,
        head=given.head,
        past=given.past,
        convention=given.convention,
        recompute=given.recompute,
        backend=given.backend,
        **batch_of(given),
    )
    rows = [[name, f"{it.forward:,}", f"{it.backward:,}"] for name, it in found.components.items()]
    rows.append(["total", f"{found.forward:,}", f"{found.backward:,}"])
    pairs = found.pair_operations
    if pairs.total:
        rows.append(["element-wise work of the score, apart", f"{pairs.forward:,}", f"{pairs.backward:,}"])
    rows.append(["element-wise work of AdamW, apart", "", f"{found.optimizer:,}"])
    table = grid([f"FLOPs, {found.convention}", "forward", "backward"], rows)
    return (
        f"{table}\n{found.total:,} FLOPs of training on {found.tokens:,} tokens, {found.total / found.tokens:,.0f} each"
    )


def batch_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `add_batch`; a row has by default as many tokens as the model has positions."""
    from attnkit.scaling.subject import read_subject

    seq_len = given.seq_len
    if seq_len is None:
        values = read_subject(given.config, head=given.head).config.to_dict()
        seq_len = values.get("max_position_embeddings") or values.get("n_positions")
        if seq_len is None:
            raise UsageError("the config says nothing of its positions: give --seq_len")
    return {
        "batch_size": given.batch_size,
        "seq_len": seq_len,
        "target_len": given.target_len,
        "predicted": given.predicted,
    }


def fill_memory(parser: Parser) -> None:
    """The flags of `memory`."""
    from attnkit.scaling.memory import TRACED_BACKENDS, Optimizer, Precision, Sharding

    add_subject(parser)
    add_batch(parser)
    parser.add_argument("--precision", default="fp32", help=" or ".join(get_args(Precision)))
    parser.add_argument("--optimizer", default="adamw", help=" or ".join(get_args(Optimizer)))
    parser.add_argument("--backend", default="eager", help=" or ".join(TRACED_BACKENDS))
    parser.add_argument("--recompute", default="none", help="none or full")
    parser.add_argument("--inference", action="store_true", help="a forward pass with a full cache, no training")
    parser.add_argument("--sharding", default="none", help=" or ".join(get_args(Sharding)))
    parser.add_argument("--data", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--tensor", type=int, default=1, help="devices that share each layer")
    parser.add_argument("--pipeline", type=int, default=1, help="devices that share the layers among them")
    parser.add_argument("--fragmentation", type=float, default=0.0, help="part of the peak that an allocator may lose")
    parser.add_argument("--device", help="a device of the catalogue: how many of them training needs at least")


def do_memory(given: argparse.Namespace) -> str:
    """Memory per device."""
    from attnkit.scaling.memory import Layout, fewest_devices, trace_memory
    from attnkit.scaling.render import grid, in_bytes

    traced = trace_memory(
        given.config,
        head=given.head,
        precision=given.precision,
        optimizer=given.optimizer,
        backend=given.backend,
        recompute=given.recompute,
        training=not given.inference,
        **batch_of(given),
    )
    layout = Layout(sharding=given.sharding, data=given.data, tensor=given.tensor, pipeline=given.pipeline)
    found = traced.divided(layout, fragmentation=given.fragmentation)
    kinds = ("weights", "gradients", "optimizer", "activations", "logits", "kv_cache", "temporary", "peak", "margin")
    rows = [[name, in_bytes(vars(found)[name])] for name in (*kinds, "runtime")] + [["total", in_bytes(found.total)]]
    lines = [grid(["per device", "memory"], rows), f"the peak is in phase: {found.peak_phase}"]
    lines.append(f"activations by the textbook (Korthikanti 2022): {in_bytes(found.textbook_activations)}")
    if given.device is not None:
        for sharding in ("zero1", "zero2", "zero3"):
            fewest = fewest_devices(traced, given.device, sharding=sharding, fragmentation=given.fragmentation)
            lines.append(
                f"fewest {given.device} with {sharding}: {'no number is enough' if fewest is None else fewest}"
            )
    return "\n".join(lines)


def fill_time(parser: Parser) -> None:
    """The flags of `time`."""
    parser.add_argument("--flops", type=float, required=True, help="FLOPs of the whole job")
    parser.add_argument("--device", required=True, help="a device of the catalogue, or cpu")
    parser.add_argument("--num_devices", type=int, default=1)
    parser.add_argument("--mfu", type=float, help="model FLOPs utilization, a part of 1")
    parser.add_argument("--hours", type=float, help="time that the job took, for the utilization")
    parser.add_argument("--dtype", help="dtype of the peak; by default the fastest but fp8")
    parser.add_argument("--price", type=float, help="money per device and hour")


def do_time(given: argparse.Namespace) -> str:
    """Time, utilization, cost and energy."""
    from attnkit.scaling.hardware import estimate_time
    from attnkit.scaling.render import duration

    found = estimate_time(
        given.flops,
        device=given.device,
        num_devices=given.num_devices,
        mfu=given.mfu,
        seconds=None if given.hours is None else given.hours * 3600,
        dtype=given.dtype,
        price=given.price,
    )
    rate = found.device.peak_of(found.dtype) / 1e12
    lines = [
        f"time          {duration(found.hours)}",
        f"device-hours  {found.device_hours:,.4g}",
        f"utilization   {found.mfu:.2%} of {found.num_devices} x {found.device.name}, {rate:,.4g} TFLOP/s each",
    ]
    if found.cost is not None:
        lines.append(f"cost          {found.cost:,.4g}")
    if found.energy is not None:
        lines.append(f"energy        {found.energy:,.4g} kWh")
    return "\n".join([*lines, f"source        {found.device.source}"])


def fill_plan(parser: Parser) -> None:
    """The flags of `plan`."""
    from attnkit.scaling.laws import DEFAULT_LAW

    parser.add_argument("--budget", help="devices and time, such as '8xH100 24h' or 'cpu 30min'")
    for name in ("parameters", "tokens", "flops", "target_loss", "memory_per_device", "unique_tokens"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--mfu", type=float, default=0.4, help="model FLOPs utilization of the budget")
    parser.add_argument("--law", default=DEFAULT_LAW, help="the scaling law")
    parser.add_argument("--seq_len", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--vocab_size", type=int, default=32768)
    parser.add_argument("--precision", default="mixed", help="of the memory estimate")
    parser.add_argument("--scorer", default="scaled_dot", help="the scorer of the model")
    parser.add_argument("--backend", default="sdpa", help="sdpa, or eager for a scorer that needs it")
    parser.add_argument("--source", default="python-docs", help="data.source of the run")
    parser.add_argument("--output_dir", default="runs/planned", help="training.output_dir of the run")
    parser.add_argument("--output", metavar="FILE", help="write the run that `attnkit pretrain --config FILE` takes")


def do_plan(given: argparse.Namespace) -> str:
    """The plan, its front and its reasons; or the run as a file."""
    from attnkit.scaling.planner import plan
    from attnkit.scaling.render import count, duration, grid, in_bytes

    elsewhere = ("source", "output_dir", "output")
    asked = {name: value for name, value in vars(given).items() if name not in elsewhere}
    output = None if given.output is None else writable(given.output)
    found = plan(**asked)
    config = found.config
    rows = [
        ["parameters", f"{found.parameters:,}"],
        ["layers, width, heads", f"{config.num_hidden_layers}, {config.hidden_size}, {config.num_attention_heads}"],
        ["feed-forward width", str(config.intermediate_size)],
        ["tokens", f"{count(found.tokens)} in {found.steps:,} steps of {count(found.tokens / found.steps)}"],
        ["rows per device", f"{found.rows_per_device} x {found.accumulation} accumulated"],
        ["FLOPs (6ND)", f"{found.flops:.3g}"],
        ["loss by the law", f"{found.loss:.3f} nats per token"],
        ["learning rate", f"{found.learning_rate:g}, {found.warmup_steps} steps of warm-up"],
        ["devices", f"{found.num_devices}, sharding {found.layout.sharding}"],
        ["memory per device", in_bytes(found.memory.total)],
        ["time", duration(found.hours) or "no device was named"],
    ]
    front = [[count(it.parameters), count(it.tokens), f"{it.loss:.3f}"] for it in found.front]
    parts = [grid(["plan", ""], rows), grid(["same FLOPs: parameters", "tokens", "loss"], front), "Reasons"]
    parts += [f"  {reason}" for reason in found.reasons]
    if output is not None:
        output.write_text(found.to_yaml(source=given.source, output_dir=given.output_dir), encoding="utf-8")
        parts.append(f"run: attnkit pretrain --config {output}")
    return "\n".join(parts)


def fill_fit(parser: Parser) -> None:
    """The flags of `fit`."""
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="finished runs, folders of them, CSV files")
    parser.add_argument("--parameters", type=float, help="extrapolate to a model of this size, with --tokens")
    parser.add_argument("--tokens", type=float)
    parser.add_argument("--png", metavar="FILE", help="draw loss over compute and isoFLOP curves")


def do_fit(given: argparse.Namespace) -> str:
    """The law of some runs."""
    from attnkit.scaling.fit import constants, draw_fit, fit_scaling_law, read_runs
    from attnkit.scaling.render import grid

    if (given.parameters is None) != (given.tokens is None):
        raise UsageError("to extrapolate, give both --parameters and --tokens")
    runs = [run for path in given.runs for run in read_runs(Path(path))]
    found = fit_scaling_law(runs)
    rows = [
        [name, f"{value:.5g}", "{:.5g} … {:.5g}".format(*found.intervals[name])]
        for name, value in constants(found.law).items()
    ]
    parts = [f"{len(runs)} runs", grid(["constant", "value", "95% of the bootstrap"], rows)]
    parts.append(f"outliers: {', '.join(found.outliers) or 'none'}")
    if found.undetermined:
        parts.append(f"not determined by these runs: {', '.join(found.undetermined)}")
    if given.parameters is not None:
        loss, low, high = found.predict(given.parameters, given.tokens)
        parts.append(
            f"{given.parameters:.3g} parameters on {given.tokens:.3g} tokens: {loss:.4f} ({low:.4f} … {high:.4f})"
        )
    if given.png is not None:
        draw_fit(found, runs, writable(given.png))
    return "\n".join(parts)


def fill_audit(parser: Parser) -> None:
    """The flags of `audit`."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a decoder; by default the smallest GPT-2")
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--batch_size", type=int, default=1, help="rows of a batch")


def do_audit(given: argparse.Namespace) -> str:
    """Other tools' answers beside ours."""
    from attnkit.scaling.audit import SMALLEST_GPT_2, audit
    from attnkit.scaling.render import grid
    from attnkit.scaling.subject import make_config

    config = make_config(**SMALLEST_GPT_2) if given.config is None else given.config
    findings = audit(config, seq_len=given.seq_len, batch_size=given.batch_size)
    rows = [
        [
            it.tool,
            it.question,
            "none" if it.theirs is None else f"{it.theirs:,.0f}",
            f"{it.ours:,.0f}",
            "" if it.ratio is None else f"{it.ratio:.3f}",
        ]
        for it in findings
    ]
    reasons = [f"  {it.tool}: {it.why}" for it in findings]
    return "\n".join([grid(["tool", "question", "its answer", "ours", "ratio"], rows), "Why", *reasons])


def fill_calibrate(parser: Parser) -> None:
    """The flags of `calibrate`."""
    add_subject(parser)
    parser.add_argument("--batch_size", type=int, default=8, help="rows of a batch")
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--steps", type=int, default=5, help="steps to measure")
    parser.add_argument("--longer_steps", type=int, default=20, help="steps to predict")
    parser.add_argument("--no_check", action="store_true", help="do not run the longer run")


def do_calibrate(given: argparse.Namespace) -> str:
    """A short run, its prediction and what came true."""
    from attnkit.scaling.calibrate import calibrate
    from attnkit.scaling.render import duration

    given.target_len = given.predicted = None
    found = calibrate(
        given.config,
        head=given.head,
        seq_len=batch_of(given)["seq_len"],
        batch_size=given.batch_size,
        steps=given.steps,
        longer_steps=given.longer_steps,
        check=not given.no_check,
    )
    lines = [
        f"step       {found.seconds_per_step:.4g} s, {found.tokens_per_second:,.0f} tokens/s",
        f"MFU        {found.mfu:.1%} of what matrix products reach here, {found.flops_per_step:,} FLOPs per step",
        f"predicted  {duration(found.predicted_seconds / 3600)} for {given.longer_steps} steps",
    ]
    if found.measured_seconds is not None and found.error is not None:
        lines.append(
            f"measured   {duration(found.measured_seconds / 3600)}: the prediction is off by {found.error:+.1%}"
        )
    return "\n".join(lines)


JOBS: dict[str, tuple[Any, Any, str]] = {
    "table": (fill_table, do_table, "the ten models of the size table, recomputed"),
    "count": (add_subject, do_count, "parameters per component"),
    "flops": (fill_flops, do_flops, "FLOPs per component, by convention"),
    "memory": (fill_memory, do_memory, "memory per device, and the fewest devices"),
    "time": (fill_time, do_time, "time, utilization, cost and energy of some FLOPs"),
    "plan": (fill_plan, do_plan, "the best model for a budget, with the run that trains it"),
    "fit": (fill_fit, do_fit, "a scaling law of one's own runs"),
    "calibrate": (fill_calibrate, do_calibrate, "measure a short run here and predict a longer one"),
    "audit": (fill_audit, do_audit, "what other tools would answer, and why"),
}
