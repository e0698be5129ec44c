"""The jobs of `attnkit scale` that are about one config."""

import argparse
from pathlib import Path
from typing import Any

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig, make_config
from attnkit.scaling.audit import SMALLEST_GPT_2, audit
from attnkit.scaling.calibrate import calibrate
from attnkit.scaling.choices import Rule, Sharding
from attnkit.scaling.flags import writable
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import CPU_RUNTIME, find_device
from attnkit.scaling.layouts import FRAGMENTATION
from attnkit.scaling.memory import Layout, MemoryEstimate, Traced, Workload, fewest_devices, trace_memory
from attnkit.scaling.parameters import parameters_by_component
from attnkit.scaling.render import Answer, folded, grid
from attnkit.scaling.subject import read_subject
from attnkit.scaling.transfer import Coordinate, coordinate_check, draw_coordinates, transfer
from attnkit.scaling.units import duration, in_bytes, read_bytes

NONE_IS_ENOUGH = "no number is enough: try --recompute full, --backend sdpa, --tensor, or fewer tokens at once"

FEWEST_WITH: tuple[Sharding, ...] = ("zero1", "zero2", "zero3")
WIDE = 0.1  # of the prediction of a calibration


def do_count(given: argparse.Namespace) -> Answer:
    """Parameters per component."""
    found = parameters_by_component(given.config, head=given.head)
    rows = [[name, f"{number:,}", f"{number / found.total:.1%}"] for name, number in found.components.items()]
    active = "not known" if found.active is None else f"{found.active:,}"
    rows += [["body", f"{found.body:,}", ""], ["active", active, ""], ["total", f"{found.total:,}", ""]]
    return Answer(figures=found, text=grid(["component", "parameters", "share"], rows))


def do_flops(given: argparse.Namespace) -> Answer:
    """FLOPs per component."""
    batch = batch_of(given)
    found = count_flops(
        given.config,
        head=given.head,
        past=given.past,
        convention=given.convention,
        recompute=given.recompute,
        backend=given.backend,
        **batch,
    )
    trains = not (given.past or given.inference)
    work = [(name, it.forward, it.backward) for name, it in found.components.items()]
    work.append(("total", found.forward, found.backward))
    pairs = found.pair_operations
    if pairs.total:
        work.append(("element-wise work of the score, apart", pairs.forward, pairs.backward))
    rows = [[name, f"{forward:,}", *[f"{backward:,}"] * trains] for name, forward, backward in work]
    rows += [["element-wise work of AdamW, apart", "", f"{found.optimizer:,}"]] * trains
    table = grid([f"FLOPs, {found.convention}", "forward", *["backward"] * trains], rows)
    total = found.total if trains else found.forward
    cached = f" after {given.past:,} tokens in the cache" if given.past else ""
    what = "a training step" if trains else f"a forward pass{cached}"
    each = f"({rows_in_words(batch)}), {total / found.tokens:,.0f} each"
    return Answer(figures=found, text=f"{table}\n{total:,} FLOPs of {what} on {found.tokens:,} tokens {each}")


def rows_in_words(batch: dict[str, Any]) -> str:
    """What a model is given at once."""
    said = f"{batch['batch_size']} x {batch['seq_len']}"
    said += "" if batch["target_len"] is None else f" to {batch['target_len']} in the decoder"
    return said + ("" if batch["predicted"] is None else f", {batch['predicted']} predicted")


def do_memory(given: argparse.Namespace) -> Answer:
    """Memory per device."""
    batch, device = batch_of(given), None if given.device is None else find_device(given.device)
    fragmentation = given.fragmentation
    if fragmentation is None:
        fragmentation = 0.0 if device is None else FRAGMENTATION
    runtime = CPU_RUNTIME if device is None else device.runtime
    runtime = runtime if given.runtime is None else round(read_bytes(given.runtime, name="runtime"))
    asked = {name: vars(given)[name] for name in ("precision", "optimizer", "backend", "recompute", "logits")}
    workload = Workload(config=given.config, head=given.head, training=not given.inference, **asked, **batch)
    traced = trace_memory(workload)
    layout = Layout(sharding=given.sharding, data=given.data, tensor=given.tensor, pipeline=given.pipeline)
    found = traced.divided(layout, accumulates=given.accumulates, fragmentation=fragmentation, runtime=runtime)
    lines = [grid(["per device", "memory", "at the peak"], rows_of_memory(found, fragmentation=fragmentation))]
    lines.append(folded(f"of {assumed(given, traced, batch)}").strip())
    if not given.inference:
        lines.append(f"activations by the textbook (Korthikanti 2022): {in_bytes(found.textbook_activations)}")
    fewest = {
        sharding: fewest_devices(traced, device, sharding=sharding, fragmentation=fragmentation, runtime=runtime)
        for sharding in (() if device is None else FEWEST_WITH)
        if device is not None
    }
    lines += [f"fewest {given.device} with {name}: {count or NONE_IS_ENOUGH}" for name, count in fewest.items()]
    assumptions = batch | asked | {"logits": traced.setting.logits, "predicted": traced.setting.predicted}
    assumptions |= {"head": traced.subject.head, "inference": given.inference, "layout": layout}
    figures = {"estimate": found, "assumptions": assumptions, "fewest_devices": fewest}
    return Answer(figures=figures, text="\n".join(lines))


def rows_of_memory(found: MemoryEstimate, *, fragmentation: float) -> list[list[str]]:
    """Each part, and what of it adds up to the peak."""
    kinds = ["weights", "gradients", "optimizer", "activations", "logits", "kv_cache", "temporary"]
    rows = [[name, in_bytes(vars(found)[name]), in_bytes(found.at_peak.get(name, 0))] for name in kinds]
    rows += [[f"peak, in {found.peak_phase}", "", in_bytes(found.peak)]]
    rows += [[f"margin, {fragmentation:.0%} for fragmentation", in_bytes(found.margin), ""]]
    rows += [["runtime, what libraries take", in_bytes(found.runtime), ""]]
    return [*rows, ["total", in_bytes(found.total), ""]]


def assumed(given: argparse.Namespace, traced: Traced, batch: dict[str, Any]) -> str:
    """All that the figures rest on."""
    names = [f"{rows_in_words(batch)} tokens", f"head {traced.subject.head}", f"{given.precision} precision"]
    names += [f"backend {given.backend}"]
    if given.inference:
        return ", ".join([*names, "a forward pass with a full cache"])
    names += [f"optimizer {given.optimizer}", f"recomputation {given.recompute}", f"{traced.setting.logits} logits"]
    return ", ".join([*names, f"{given.data} x {given.tensor} x {given.pipeline} devices, sharding {given.sharding}"])


def do_audit(given: argparse.Namespace) -> Answer:
    """Other tools' answers beside ours."""
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
    reasons = folded(*(f"{it.tool}: {it.why}" for it in findings))
    table = grid(["tool", "question", "its answer", "ours", "ratio"], rows)
    return Answer(figures=findings, text="\n".join([table, "Why", reasons]))


def do_calibrate(given: argparse.Namespace) -> Answer:
    """A short run, its prediction and what came true."""
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
    doubt = found.unsure_seconds / found.predicted_seconds
    lines = [
        f"step       {found.seconds_per_step:.4g} s, {found.tokens_per_second:,.0f} tokens/s",
        f"MFU        {found.mfu:.1%} of what matrix products reach here, {found.flops_per_step:,} FLOPs per step",
        f"predicted  {duration(found.predicted_seconds / 3600)} for {given.longer_steps} steps, within {doubt:.0%}",
    ]
    if doubt > WIDE:
        lines.append(
            "unsure     the measured steps took unlike times: give more --steps, on a machine that is less busy"
        )
    if found.measured_seconds is not None and found.error is not None:
        lines.append(
            f"measured   {duration(found.measured_seconds / 3600)}: the prediction is off by {found.error:+.1%}"
        )
    return Answer(figures=found, text="\n".join(lines))


def do_transfer(given: argparse.Namespace) -> Answer:
    """The factors of a model on its base."""
    config, png = read_subject(given.config).config, None if given.png is None else writable(given.png)
    if not 0 < given.learning_rate < float("inf") or not 0 <= given.weight_decay < float("inf"):
        raise UsageError("learning_rate must be more than 0, weight_decay at least 0, and both finite")
    base = {"base_hidden_size": given.base_hidden_size, "base_num_hidden_layers": given.base_num_hidden_layers}
    found = transfer(config, rule=given.rule, **base)
    rate, decay = given.learning_rate, given.weight_decay
    rows = [
        ["initial hidden matrices", f"{found.init_std:.6g}", ""],
        ["learning rate of hidden matrices", f"{found.hidden_rate:.6g}", f"{rate * found.hidden_rate:.4g}"],
        ["learning rate of norms and biases in blocks", f"{found.vector_rate:.6g}", f"{rate * found.vector_rate:.4g}"],
        ["learning rate of all others", "1", f"{rate:.4g}"],
        ["weight decay of hidden matrices", f"{found.hidden_decay:.6g}", f"{decay * found.hidden_decay:.4g}"],
        ["model.output_scale", f"{found.output_scale:.6g}", ""],
        ["model.residual_scale", f"{found.residual_scale:.6g}", ""],
    ]
    flags = " ".join(f"--training.{name} {value}" for name, value in base.items())
    parts = [grid([given.rule, "factor", "value"], rows)]
    parts.append(f"in a run: --training.learning_rate {rate:g} --training.transfer {given.rule} {flags}")
    if png is not None:
        assert isinstance(config, AttnKitConfig)
        parts.append(check_coordinates(config, png, rule=given.rule, base=base))
    return Answer(figures=found, text="\n".join(parts))


def check_coordinates(config: AttnKitConfig, png: Path, *, rule: Rule, base: dict[str, Any]) -> str:
    """Draw how much activations change from the base's width to 8 times it, with a rule and without."""
    heads = max(1, base["base_hidden_size"] // (config.head_dim or 1))
    sized = []
    for factor in (1, 2, 4, 8):
        fields = {"num_attention_heads": factor * heads, "num_key_value_heads": None, "intermediate_size": None}
        fields |= {"hidden_size": factor * base["base_hidden_size"], "vocab_size": min(config.vocab_size, 256)}
        fields |= {"num_hidden_layers": base["base_num_hidden_layers"], "max_position_embeddings": 16}
        kept = {name: vars(config)[name] for name in ("scorer", "scorer_options", "position", "norm", "norm_position")}
        sized.append(make_config(**kept, **fields))
    with_rule, without = (coordinate_check(sized, rule=each, **base) for each in (rule, None))
    draw_coordinates({rule: with_rule, "no rule": without}, png, over="width")
    last = max(it.step for it in with_rule)
    rows = [
        [str(size.hidden_size), *(f"{it.size:.4f}" for it in (*with_rule, *without) if same(it, size, last))]
        for size in sized
    ]
    places = sorted({it.place for it in with_rule})
    names = [f"{place}, {title}" for title in (rule, "no rule") for place in places]
    return "\n".join([grid(["width", *names], rows, title=f"change after {last} steps"), f"drawn: {png}"])


def same(coordinate: Coordinate, config: AttnKitConfig, step: int) -> bool:
    """Whether this is the change of a model of that width after that step."""
    return coordinate.width == config.hidden_size and coordinate.step == step


def batch_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `add_batch`; a row has by default as many tokens as the model has positions."""
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
