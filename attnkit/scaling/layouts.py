"""How a training step is divided among devices: the layout that talks least of those that fit.

States are sharded first (ZeRO-1, 2, 3), as that changes no computation; then blocks are recomputed, a third more FLOPs;
then layers are divided among devices of one house (tensor parallel, two sums over the devices per layer and direction),
and last the layers go to stages (pipeline, idle for (stages - 1) of (micro-batches + stages - 1) turns).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.scaling.choices import Recompute, Sharding
from attnkit.scaling.hardware import CPU_RUNTIME
from attnkit.scaling.memory import Layout, MemoryEstimate, Traced, Workload, trace_memory
from attnkit.scaling.units import in_bytes

SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "zero3")  # each talks more than the one before
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")
DEVICES_OF_A_HOUSE = 8  # joined by links that are fast enough for sums within a layer
MOST_DEVICES = 2**14
FRAGMENTATION = 0.1
TOKENS_AT_ONCE = 8192  # where no memory is known


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A layout, how many rows each of its ranks holds at once, and what that takes."""

    layout: Layout
    rows: int
    accumulation: int
    """Batches of so many rows before each step of the optimizer."""
    recompute: Recompute
    memory: MemoryEstimate
    fits: bool

    def __str__(self) -> str:
        layout = self.layout
        names = [f"{layout.data} data-parallel" + ("" if layout.sharding == "none" else f" ({layout.sharding})")]
        names += [f"{layout.tensor} tensor-parallel"] * (layout.tensor > 1)
        names += [f"{layout.pipeline} stages"] * (layout.pipeline > 1)
        return " x ".join(names) + ("" if self.recompute == "none" else ", blocks recomputed")


class Memory:
    """The memory of a step of any number of rows: traced with one and with the most, which give a line."""

    def __init__(self, workload: Workload, *, runtime: int) -> None:
        self.workload, self.runtime = workload, runtime
        self.known: dict[Recompute, dict[int, Traced]] = {"none": {}, "selective": {}, "full": {}}

    def traced(self, rows: int, recompute: Recompute) -> Traced:
        """Run the step without values, once."""
        known = self.known[recompute]
        if rows not in known:
            known[rows] = trace_memory(replace(self.workload, batch_size=rows, recompute=recompute))
        return known[rows]

    def nearly(self, rows: int, recompute: Recompute) -> Traced:
        """The same at no cost, as soon as two steps are known; between them it is a little off."""
        known = self.known[recompute]
        if not known or rows in known or rows == 1:
            return self.traced(rows, recompute)
        one, most = self.traced(1, recompute), max(known)
        if most == 1:
            return self.traced(rows, recompute)
        step = one.step.move(one.step, known[most].step, (rows - 1) / (most - 1))
        return replace(one, step=step, setting=replace(one.setting, batch_size=rows))

    def choice(self, layout: Layout, rows: int, recompute: Recompute, *, batch: float, limit: float | None) -> Choice:
        """The most rows up to `rows` that fit in `limit` bytes, or a single one that does not, of a batch of rows."""
        while True:
            accumulation = max(1, round(batch / (rows * layout.data)))
            divided = partial(
                Traced.divided,
                layout=layout,
                accumulates=accumulation > 1,
                fragmentation=FRAGMENTATION,
                runtime=self.runtime,
            )
            for trace in (self.nearly, self.traced):
                memory = divided(trace(rows, recompute))
                fits = limit is None or memory.total <= limit
                if not fits:
                    break
            if fits or rows == 1:
                return Choice(
                    layout=layout, rows=rows, accumulation=accumulation, recompute=recompute, memory=memory, fits=fits
                )
            rows //= 2


def choose_layout(
    workload: Workload, *, rows: float, num_devices: int | None, limit: float | None, runtime: int = CPU_RUNTIME
) -> list[Choice]:
    """Choices in the order in which they are considered, up to the first that fits, which is the last of the list.

    `rows` are those of a batch, and each rank holds a power of two of them; without `num_devices` there are as few as
    hold the model, `limit` bytes each, of which `runtime` are the libraries'. Raises `UsageError` where nothing fits.
    """
    assert isinstance(workload.config, AttnKitConfig)
    memory, considered, most = Memory(workload, runtime=runtime), list[Choice](), power_of_two(rows)
    at_once = math.inf if limit is not None else TOKENS_AT_ONCE / workload.seq_len
    counts = [2**power for power in range(int(math.log2(MOST_DEVICES)) + 1)] if num_devices is None else [num_devices]
    for count in counts:
        for layout, recompute in divisions(workload.config, count, rows=most):
            held = power_of_two(min(most / layout.data, at_once))
            found = memory.choice(layout, held, recompute, batch=rows, limit=limit)
            considered.append(found)
            if found.fits:
                return considered
    if not considered:
        raise UsageError(
            f"num_devices: {num_devices} cannot share a batch of {most} rows: give fewer devices, or more to do"
        )
    assert limit is not None  # without one everything fits
    least = min(considered, key=lambda it: it.memory.total)
    raise UsageError(
        f"no layout of {num_devices or MOST_DEVICES} devices holds this model in {in_bytes(limit)} each: the least is "
        f"{in_bytes(least.memory.total)} ({least}); give more devices or memory, or fewer parameters"
    )


def divisions(config: AttnKitConfig, num_devices: int, *, rows: int) -> Iterator[tuple[Layout, Recompute]]:
    """All ways to divide a step of a batch of some rows, what talks least first; every rank gets a row."""
    layers, stacks = config.num_hidden_layers, [config, config.get_text_config(decoder=True)]
    sizes = [(it.num_key_value_heads, it.num_attention_heads, it.intermediate_size) for it in stacks]
    widths = [size or 1 for each in sizes for size in each]
    tensors = [it for it in range(1, DEVICES_OF_A_HOUSE + 1) if not any(width % it for width in widths)]
    shapes = [(tensor, stages) for stages in range(1, layers + 1) if layers % stages == 0 for tensor in tensors]
    shapes = [it for it in shapes if num_devices % (it[0] * it[1]) == 0]
    for tensor, stages in (it for it in shapes if num_devices // (it[0] * it[1]) <= rows):
        data = num_devices // (tensor * stages)
        for recompute in RECOMPUTE:
            for sharding in SHARDINGS if data > 1 else ("none",):
                yield Layout(sharding=sharding, data=data, tensor=tensor, pipeline=stages), recompute


def power_of_two(number: float) -> int:
    """The greatest that is not above a number, at least 1."""
    return int(2 ** max(0, math.floor(math.log2(max(number, 1)))))
