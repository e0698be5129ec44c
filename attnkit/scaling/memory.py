"""Bytes that training or decoding takes on each device.

Textbook (Korthikanti 2022, equations 1 to 6): a layer of a model with dropout keeps s·b·h·(34 + 5·a·s/h) bytes in half
precision. What is estimated here is not that formula but what autograd keeps of this model (`trace.py`); the formula is
given beside it.
"""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from transformers import PreTrainedConfig

from attnkit.errors import UsageError, check_count, check_number, nearest
from attnkit.models.checks import obstacles
from attnkit.scaling.choices import TRACED_BACKENDS, Logits, Optimizer, Precision, Recompute, Sharding
from attnkit.scaling.flops import check_positions, check_target, make_batch
from attnkit.scaling.hardware import CPU_RUNTIME, Device, find_device
from attnkit.scaling.measured import measured_cache
from attnkit.scaling.parameters import kinds_of_layers
from attnkit.scaling.parts import build_position, build_scorer, cost_of, places
from attnkit.scaling.states import Static, static_bytes
from attnkit.scaling.subject import Config, FilledConfig, Subject, read_subject
from attnkit.scaling.trace import Setting, Step, has_decoder_count, trace_step

MAX_DEVICES = 2**20
MASKED = 0.15  # of the tokens are predicted (Devlin 2019, section 3.1)
SECOND_STREAM = 6  # tokens for each that is predicted (Yang 2019, section 2.3)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is divided: `data` ranks of `tensor` · `pipeline` devices."""

    sharding: Sharding = "none"
    data: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is computed at once, as far as memory depends on it; `estimate_memory` explains each field."""

    config: Config
    head: str | None = None
    batch_size: int = 1
    seq_len: int
    target_len: int | None = None
    predicted: int | None = None
    precision: Precision = "fp32"
    optimizer: Optimizer = "adamw"
    backend: str = "eager"
    recompute: Recompute = "none"
    logits: Logits | None = None
    training: bool = True


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What autograd keeps for backward, its part of the head included."""
    logits: int
    """Logits of all positions in the dtype of the model, if the caller holds them; none if the loss is chunked."""
    kv_cache: int
    temporary: int
    """What is alive besides at the moment of the peak, what is left of the activations in backward among it."""
    peak: int
    peak_phase: str
    at_peak: dict[str, int]
    """What of each part is alive at that moment: its sum is the peak."""
    textbook_activations: int
    """s·b·h·L·(34 + 5·a·s/h) or its kin, for comparison."""
    margin: int
    """What an allocator may lose to fragmentation."""
    runtime: int
    """What the libraries take on their first use."""

    @property
    def total(self) -> int:
        """What a device needs: the peak, the margin and what the libraries take."""
        return self.peak + self.margin + self.runtime


def estimate_memory(
    config: Config,
    *,
    batch_size: int = 1,
    seq_len: int,
    target_len: int | None = None,
    predicted: int | None = None,
    head: str | None = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = "adamw",
    backend: str = "eager",
    recompute: Recompute = "none",
    logits: Logits | None = None,
    training: bool = True,
    layout: Layout | None = None,
    accumulates: bool = False,
    fragmentation: float = 0.0,
    runtime: int = CPU_RUNTIME,
) -> MemoryEstimate:
    """Bytes per device of a training step (or of a forward pass with a full cache) on `batch_size` rows of `seq_len`.

    `logits` "chunked" is the loss as `attnkit pretrain` computes it, of predicted tokens only and a chunk of them at a
    time, the default for language models of ours; "whole" that of transformers, from the logits of all tokens.
    `predicted` are the positions of a row with a label (default: a sixth of the tokens for a second stream, 15% of them
    for other encoders, and else all); without a second stream whole logits do not depend on it. `batch_size` is that of
    one data-parallel rank and, with a pipeline, of one micro-batch. Precisions: "fp32", "bf16", "mixed" (bf16 weights
    and gradients, fp32 master weights and moments: 16 bytes per parameter with AdamW),
    "mixed_fp32_gradients" (18) and "autocast". Dropout is the config's; `recompute` "full" keeps the inputs of blocks
    only, "selective" all but scores and weights. A step that `accumulates` begins with the gradients of
    earlier batches. `fragmentation` is a part of the peak; `runtime` are the bytes that
    the libraries take on their first use, outside of the peak (the default is that of a CPU; a CUDA context takes half
    a GiB and more).

    Raises `UsageError` for numbers and names that mean nothing, and for a backend that cannot compute the parts.
    """
    workload = Workload(
        config=config,
        head=head,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        predicted=predicted,
        precision=precision,
        optimizer=optimizer,
        backend=backend,
        recompute=recompute,
        logits=logits,
        training=training,
    )
    layout = Layout() if layout is None else layout
    traced = trace_memory(workload)
    return traced.divided(layout, accumulates=accumulates, fragmentation=fragmentation, runtime=runtime)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A step of a whole model, to be divided among devices."""

    subject: Subject
    setting: Setting
    step: Step
    static: Static
    kv_cache: int

    @property
    def alone(self) -> MemoryEstimate:
        """What one device holds that has the model to itself."""
        return self.divided(Layout())

    def divided(
        self,
        layout: Layout,
        *,
        accumulates: bool = False,
        fragmentation: float = 0.0,
        runtime: int = CPU_RUNTIME,
    ) -> MemoryEstimate:
        """What one device holds; if it `accumulates`, gradients of earlier batches too, from the first moment on."""
        check_layout(self.subject, layout, fragmentation=fragmentation)
        check_count("runtime", runtime, least=0)
        return divide(self, layout, accumulates=accumulates, fragmentation=fragmentation, runtime=runtime)


def trace_memory(workload: Workload) -> Traced:
    """The step that `estimate_memory` divides. Raises `UsageError` as it does."""
    subject = read_subject(workload.config, head=workload.head)
    setting = setting_of(workload, subject)
    precision, optimizer, training = workload.precision, workload.optimizer, workload.training
    return Traced(
        subject=subject,
        setting=setting,
        step=trace_step(subject, setting),
        static=static_bytes(subject, precision=precision, optimizer=optimizer, training=training),
        kv_cache=0 if training else kv_cache_bytes(subject, setting),
    )


def setting_of(workload: Workload, subject: Subject) -> Setting:
    """What of a workload decides on its step, and what is usual where nothing is said."""
    check_workload(workload, subject)
    chunked = workload.training and subject.is_language_model
    target, precision = workload.target_len or workload.seq_len, workload.precision
    usual = usually_predicted(subject, workload.seq_len, target_len=target)
    return Setting(
        batch_size=workload.batch_size,
        seq_len=workload.seq_len,
        target_len=target,
        predicted=usual if workload.predicted is None else workload.predicted,
        dtype=torch.float32 if precision in ("fp32", "autocast") else torch.bfloat16,
        autocast=torch.bfloat16 if precision == "autocast" else None,
        backend=workload.backend,
        recompute=workload.recompute,
        logits=workload.logits or ("chunked" if chunked else "whole"),
        training=workload.training,
    )


def check_workload(workload: Workload, subject: Subject) -> None:
    """Raise `UsageError` for numbers and names that mean nothing, and for what cannot be traced."""
    if not isinstance(subject.config.to_dict().get(layers_field(subject.config)), int):
        raise UsageError(
            f"{subject.config.model_type} has no num_hidden_layers, blocks of one kind that memory is traced with: "
            "give the config of its text model"
        )
    check_target(subject, workload.target_len)
    target, predicted = workload.target_len, workload.predicted
    batch = make_batch(workload.batch_size, workload.seq_len, target_len=target, past=0, predicted=predicted)
    kinds = {"precision": Precision, "optimizer": Optimizer, "recompute": Recompute}
    for name, kind in (kinds if workload.logits is None else kinds | {"logits": Logits}).items():
        choice = vars(workload)[name]
        if choice not in get_args(kind):
            raise UsageError(f"unknown {name} {choice!r}: {nearest(choice, get_args(kind))}")
    if workload.logits == "chunked" and not (workload.training and subject.is_language_model):
        raise UsageError("logits 'chunked' is a training step of AttnKit language models: give 'whole'")
    if subject.ours is None:
        if workload.recompute == "selective":
            raise UsageError("recompute 'selective' is traced for AttnKit models: give 'none' or 'full'")
        return
    backend = workload.backend
    if backend not in TRACED_BACKENDS:
        raise UsageError(f"memory is estimated for no backend {backend!r}: {nearest(backend, TRACED_BACKENDS)}")
    for reason in obstacles(subject.ours, backend):
        raise UsageError(f"backend {backend!r}: {reason}")
    check_positions(subject.ours, batch)


def layers_field(config: PreTrainedConfig) -> str:
    """The field of a config that says how many blocks there are."""
    return config.attribute_map.get("num_hidden_layers", "num_hidden_layers")


def usually_predicted(subject: Subject, seq_len: int, *, target_len: int) -> int:
    """How many tokens of a row are predicted in pretraining."""
    if subject.config.is_encoder_decoder:
        return target_len
    if subject.ours is None or subject.ours.architecture == "decoder":
        return seq_len
    return max(1, seq_len // SECOND_STREAM if subject.head == "permutation_lm" else round(MASKED * seq_len))


def check_layout(subject: Subject, layout: Layout, *, fragmentation: float) -> None:
    """Refuse what is no count, and divisions that leave something over."""
    if not isinstance(layout, Layout):
        raise UsageError(f"layout must be an attnkit.scaling.Layout, not {layout!r}")
    for name, count in (("data", layout.data), ("tensor", layout.tensor), ("pipeline", layout.pipeline)):
        check_count(name, count)
    if layout.sharding not in get_args(Sharding):
        raise UsageError(f"unknown sharding {layout.sharding!r}: {nearest(layout.sharding, get_args(Sharding))}")
    check_number("fragmentation", fragmentation, least=0, most=0.99)
    if layout.sharding == "none" and layout.data > 1:
        raise UsageError(f"{layout.data} data-parallel ranks need a sharding: ddp, zero1, zero2, zero3 or fsdp")
    config = subject.ours
    for keys in [] if config is None else [config.num_key_value_heads, config.num_decoder_key_value_heads or 0]:
        if keys % layout.tensor:
            raise UsageError(f"tensor {layout.tensor} does not divide {keys} key-value heads")
    if layout.pipeline > subject.config.num_hidden_layers:
        raise UsageError(f"pipeline {layout.pipeline} is more than {subject.config.num_hidden_layers} layers")


def divide(traced: Traced, layout: Layout, *, accumulates: bool, fragmentation: float, runtime: int) -> MemoryEstimate:
    """The part of one device: every phase of the step, with its own share of states and activations."""
    step, whole, kv_cache = traced.step, traced.static, math.ceil(traced.kv_cache / layout.tensor / layout.pipeline)
    model = layout.tensor * layout.pipeline
    shards = {"optimizer": ("zero1", "zero2", "zero3", "fsdp"), "gradients": ("zero2", "zero3", "fsdp")}
    shards["weights"] = ("zero3", "fsdp")
    part = {
        name: math.ceil(size / model / (layout.data if layout.sharding in shards[name] else 1))
        for name, size in vars(whole).items()
    }
    buckets = part["gradients"] if layout.sharding == "ddp" else 0
    gathered = gathered_bytes(traced, layout, own=part["weights"]) if layout.sharding in shards["weights"] else 0
    # With one pipeline stage after another, the first holds as many micro-batches as there are stages, of a share each.
    replicated = step.activations - step.in_parts
    activations = replicated + math.ceil(step.in_parts / layout.tensor)
    shrink = activations / step.activations if step.activations else 1.0
    fixed = part["weights"] + part["optimizer"] + buckets + gathered + step.buffers + kv_cache
    # The trace holds weights and no optimizer; its gradients have the dtype of its weights.
    gradients = {
        name: part["gradients"] if accumulates else math.ceil(part["gradients"] * moment.gradients / step.weights)
        for name, moment in step.peaks.items()
    }
    phases = {}
    for name, moment in step.peaks.items():
        passing = moment.total - step.weights - step.buffers - moment.gradients
        if name == "forward":
            passing -= moment.in_parts - math.ceil(moment.in_parts / layout.tensor)
        else:  # what backward makes inside layers is not known apart
            passing = math.ceil(passing * shrink)
        phases[name] = fixed + gradients[name] + passing
    phase = max(phases, key=lambda name: phases[name])
    peak = phases[phase]
    alive = {"weights": part["weights"], "gradients": gradients[phase], "optimizer": part["optimizer"]}
    alive["kv_cache"] = kv_cache
    if phase == "forward":  # what is left of the activations later is not known apart
        alive |= {"activations": activations, "logits": step.outputs}
    alive["temporary"] = peak - sum(alive.values())
    return MemoryEstimate(
        weights=part["weights"],
        gradients=part["gradients"],
        optimizer=part["optimizer"],
        activations=activations,
        logits=step.outputs,
        kv_cache=kv_cache,
        temporary=alive["temporary"],
        peak=peak,
        peak_phase=phase,
        at_peak=alive,
        textbook_activations=textbook_activations(traced.subject, traced.setting, tensor=layout.tensor),
        margin=math.ceil(peak * fragmentation),
        runtime=runtime,
    )


def gathered_bytes(traced: Traced, layout: Layout, *, own: int) -> int:
    """The weights of other ranks that one has for a moment, beside its `own`: two blocks, or all of a smaller stage."""
    config = traced.subject.config
    blocks = config.num_hidden_layers + (config.num_decoder_layers if has_decoder_count(config) else 0)
    weights = math.ceil(traced.static.weights / layout.tensor)
    return min(2 * weights // blocks, math.ceil(weights / layout.pipeline) - own)


def kv_cache_bytes(subject: Subject, setting: Setting) -> int:
    """Keys and values of every token, per layer and key-value head; of the source too where there is one."""
    config = subject.ours
    if config is None:
        rows, target = setting.batch_size, setting.target_len
        return measured_cache(subject, rows=rows, tokens=setting.seq_len, target=target, dtype=setting.dtype)
    numbers = 0
    for depth, (stack, causal, cross) in enumerate(kinds_of_layers(config)):
        if causal:
            tokens = setting.target_len if cross else setting.seq_len
            numbers += tokens * cached_numbers(stack, config.scorer_of_layer(depth))
        if cross:
            numbers += setting.seq_len * 2 * stack.num_key_value_heads * stack.head_dim
    return setting.batch_size * numbers * setting.dtype.itemsize


def cached_numbers(config: FilledConfig, scorer: tuple[str, dict]) -> int:
    """Numbers of key and value per token of a stack that looks back, a column of the distance that says types too."""
    width, position = config.head_dim, build_position(config, causal=True, in_layer=True)
    if position.reads_segments:
        shape, part = (1, config.num_key_value_heads, 1, width), build_scorer(config, *scorer)
        width = cost_of(lambda it: part.widen_key(part.map_key(it, places(0, 1)), places(0, 1)), *shape).width
        width += cost_of(lambda it: position.map_key(places(0, 1), it.dtype), *shape).width
    return config.num_key_value_heads * (width + config.head_dim)


def textbook_activations(subject: Subject, setting: Setting, *, tensor: int = 1) -> int:
    """Korthikanti 2022: s·b·h·L times 10 + 24/t + 5·a·s/(h·t) (eq. 2), without the last term where attention is fused
    or recomputed (eq. 6), or 2 where blocks are recomputed, and one block's worth more."""
    config = subject.config
    # A state space model has no heads; a config whose layers differ names those of all layers here.
    heads = config.to_dict().get(config.attribute_map.get("num_attention_heads", "num_attention_heads")) or 0
    width, layers = config.hidden_size, config.num_hidden_layers
    unit = setting.seq_len * setting.batch_size * width
    keeps_scores = setting.backend == "eager" and setting.recompute != "selective"
    scores = 5 * heads * setting.seq_len / (width * tensor) if keeps_scores else 0.0
    block = unit * (10 + 24 / tensor + scores)
    return round(2 * unit * layers + block if setting.recompute == "full" else block * layers)


def fewest_devices(
    traced: Traced, device: str | Device, *, sharding: Sharding, fragmentation: float = 0.0, runtime: int = CPU_RUNTIME
) -> int | None:
    """The fewest data-parallel ranks of a device on which a traced step fits; None where no number does."""
    card = device if isinstance(device, Device) else find_device(device)

    def fits(count: int) -> bool:
        layout = Layout(sharding=sharding if count > 1 else "none", data=count)
        return traced.divided(layout, fragmentation=fragmentation, runtime=runtime).total <= card.memory

    if fits(1):
        return 1
    if sharding in ("none", "ddp") or not fits(MAX_DEVICES):
        return None
    low, high = 1, MAX_DEVICES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
