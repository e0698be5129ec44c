"""The size table, computed: every figure from the config of a row, beside what was published."""

from dataclasses import asdict, dataclass
from typing import Any

from attnkit.scaling.attention_flops import Work, product
from attnkit.scaling.choices import Convention
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import estimate_time
from attnkit.scaling.memory import Traced, Workload, fewest_devices, trace_memory
from attnkit.scaling.parameters import count_parameters, parameters_by_component
from attnkit.scaling.rows import ROWS, Phase, Row, config_of
from attnkit.scaling.subject import FilledConfig, Subject, read_subject

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table; None where nothing was published that it could be computed from."""

    model: str
    year: int
    layers: int
    width: int
    heads: int
    table_heads: str
    parameters: int
    table_parameters: str
    error: float
    data: str
    tokens: float | None
    flops_6nd: float | None
    flops_exact: float | None
    flops_causal_useful: float | None
    flops_hardware: float | None
    published_flops: float | None
    devices: str
    predicted_hours: float | None
    table_hours: float | None
    implied_mfu: float | None
    memory_gib: float | None
    fewest_devices: int | None
    notes: tuple[str, ...]


def size_table(*, mfu: float = 0.3, with_memory: bool = True) -> list[Line]:
    """All rows. Times are predicted at a model FLOPs utilization of `mfu`.

    Memory is that of a training step on one row of text on one device, in mixed precision with AdamW (16 bytes per
    parameter), eager attention and recomputed blocks; the fewest devices hold it under ZeRO-3.
    """
    return [make_line(row, mfu=mfu, with_memory=with_memory) for row in ROWS]


def make_line(row: Row, *, mfu: float, with_memory: bool) -> Line:
    """One row."""
    subject = read_subject(config_of(row))
    assert subject.ours is not None
    config = subject.ours
    parameters = parameters_by_component(config, head=subject.head).total
    flops = {
        name: training_flops(row, subject, convention=name) for name in ("6nd", "exact", "causal_useful", "hardware")
    }
    exact = flops["exact"]
    predicted = implied = None
    if row.device is not None and exact is not None and row.num_devices is not None:
        predicted = estimate_time(exact, device=row.device, num_devices=row.num_devices, mfu=mfu, dtype=row.dtype).hours
        if row.table_hours is not None:
            seconds = row.table_hours * 3600
            implied = estimate_time(
                exact, device=row.device, num_devices=row.num_devices, seconds=seconds, dtype=row.dtype
            ).mfu
    traced = trace_row(row, subject) if with_memory else None
    return Line(
        model=row.label,
        year=row.year,
        layers=config.num_all_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        table_heads=row.heads_text,
        parameters=parameters,
        table_parameters=row.table_text,
        error=parameters / row.table_parameters - 1,
        data=row.data,
        tokens=tokens_of(row, config) if row.phases else None,
        flops_6nd=flops["6nd"],
        flops_exact=exact,
        flops_causal_useful=flops["causal_useful"],
        flops_hardware=flops["hardware"],
        published_flops=row.published_flops,
        devices="" if row.device is None else f"{row.num_devices}x {row.device}",
        predicted_hours=predicted,
        table_hours=row.table_hours,
        implied_mfu=implied,
        memory_gib=None if traced is None else traced.alone.total / GIB,
        fewest_devices=None if traced is None else fewest_devices(traced, row.device or "V100", sharding="zero3"),
        notes=row.notes + ((f"published FLOPs: {row.published_by}",) if row.published_by else ()),
    )


def tokens_of(row: Row, config: FilledConfig) -> float:
    """Tokens seen, the source's and the target's."""
    return sum(phase.rows * phase.seq_len for phase in row.phases) * (2 if config.is_encoder_decoder else 1)


def training_flops(row: Row, subject: Subject, *, convention: Convention) -> float | None:
    """FLOPs of the row's training by a convention; None where its tokens were not published."""
    if not row.phases:
        return None
    return sum(phase.rows * flops_of_row(row, phase, subject, convention=convention) for phase in row.phases)


def flops_of_row(row: Row, phase: Phase, subject: Subject, *, convention: Convention) -> float:
    """FLOPs of training on one row of text."""
    config = subject.ours
    assert config is not None
    if config.two_stream and convention != "6nd":
        assert phase.predicted is not None
        return xlnet_work(config, tokens=phase.seq_len, memory=phase.past, targets=phase.predicted).total
    return count_flops(
        config,
        head=subject.head,
        seq_len=phase.seq_len,
        predicted=None if config.two_stream else phase.predicted,
        convention=convention,
        recompute="full" if row.full_recompute else "none",
    ).total


def xlnet_work(config: FilledConfig, *, tokens: int, memory: int, targets: int) -> Work:
    """FLOPs of XLNet's own algorithm on one row (Yang 2019; zihangdai/xlnet), N tokens, K = N + memory keys, P targets.

    Content: queries, keys, values, output and K + N places are projected, scored with keys (N·K) and places
    (N·(K + N)), and values are summed (N·K). The second stream projects P queries, spreads them over N rows and back
    (2·N·P), and scores those as the first stream does. No gradient flows into places and the spreading, and of the last
    layer's first stream only into keys and values. Segments, two more products per query, are not counted.
    """
    width, inner, keys, places = config.hidden_size, config.intermediate_size, tokens + memory, 2 * tokens + memory
    stream = product(tokens, keys + places + keys, width)  # scores and values of N queries
    content = product(2 * tokens, width, width) + stream + product(2 * tokens, width, inner)
    both = product(2 * keys, width, width) + product(places, width, width, gradients=1)
    second = product(2 * targets, width, width) + stream + product(2 * targets, width, inner)
    both += second + product(2 * tokens, targets, width, gradients=1)
    layers = config.num_hidden_layers
    return (
        both * layers
        + content * (layers - 1)
        + Work(forward=content.forward)
        + product(targets, width, config.vocab_size)
    )


def trace_row(row: Row, subject: Subject) -> Traced:
    """A training step on one row of text of the row's last and longest kind."""
    phase = row.phases[-1] if row.phases else Phase(rows=1, seq_len=subject.config.max_position_embeddings)
    workload = Workload(
        config=subject.config,
        head=subject.head,
        seq_len=phase.seq_len,
        predicted=phase.predicted,
        precision="mixed",
        recompute="full",
    )
    return trace_memory(workload)


def as_records(lines: list[Line]) -> list[dict[str, Any]]:
    """The lines for JSON and CSV."""
    return [asdict(line) for line in lines]


def counts_agree(row: Row) -> bool:
    """Whether the closed formula and the model built on the meta device have the same number of parameters."""
    subject = read_subject(config_of(row))
    model = subject.build_without_memory()
    return count_parameters(subject.config, head=subject.head) == sum(it.numel() for it in model.parameters())
