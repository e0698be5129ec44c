"""The inverse: from what one has (money, time, memory, a loss to reach) to a model, a batch and a layout.

Every choice is a rule with a source, and its reason is told: the division of FLOPs into parameters and tokens by a
scaling law, shapes by their ratio of width to depth (Kaplan 2020, section 3.2: it matters little between 50 and 150),
batch and learning rate by DeepSeek LLM (Bi 2024, arXiv 2401.02954, section 3.1).
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from attnkit.errors import UsageError
from attnkit.models import AttnKitConfig
from attnkit.scaling.hardware import Device, estimate_time, find_device
from attnkit.scaling.laws import DEFAULT_LAW, Law, find_law
from attnkit.scaling.memory import Layout, MemoryEstimate, Sharding, Traced, trace_memory
from attnkit.scaling.parameters import count_parameters
from attnkit.scaling.subject import make_config

BUDGET = re.compile(r"\s*(?:(\d+)\s*x\s*)?([A-Za-z]\w*)\s+(\d+(?:\.\d+)?)\s*(h|hours?|d|days?|min)\s*", re.ASCII)
HOURS = {"h": 1.0, "d": 24.0, "m": 1 / 60}
SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "zero3")  # each talks more than the one before
WIDTH_PER_LAYER = 96
SMALLEST_OF_LAWS = 4.4e7  # parameters of the smallest model that the laws were fitted to (Hoffmann 2022, table A9)
FRONT = (0.25, 0.5, 1.0, 2.0, 4.0)  # parameters beside the best number


@dataclass(frozen=True, kw_only=True)
class Point:
    """One division of the same FLOPs."""

    parameters: float
    tokens: float
    loss: float
    flops_per_generated_token: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A model and its training, with the reasons."""

    config: AttnKitConfig
    parameters: int
    tokens: int
    flops: float
    loss: float
    seq_len: int
    rows_per_device: int
    accumulation: int
    steps: int
    learning_rate: float
    warmup_steps: int
    num_devices: int
    device: Device | None
    layout: Layout
    memory: MemoryEstimate
    hours: float | None
    front: list[Point]
    reasons: list[str]

    def run(self, *, source: str = "python-docs", output_dir: str = "runs/planned") -> dict[str, Any]:
        """The sections of a run that `attnkit pretrain` takes."""
        names = ["architecture", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
        names += ["scorer", "position"]
        interval = max(1, min(500, self.steps // 4))
        training = {
            "output_dir": output_dir,
            "max_steps": self.steps,
            "per_device_batch_size": self.rows_per_device,
            "gradient_accumulation_steps": self.accumulation,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "eval_steps": interval,
            "save_steps": interval,
        }
        if self.num_devices > 1:
            training["num_processes"] = self.num_devices
        return {
            "model": {name: vars(self.config)[name] for name in names},
            "tokenizer": {"vocab_size": self.config.vocab_size},
            "data": {"source": source, "sequence_length": self.seq_len},
            "objective": {"name": "causal"},
            "training": training,
        }

    def to_yaml(self, **where: str) -> str:
        """The run as a file, with the reasons as its comments."""
        reasons = "".join(f"# {reason}\n" for reason in self.reasons)
        return reasons + yaml.safe_dump(self.run(**where), sort_keys=False)


def plan(
    *,
    parameters: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    budget: str | None = None,
    target_loss: float | None = None,
    memory_per_device: float | None = None,
    mfu: float = 0.4,
    law: str = DEFAULT_LAW,
    seq_len: int = 1024,
    vocab_size: int = 32768,
    precision: str = "mixed",
    backend: str = "sdpa",
    unique_tokens: float | None = None,
    **model: Any,
) -> Plan:
    """The best causal model for what is given: one or two of parameters, tokens, FLOPs (or a budget such as
    "8xH100 24h", at an `mfu`), a target loss, and bytes of memory per device as a limit.

    `unique_tokens` warns where tokens are repeated; `model` are fields of `AttnKitConfig`. Raises `UsageError` for
    nonsense, for a budget that cannot be read, and where what is given contradicts itself or no size fits.
    """
    reasons: list[str] = []
    given = {"parameters": parameters, "tokens": tokens, "flops": flops, "target_loss": target_loss}
    given |= {"memory_per_device": memory_per_device, "unique_tokens": unique_tokens}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be more than 0, not {value:g}")
    device, num_devices, hours = read_budget(budget) if budget is not None else (None, 1, None)
    if device is not None and hours is not None:
        if flops is not None:
            raise UsageError("give flops or a budget, not both: a budget is a number of FLOPs")
        flops = device.peak_of() * num_devices * hours * 3600 * mfu
        estimate_time(flops, device=device, num_devices=num_devices, mfu=mfu)
        reasons.append(f"{budget} at {mfu:.0%} MFU are {flops:.3g} FLOPs")
    found = find_law(law)
    size, amount = divide_flops(found, parameters, tokens, flops, target_loss, reasons=reasons)
    limit = memory_per_device if memory_per_device is not None else (device.memory if device is not None else None)
    sizing = {"seq_len": seq_len, "vocab_size": vocab_size, **model}
    config = shape(size, **sizing)
    reasons.append(shape_reason(config, size))
    exact = count_parameters(config)
    total = amount if parameters is not None or tokens is not None or flops is None else flops / 6 / exact
    if exact < SMALLEST_OF_LAWS:
        reasons.append(f"the law was fitted to models above {SMALLEST_OF_LAWS:.2g}: its loss is no prediction here")
    spent = 6.0 * exact * total
    batch, rate = batch_and_rate(spent, reasons=reasons)
    layout, rows, memory = fit_memory(
        config,
        seq_len=seq_len,
        rows=2 ** max(0, math.floor(math.log2(batch / seq_len / num_devices))),
        num_devices=num_devices,
        limit=limit,
        precision=precision,
        backend=backend,
        reasons=reasons,
    )
    ranks = layout.data
    accumulation = max(1, round(batch / (seq_len * rows * ranks)))
    steps = max(1, round(total / (seq_len * rows * ranks * accumulation)))
    if unique_tokens is not None and total > unique_tokens:
        reasons.append(
            f"{total / unique_tokens:.1f} passes over {unique_tokens:.3g} tokens: up to 4 are worth nearly as much as "
            "new text (Muennighoff 2023)"
        )
    done = None
    if device is not None:
        done = estimate_time(spent, device=device, num_devices=num_devices, mfu=mfu).hours
    return Plan(
        config=config,
        parameters=exact,
        tokens=steps * seq_len * rows * ranks * accumulation,
        flops=spent,
        loss=found.loss(exact, total),
        seq_len=seq_len,
        rows_per_device=rows,
        accumulation=accumulation,
        steps=steps,
        learning_rate=float(f"{rate:.2g}"),
        warmup_steps=min(2000, max(1, steps // 50)),
        num_devices=num_devices,
        device=device,
        layout=layout,
        memory=memory,
        hours=done,
        front=pareto_front(found, spent),
        reasons=reasons,
    )


def read_budget(text: str) -> tuple[Device, int, float]:
    """ "8xH100 24h" as a device, a number of them and hours."""
    match = BUDGET.fullmatch(text)
    if match is None:
        raise UsageError(f"budget {text!r} cannot be read: give devices and time, such as '8xH100 24h' or 'cpu 30min'")
    count, name, time, unit = match.groups()
    number, hours = int(count or 1), float(time) * HOURS[unit[0]]
    if number < 1 or hours <= 0:
        raise UsageError(f"budget {text!r} is none: devices and time must be more than 0")
    return find_device(name), number, hours


def divide_flops(
    law: Law,
    parameters: float | None,
    tokens: float | None,
    flops: float | None,
    loss: float | None,
    *,
    reasons: list[str],
) -> tuple[float, float]:
    """Parameters and tokens from one or two of the four."""
    known = {"parameters": parameters, "tokens": tokens, "flops": flops, "target_loss": loss}
    named = [name for name, value in known.items() if value is not None]
    if not 1 <= len(named) <= 2:
        said = ", ".join(named) or "none"
        raise UsageError(f"give one or two of parameters, tokens, flops (or a budget) and target_loss, not {said}")
    if parameters is not None and tokens is not None:
        return parameters, tokens
    if flops is not None and (parameters is not None or tokens is not None):
        other = flops / 6 / (parameters or tokens or 1)
        return (parameters, other) if parameters is not None else (other, tokens or 1)
    if loss is not None and parameters is not None:
        return parameters, reachable(law.tokens_for(loss, parameters=parameters), loss, law)
    if loss is not None and tokens is not None:
        return reachable(law.parameters_for(loss, tokens=tokens), loss, law), tokens
    if parameters is not None:
        reasons.append(f"tokens: those for which {parameters:.3g} parameters are the best number, by law {law.name!r}")
        return parameters, tokens_fitting(law, parameters)
    if tokens is not None:
        ratio = law.best_parameters(6.0) / law.best_tokens(6.0) ** (law.beta / law.alpha)
        reasons.append(f"parameters: the best number for {tokens:.3g} tokens, by law {law.name!r}")
        return ratio * tokens ** (law.beta / law.alpha), tokens
    if loss is not None:
        needed = law.flops_for(loss)
        if flops is not None and needed > flops:
            raise UsageError(
                f"target_loss {loss:g} needs {needed:.3g} FLOPs by law {law.name!r}, more than {flops:.3g}"
            )
        reasons.append(f"a loss of {loss:g} needs {needed:.3g} FLOPs at least, by law {law.name!r}")
        flops = needed
    assert flops is not None
    reasons.append(f"parameters and tokens: the best division of {flops:.3g} FLOPs by law {law.name!r} ({law.source})")
    return law.best_parameters(flops), law.best_tokens(flops)


def tokens_fitting(law: Law, parameters: float) -> float:
    """The D for which N is the best number: αA/N^α = βB/D^β."""
    return (law.beta * law.B / (law.alpha * law.A * parameters**-law.alpha)) ** (1 / law.beta)


def reachable(amount: float, loss: float, law: Law) -> float:
    """Refuse what no amount reaches."""
    if math.isinf(amount):
        raise UsageError(f"target_loss {loss:g} is out of reach of what is given, by law {law.name!r}")
    return amount


def shape(parameters: float, *, seq_len: int, vocab_size: int, **model: Any) -> AttnKitConfig:
    """The decoder of hardware-friendly sizes whose count is nearest: whole heads, depth from 1/160 to 1/48 of the
    width."""
    best: tuple[float, AttnKitConfig] | None = None
    for width in widths():
        if 12 * width * width > 16 * parameters:
            break
        fixed = {"hidden_size": width, "num_attention_heads": width // head_width(width)}
        fixed |= {"vocab_size": vocab_size, "max_position_embeddings": seq_len, **model}
        one, two = (count_parameters(make_config(num_hidden_layers=layers, **fixed)) for layers in (1, 2))
        layers = max(1, round(1 + (parameters - one) / (two - one)))
        if not max(1, width // 160) <= layers <= max(4, width // 48):
            continue
        error = abs(math.log((one + (layers - 1) * (two - one)) / parameters))
        # Of sizes within 3% of what is asked for, the one with the usual ratio of width to depth.
        cost = max(error, 0.03) + 0.01 * abs(math.log(width / layers / WIDTH_PER_LAYER))
        if best is None or cost < best[0]:
            best = cost, make_config(num_hidden_layers=layers, **fixed)
    if best is None:
        raise UsageError(
            f"no model of {parameters:.3g} parameters has a vocabulary of {vocab_size} entries: lower vocab_size, or "
            "plan a larger model"
        )
    return best[1]


def widths() -> list[int]:
    """Widths that kernels like, small steps first."""
    return [*range(16, 256, 16), *range(256, 1024, 64), *range(1024, 2048, 128), *range(2048, 32769, 256)]


def head_width(width: int) -> int:
    """The usual width of a head that divides the model's."""
    return next(size for size in (128, 64, 32, 16) if width % size == 0 and (width >= 16 * size or size <= 16))


def shape_reason(config: AttnKitConfig, asked: float) -> str:
    """The shape in words."""
    heads = f"{config.num_attention_heads} heads of {config.head_dim}"
    return (
        f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {heads}: the nearest friendly shape to "
        f"{asked:.3g} parameters"
    )


def batch_and_rate(flops: float, *, reasons: list[str]) -> tuple[float, float]:
    """Tokens of a batch 0.2920·C^0.3271 and peak learning rate 0.3118·C^-0.1250 (Bi 2024, section 3.1)."""
    batch, rate = 0.2920 * flops**0.3271, min(1e-2, 0.3118 * flops**-0.1250)
    reasons.append(
        f"batch of {batch:.3g} tokens and learning rate {rate:.2g}: DeepSeek LLM's laws of compute (Bi 2024)"
    )
    return batch, rate


def fit_memory(
    config: AttnKitConfig,
    *,
    seq_len: int,
    rows: int,
    num_devices: int,
    limit: float | None,
    precision: Any,
    backend: str,
    reasons: list[str],
) -> tuple[Layout, int, MemoryEstimate]:
    """The layout that talks least and holds the most rows at once, within the memory of a device."""
    plain: Sharding = "none" if num_devices == 1 else "ddp"
    traces: dict[tuple[int, str], Traced] = {}
    for recompute in ("none", "full"):
        for sharding in (plain, *(SHARDINGS[1:] if num_devices > 1 else ())):
            layout, held = Layout(sharding=sharding, data=num_devices), rows
            while held >= 1:
                if (held, recompute) not in traces:
                    traces[held, recompute] = trace_memory(
                        config,
                        seq_len=seq_len,
                        batch_size=held,
                        precision=precision,
                        backend=backend,
                        recompute=recompute,
                    )
                memory = traces[held, recompute].divided(layout, fragmentation=0.1)
                if limit is None or memory.total <= limit:
                    said = "" if recompute == "none" else ", blocks recomputed"
                    reasons.append(f"{held} rows at once on each of {num_devices} devices, sharding {sharding!r}{said}")
                    return layout, held, memory
                held //= 2
    raise UsageError(
        f"no layout of {num_devices} devices holds {count_parameters(config):,} parameters: give more devices or "
        "memory, or fewer parameters"
    )


def pareto_front(law: Law, flops: float) -> list[Point]:
    """Smaller models on more tokens and larger ones on fewer, for the same FLOPs: loss against the price of use."""
    best = law.best_parameters(flops)
    sizes = [(best * factor, flops / 6 / (best * factor)) for factor in FRONT]
    return [Point(parameters=n, tokens=d, loss=law.loss(n, d), flops_per_generated_token=2 * n) for n, d in sizes]
