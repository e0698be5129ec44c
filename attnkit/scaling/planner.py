"""The inverse: from what one has (money, time, memory, a loss to reach) to a model, a batch and a layout.

Every choice is a rule with a source, and its reason is told: the division of FLOPs into parameters and tokens by a
scaling law, shapes by their ratio of width to depth (Kaplan 2020, section 3.2: it matters little between 50 and 150),
batch and learning rate by DeepSeek LLM (Bi 2024, arXiv 2401.02954, section 3.1).
"""

import math
from dataclasses import dataclass
from inspect import get_annotations, signature
from typing import Any

from attnkit.errors import UsageError, check_count, check_number, nearest
from attnkit.models.checks import common_backend
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.scaling.budget import read_budget
from attnkit.scaling.choices import DEFAULT_LAW, Optimizer, Precision
from attnkit.scaling.division import Asked, size_and_tokens, tokens_of_model
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import CPU_RUNTIME
from attnkit.scaling.laws import FLOPS_PER_PRODUCT, AnyLaw, Repeated, find_law
from attnkit.scaling.layouts import FRAGMENTATION, Choice, choose_layout
from attnkit.scaling.means import Means, means_of
from attnkit.scaling.memory import Workload
from attnkit.scaling.parameters import count_parameters
from attnkit.scaling.plans import WORTH, Plan, Point
from attnkit.scaling.shapes import shape, shape_reason, usual_seq_len, usual_vocabulary
from attnkit.scaling.units import read_bytes

FRONT = (0.25, 0.5, 1.0, 2.0, 4.0)  # parameters beside the best number
FEWEST_STEPS = 100  # a batch is at most this part of all tokens: fewer steps learn nothing
PLANNED_FIELDS = set(get_annotations(AttnKitConfig)) - {
    *("architecture", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("vocab_size", "max_position_embeddings"),
}
"""What a model can be told beside what a plan decides."""
BOUNDS: dict[str, dict[str, float]] = {
    **{name: {"least": 1} for name in ("parameters", "tokens", "unique_tokens")},
    "mfu": {"most": 1},
}
"""Of quantities that need not only be more than 0."""
ROUNDS = 10  # in which FLOPs and the model they pay for are brought together; three are usual


def plan(
    *,
    parameters: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    budget: str | None = None,
    target_loss: float | None = None,
    memory_per_device: float | str | None = None,
    num_devices: int | None = None,
    mfu: float | None = None,
    price: float | None = None,
    law: str = DEFAULT_LAW,
    seq_len: int | None = None,
    vocab_size: int | None = None,
    precision: Precision | None = None,
    optimizer: Optimizer = "adamw",
    backend: str | None = None,
    unique_tokens: float | None = None,
    **model: Any,
) -> Plan:
    """The best causal model for what is given: one or two of parameters, tokens, FLOPs (or a budget such as
    "8xH100 24h" or "200 A100-hours", at an `mfu`), and a target loss; what is given beyond that has to agree.

    No more FLOPs, hours and bytes are spent than are given, and a target loss is reached; parameters and tokens are met
    as nearly as friendly shapes and whole steps allow. `memory_per_device` is a limit in bytes or a text such
    as "40GiB"; without it, it is that of the budget's device. Without `num_devices` (or a budget that names them) there
    are as few as hold the model. `precision` is "autocast" where half precision is fast and else "fp32", `backend` the
    fastest that computes the parts, `mfu` what the kind of device is known for, and `seq_len` and `vocab_size` follow
    from the size of the model. With `unique_tokens`, all others are repetitions and are worth less. `price` is money
    per device and hour, `model` are fields of `AttnKitConfig`. Raises `UsageError` for nonsense, for a budget that
    cannot be read, and where what is given contradicts itself or no size fits.
    """
    quantities = {"parameters": parameters, "tokens": tokens, "flops": flops, "target_loss": target_loss}
    check_given(quantities | {"unique_tokens": unique_tokens, "mfu": mfu}, model)
    for name, size in (("seq_len", seq_len), ("vocab_size", vocab_size), ("num_devices", num_devices)):
        if size is not None:
            check_count(name, size)
    limit = None if memory_per_device is None else read_bytes(memory_per_device)
    found = None if budget is None else read_budget(budget, price=price)
    reasons: list[str] = []
    if price is not None and found is None:
        raise UsageError("price: no device was named whose hours could cost it: give a budget")
    means = means_of(found, num_devices=num_devices, limit=limit, precision=precision, mfu=mfu, reasons=reasons)
    if found is not None and found.hours is not None and flops is not None:
        raise UsageError("give flops or a budget, not both: a budget is a number of FLOPs")
    known = find_law(law)
    used: AnyLaw = known if unique_tokens is None else Repeated(law=known, unique_tokens=unique_tokens)
    sized = size_up(used, quantities, means=means, seq_len=seq_len, vocab_size=vocab_size, model=model)
    workload = Workload(
        config=sized.config,
        seq_len=sized.seq_len,
        precision=means.precision,
        optimizer=optimizer,
        backend=common_backend(sized.config) if backend is None else backend,
    )
    return complete(workload, sized, used, means=means, reasons=[*reasons, *sized.reasons])


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A model of a size that suits what is asked, and the tokens to train it on."""

    asked: Asked
    config: AttnKitConfig
    seq_len: int
    parameters: int
    tokens: float
    flops_per_token: float
    """Of a training step, exact."""
    reasons: list[str]


def size_up(
    law: AnyLaw,
    quantities: dict[str, float | None],
    *,
    means: Means,
    seq_len: int | None,
    vocab_size: int | None,
    model: dict[str, Any],
) -> Sized:
    """The model and its tokens. Laws count 6·N·D, and a time buys exact FLOPs, attention among them: how many times
    more these are depends on the model, which is sought until they go with it."""
    ratio = None
    for _ in range(ROUNDS):
        flops = quantities["flops"] if means.flops is None else means.flops / (ratio or 1)
        asked, reasons = Asked(**quantities | {"flops": flops}), list[str]()
        wanted, total = size_and_tokens(law, asked, reasons=reasons)
        row = usual_seq_len(wanted) if seq_len is None else seq_len
        entries = usual_vocabulary(wanted) if vocab_size is None else vocab_size
        config = shape(wanted, seq_len=row, vocab_size=entries, rounding=asked.rounding, **model)
        exact, per_token = count_parameters(config), count_flops(config, seq_len=row).total / row
        now = per_token / (FLOPS_PER_PRODUCT * exact)
        if means.flops is None or (ratio is not None and now <= ratio * (1 + 1e-9)):
            break
        ratio = now
    if means.flops is not None:
        asked = Asked(**quantities | {"flops": means.flops / now})
        reasons.append(f"FLOPs of this model are {now:.2f} times 6ND, attention and the head counted exactly")
    reasons.append(f"{shape_reason(config, wanted)}; rows of {row} tokens, of a vocabulary of {entries:,}")
    return Sized(
        asked=asked,
        config=config,
        seq_len=row,
        parameters=exact,
        tokens=tokens_of_model(law, asked, size=exact, tokens=total),
        flops_per_token=per_token,
        reasons=reasons,
    )


def complete(workload: Workload, sized: Sized, law: AnyLaw, *, means: Means, reasons: list[str]) -> Plan:
    """Batch, learning rate, layout, steps and time of a model and its number of tokens."""
    exact, seq_len, total = sized.parameters, sized.seq_len, sized.tokens
    batch, rate = batch_and_rate(float(FLOPS_PER_PRODUCT) * exact * total, total=total, reasons=reasons)
    considered = choose_layout(
        workload,
        rows=batch / seq_len,
        num_devices=1 if means.num_devices is None and means.limit is None else means.num_devices,
        limit=means.limit,
        runtime=CPU_RUNTIME if means.device is None else means.device.runtime,
    )
    chosen = considered[-1]
    per_step = seq_len * chosen.rows * chosen.layout.data * chosen.accumulation
    steps = whole_steps(total / per_step, sized.asked)
    tokens = steps * per_step
    spent = float(FLOPS_PER_PRODUCT) * exact * tokens
    reasons.append(f"{per_step:,} tokens a step, as the rows of a rank are a power of two")
    if workload.precision not in ("fp32", "autocast"):
        reasons.append(
            f"memory is that of precision {workload.precision!r}, for a trainer of your own: `attnkit pretrain` keeps "
            "weights in fp32 and computes in half precision, which is 'autocast'"
        )
    reasons += layout_reasons(considered, limit=means.limit)
    if exact < law.smallest:
        reasons.append(f"the law was fitted to models above {law.smallest:.2g}: its loss is no prediction here")
    reasons += doubts(law, spent)
    if isinstance(law, Repeated) and tokens > law.unique_tokens:
        reasons.append(
            f"{tokens / law.unique_tokens:.1f} passes over {law.unique_tokens:.3g} tokens: up to {WORTH} are worth "
            "nearly as much as new text (Muennighoff 2023), and the loss and the sizes say so"
        )
    return Plan(
        config=sized.config,
        parameters=exact,
        tokens=tokens,
        flops=spent,
        exact_flops=sized.flops_per_token * tokens,
        law=law,
        loss=law.loss(exact, tokens),
        steps=steps,
        learning_rate=float(f"{rate:.2g}"),
        warmup_steps=min(2000, max(1, steps // 50)),
        workload=workload,
        limit=means.limit,
        considered=considered,
        time=means.time(sized.flops_per_token * tokens, num_devices=chosen.layout.devices),
        front=pareto_front(law, spent),
        reasons=reasons,
    )


def doubts(law: AnyLaw, flops: float) -> list[str]:
    """What makes a fitted law a weak ground for so many FLOPs."""
    found = []
    if law.undetermined:
        found.append(f"its runs do not determine {', '.join(law.undetermined)} of law {law.name!r}: believe no figure")
    if flops > law.most_flops:
        found.append(f"{flops / law.most_flops:,.3g} times the FLOPs of the largest run of law {law.name!r}")
    return found


def whole_steps(steps: float, asked: Asked) -> int:
    """As many as are paid for, as reach a target loss, or nearly as many as were asked for."""
    if asked.target_loss is not None:
        return math.ceil(steps)
    if asked.flops is None:
        return max(1, round(steps))
    if steps < 1:
        raise UsageError(f"flops: {asked.flops:.3g} pay for no step of a single row: lower seq_len, or give more")
    return math.floor(steps)


def check_given(numbers: dict[str, float | None], model: dict[str, Any]) -> None:
    """Refuse what is nothing, less than nothing or no number, and fields that no plan's model has."""
    for name, value in numbers.items():
        if value is not None:
            check_number(name, value, **BOUNDS.get(name, {}))
    for name in model:
        if name not in PLANNED_FIELDS:
            given = [it.name for it in signature(plan).parameters.values() if it.kind is it.KEYWORD_ONLY]
            raise UsageError(f"{name}: no field of a plan's model: {nearest(name, [*PLANNED_FIELDS, *given])}")


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


def layout_reasons(considered: list[Choice], *, limit: float | None) -> list[str]:
    """Why the last of the choices was taken, and what stood in the way of the first."""
    chosen, first = considered[-1], considered[0]
    reasons = [f"layout: {chosen}; {chosen.rows} rows at once on each rank"]
    if limit is None:
        reasons.append("no device and no memory_per_device were given: whether it fits is not known")
    else:
        reasons.append(
            f"memory has a margin of {FRAGMENTATION:.0%} for what an allocator loses, and the libraries' part"
        )
    if chosen is not first:
        reasons.append(
            f"{len(considered) - 1} layouts that talk less do not fit: {first} takes {first.memory.total / 2**30:,.1f} "
            "GiB for one row"
        )
    if chosen.layout.tensor * chosen.layout.pipeline > 1 or chosen.recompute != "none":
        reasons.append("`attnkit pretrain` is data-parallel and recomputes nothing: the rest is your launcher's part")
    return reasons


def pareto_front(law: AnyLaw, flops: float) -> list[Point]:
    """Smaller models on more tokens and larger ones on fewer, for the same FLOPs: loss against the price of use."""
    best = law.best_parameters(flops)
    sizes = [(best * factor, flops / 6 / (best * factor)) for factor in FRONT]
    return [Point(parameters=n, tokens=d, loss=law.loss(n, d), flops_per_generated_token=2 * n) for n, d in sizes]
