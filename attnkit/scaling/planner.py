"""The inverse: from what one has (money, time, memory, a loss to reach) to a model, a batch and a layout.

Every choice is a rule with a source, and its reason is told: the division of FLOPs into parameters and tokens by a
scaling law, shapes by their ratio of width to depth (Kaplan 2020, section 3.2: it matters little between 50 and 150),
batch and learning rate by DeepSeek LLM (Bi 2024, arXiv 2401.02954, section 3.1).
"""

import math
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any

import yaml

from attnkit.errors import UsageError, nearest
from attnkit.models import AttnKitConfig
from attnkit.models.checks import common_backend
from attnkit.scaling.budget import Budget, read_budget
from attnkit.scaling.choices import DEFAULT_LAW, Optimizer, Precision
from attnkit.scaling.hardware import Device, estimate_time
from attnkit.scaling.laws import FLOPS_PER_PRODUCT, Law, best_parameters_for_tokens, find_law
from attnkit.scaling.layouts import Choice, Step, choose_layout, power_of_two
from attnkit.scaling.memory import Layout, MemoryEstimate
from attnkit.scaling.parameters import count_parameters
from attnkit.scaling.shapes import shape, shape_reason

SMALLEST_OF_LAWS = 4.4e7  # parameters of the smallest model that the laws were fitted to (Hoffmann 2022, table A9)
FRONT = (0.25, 0.5, 1.0, 2.0, 4.0)  # parameters beside the best number
FEWEST_STEPS = 100  # a batch is at most this part of all tokens: fewer steps learn nothing
PLANNED_FIELDS = set(get_annotations(AttnKitConfig)) - {
    *("architecture", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("vocab_size", "max_position_embeddings"),
}
"""What a model can be told beside what a plan decides."""
LAUNCHERS = {
    "none": "ddp.yaml",
    "ddp": "ddp.yaml",
    "zero1": "fsdp2_gradients.yaml",
    "zero2": "fsdp2_gradients.yaml",
    "zero3": "fsdp2_full.yaml",
    "fsdp": "fsdp2_full.yaml",
}
"""The file for Accelerate that shares out at least as much."""
TOLERANCE = 1.001  # what is given more than once may differ by rounding


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
    accumulation: int
    steps: int
    learning_rate: float
    warmup_steps: int
    precision: Precision
    device: Device | None
    considered: list[Choice]
    """The layouts that were looked at, in order; the last is taken."""
    hours: float | None
    front: list[Point]
    reasons: list[str]

    @property
    def chosen(self) -> Choice:
        return self.considered[-1]

    @property
    def layout(self) -> Layout:
        return self.chosen.layout

    @property
    def memory(self) -> MemoryEstimate:
        """Of one device."""
        return self.chosen.memory

    @property
    def num_devices(self) -> int:
        return self.layout.devices

    def run(self, *, source: str = "python-docs", output_dir: str = "runs/planned") -> dict[str, Any]:
        """The sections of a run that `attnkit pretrain` takes."""
        names = ["architecture", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
        names += ["scorer", "position"]
        interval = max(1, min(500, self.steps // 4))
        training = {
            "output_dir": output_dir,
            "max_steps": self.steps,
            "per_device_batch_size": self.chosen.rows,
            "gradient_accumulation_steps": self.accumulation,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "eval_steps": interval,
            "save_steps": interval,
            "mixed_precision": "bf16" if self.precision == "mixed" else "no",
            "activation_checkpointing": self.chosen.recompute != "none",
        }
        if self.layout.data > 1:
            training["num_processes"] = self.layout.data
        return {
            "model": {name: vars(self.config)[name] for name in names},
            "tokenizer": {"vocab_size": self.config.vocab_size},
            "data": {"source": source, "sequence_length": self.seq_len},
            "objective": {"name": "causal"},
            "training": training,
        }

    def command(self, file: str) -> str:
        """What starts the run that is saved in a file."""
        layout = self.layout
        if layout.tensor * layout.pipeline > 1:
            return (
                f"no trainer of attnkit divides a layer among devices: take the sizes of {file} to one that does, or "
                "plan for devices with more memory"
            )
        if layout.data == 1:
            return f"attnkit pretrain --config {file}"
        launcher = LAUNCHERS[layout.sharding]
        return (
            f"accelerate launch --config_file configs/accelerate/{launcher} --num_processes {layout.data} "
            f"train/pretrain.py --config {file}"
        )

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
    num_devices: int | None = None,
    mfu: float = 0.4,
    law: str = DEFAULT_LAW,
    seq_len: int = 1024,
    vocab_size: int = 32768,
    precision: Precision | None = None,
    optimizer: Optimizer = "adamw",
    backend: str | None = None,
    unique_tokens: float | None = None,
    **model: Any,
) -> Plan:
    """The best causal model for what is given: one or two of parameters, tokens, FLOPs (or a budget such as
    "8xH100 24h" or "200 A100-hours", at an `mfu`), and a target loss; what is given beyond that has to agree.

    `backend` is the fastest that computes the parts, `precision` "fp32" on a CPU and else "mixed". `memory_per_device`
    is a limit in bytes; without it, it is that of the budget's device. Without `num_devices` (or a budget that names
    them) there are as few as hold the model. `unique_tokens` warns where tokens are repeated; `model` are fields of
    `AttnKitConfig`. Raises `UsageError` for nonsense, for a budget that cannot be read, and where what is given
    contradicts itself or no size fits.
    """
    given = {"parameters": parameters, "tokens": tokens, "flops": flops, "target_loss": target_loss}
    check_positive(given | {"memory_per_device": memory_per_device, "unique_tokens": unique_tokens})
    check_positive({"seq_len": seq_len, "vocab_size": vocab_size, "num_devices": num_devices})
    for name, count in (("parameters", parameters), ("tokens", tokens)):
        if count is not None and count < 1:
            raise UsageError(f"{name} must be at least 1, not {count:g}")
    if not 0 < mfu <= 1:
        raise UsageError(f"mfu must be more than 0 and at most 1, not {mfu:g}")
    for name in model:
        if name not in PLANNED_FIELDS:
            raise UsageError(f"{name}: no field of a plan's model: {nearest(name, PLANNED_FIELDS)}")
    reasons: list[str] = []
    found = None if budget is None else read_budget(budget)
    if found is not None:
        if num_devices is not None and num_devices != found.num_devices:
            raise UsageError(f"num_devices {num_devices} contradicts budget {budget!r}: give one of them")
        num_devices = found.num_devices
        flops = flops_of(found, flops, mfu=mfu, reasons=reasons)
    chosen_law = find_law(law)
    quantities = {**given, "flops": flops}
    size, total = divide_flops(chosen_law, quantities, reasons=reasons)
    check_agreement(chosen_law, quantities, size=size, total=total)
    config = shape(size, seq_len=seq_len, vocab_size=vocab_size, **model)
    reasons.append(shape_reason(config, size))
    exact = count_parameters(config)
    if parameters is None and tokens is None and flops is not None and target_loss is None:
        total = flops / FLOPS_PER_PRODUCT / exact  # the shape is not quite of the size that was asked for
    if precision is None:
        precision = "mixed" if found is None or found.device.name != "cpu" else "fp32"
    backend = common_backend(config) if backend is None else backend
    step = Step(config=config, seq_len=seq_len, precision=precision, optimizer=optimizer, backend=backend)
    limit = memory_per_device if memory_per_device is not None or found is None else float(found.device.memory)
    return complete(
        step,
        chosen_law,
        total=total,
        budget=found,
        num_devices=num_devices if num_devices is not None or limit is not None else 1,
        limit=limit,
        mfu=mfu,
        unique_tokens=unique_tokens,
        reasons=reasons,
    )


def complete(
    step: Step,
    law: Law,
    *,
    total: float,
    budget: Budget | None,
    num_devices: int | None,
    limit: float | None,
    mfu: float,
    unique_tokens: float | None,
    reasons: list[str],
) -> Plan:
    """Batch, learning rate, layout and time of a model and its number of tokens."""
    exact, seq_len = count_parameters(step.config), step.seq_len
    if exact < SMALLEST_OF_LAWS:
        reasons.append(f"the law was fitted to models above {SMALLEST_OF_LAWS:.2g}: its loss is no prediction here")
    spent = float(FLOPS_PER_PRODUCT) * exact * total
    batch, rate = batch_and_rate(spent, total=total, reasons=reasons)
    considered = choose_layout(step, rows=power_of_two(batch / seq_len), num_devices=num_devices, limit=limit)
    chosen = considered[-1]
    reasons += layout_reasons(considered)
    at_once = seq_len * chosen.rows * chosen.layout.data
    accumulation = max(1, round(batch / at_once))
    steps = max(1, round(total / (at_once * accumulation)))
    if unique_tokens is not None and total > unique_tokens:
        reasons.append(
            f"{total / unique_tokens:.1f} passes over {unique_tokens:.3g} tokens: up to 4 are worth nearly as much as "
            "new text (Muennighoff 2023)"
        )
    device, devices = (None if budget is None else budget.device), chosen.layout.devices
    time = None if device is None else estimate_time(spent, device=device, num_devices=devices, mfu=mfu)
    return Plan(
        config=step.config,
        parameters=exact,
        tokens=steps * at_once * accumulation,
        flops=spent,
        loss=law.loss(exact, total),
        seq_len=seq_len,
        accumulation=accumulation,
        steps=steps,
        learning_rate=float(f"{rate:.2g}"),
        warmup_steps=min(2000, max(1, steps // 50)),
        precision=step.precision,
        device=device,
        considered=considered,
        hours=None if time is None else time.hours,
        front=pareto_front(law, spent),
        reasons=reasons,
    )


def check_positive(given: dict[str, float | None]) -> None:
    """Refuse what is nothing, less than nothing, or no number."""
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} must be more than 0 and finite, not {value:g}")


def flops_of(budget: Budget, flops: float | None, *, mfu: float, reasons: list[str]) -> float | None:
    """The FLOPs of a budget with a time; those given, where it has none."""
    if budget.hours is None:
        return flops
    if flops is not None:
        raise UsageError("give flops or a budget, not both: a budget is a number of FLOPs")
    found = budget.device.peak_of() * budget.num_devices * budget.hours * 3600 * mfu
    spent = f"{budget.num_devices} x {budget.device.name} for {budget.hours:g} h"
    reasons.append(f"{spent} at {mfu:.0%} MFU are {found:.3g} FLOPs")
    return found


def divide_flops(law: Law, given: dict[str, float | None], *, reasons: list[str]) -> tuple[float, float]:
    """Parameters and tokens from one or two of parameters, tokens, FLOPs and loss."""
    parameters, tokens, flops, loss = (given[name] for name in ("parameters", "tokens", "flops", "target_loss"))
    if parameters is not None and tokens is not None:
        return parameters, tokens
    if parameters is not None:
        return parameters, tokens_of(law, parameters, flops=flops, loss=loss, reasons=reasons)
    if tokens is not None:
        return parameters_of(law, tokens, flops=flops, loss=loss, reasons=reasons), tokens
    if loss is not None:
        needed = law.flops_for(loss)
        if flops is not None and needed > flops * TOLERANCE:
            raise UsageError(
                f"target_loss {loss:g} needs {needed:.3g} FLOPs by law {law.name!r}, more than {flops:.3g}"
            )
        reasons.append(f"a loss of {loss:g} needs {needed:.3g} FLOPs at least, by law {law.name!r}")
        flops = needed
    if flops is None:
        raise UsageError("give one or two of parameters, tokens, flops (or a budget with a time) and target_loss")
    reasons.append(f"parameters and tokens: the best division of {flops:.3g} FLOPs by law {law.name!r} ({law.source})")
    return law.best_parameters(flops), law.best_tokens(flops)


def tokens_of(law: Law, parameters: float, *, flops: float | None, loss: float | None, reasons: list[str]) -> float:
    """All that FLOPs pay for, those that reach a loss, or those for which the model has the best size."""
    if flops is not None:
        return flops / FLOPS_PER_PRODUCT / parameters
    if loss is not None:
        return reachable(law.tokens_for(loss, parameters=parameters), loss, law)
    reasons.append(f"tokens: those for which {parameters:.3g} parameters are the best number, by law {law.name!r}")
    return (law.beta * law.B / (law.alpha * law.A * parameters**-law.alpha)) ** (1 / law.beta)


def parameters_of(law: Law, tokens: float, *, flops: float | None, loss: float | None, reasons: list[str]) -> float:
    """Likewise, the other way round."""
    if flops is not None:
        return flops / FLOPS_PER_PRODUCT / tokens
    if loss is not None:
        return reachable(law.parameters_for(loss, tokens=tokens), loss, law)
    reasons.append(f"parameters: the best number for {tokens:.3g} tokens, by law {law.name!r}")
    return best_parameters_for_tokens(law, tokens)


def check_agreement(law: Law, given: dict[str, float | None], *, size: float, total: float) -> None:
    """Refuse what is given beyond two quantities, and does not go with them."""
    flops, loss = given["flops"], given["target_loss"]
    needed = FLOPS_PER_PRODUCT * size * total
    if flops is not None and needed > flops * TOLERANCE:
        raise UsageError(
            f"{size:.3g} parameters on {total:.3g} tokens are {needed:.3g} FLOPs, more than the {flops:.3g} that are "
            "given: lower one of them"
        )
    reached = law.loss(size, total)
    if loss is not None and reached > loss * TOLERANCE:
        raise UsageError(
            f"{size:.3g} parameters on {total:.3g} tokens reach a loss of {reached:.4g} by law {law.name!r}, not "
            f"target_loss {loss:g}: give more of them"
        )


def reachable(amount: float, loss: float, law: Law) -> float:
    """Refuse what no amount reaches."""
    if math.isinf(amount):
        raise UsageError(f"target_loss {loss:g} is out of reach of what is given, by law {law.name!r}")
    return amount


def batch_and_rate(flops: float, *, total: float, reasons: list[str]) -> tuple[float, float]:
    """Tokens of a batch 0.2920·C^0.3271 and peak learning rate 0.3118·C^-0.1250 (Bi 2024, section 3.1)."""
    batch, rate = 0.2920 * flops**0.3271, min(1e-2, 0.3118 * flops**-0.1250)
    reasons.append(
        f"batch of {batch:.3g} tokens and learning rate {rate:.2g}: DeepSeek LLM's laws of compute (Bi 2024)"
    )
    if batch > total / FEWEST_STEPS:
        batch = total / FEWEST_STEPS
        reasons.append(f"batch lowered to {batch:.3g} tokens, so that there are {FEWEST_STEPS} steps or more")
    return batch, rate


def layout_reasons(considered: list[Choice]) -> list[str]:
    """Why the last of the choices was taken, and what stood in the way of the first."""
    chosen, first = considered[-1], considered[0]
    reasons = [f"layout: {chosen}; {chosen.rows} rows at once on each rank"]
    if chosen is not first:
        reasons.append(
            f"{len(considered) - 1} layouts that talk less do not fit: {first} takes {first.memory.total / 2**30:,.1f} "
            "GiB for one row"
        )
    if chosen.layout.tensor * chosen.layout.pipeline > 1 or chosen.recompute != "none":
        reasons.append("`attnkit pretrain` is data-parallel and recomputes nothing: the rest is your launcher's part")
    return reasons


def pareto_front(law: Law, flops: float) -> list[Point]:
    """Smaller models on more tokens and larger ones on fewer, for the same FLOPs: loss against the price of use."""
    best = law.best_parameters(flops)
    sizes = [(best * factor, flops / 6 / (best * factor)) for factor in FRONT]
    return [Point(parameters=n, tokens=d, loss=law.loss(n, d), flops_per_generated_token=2 * n) for n, d in sizes]
