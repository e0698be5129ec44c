"""What a plan says: a model, its batch, layout, time and loss, and the run that `attnkit pretrain` takes."""

from dataclasses import dataclass
from typing import Any

import yaml

from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.scaling.choices import Precision
from attnkit.scaling.hardware import Device, TimeEstimate
from attnkit.scaling.laws import AnyLaw, Repeated
from attnkit.scaling.layouts import Choice
from attnkit.scaling.memory import Layout, MemoryEstimate, Workload

LAUNCHERS = {
    "none": "ddp.yaml",
    "ddp": "ddp.yaml",
    "zero1": "fsdp2_gradients.yaml",
    "zero2": "fsdp2_gradients.yaml",
    "zero3": "fsdp2_full.yaml",
    "fsdp": "fsdp2_full.yaml",
}
"""The file for Accelerate that shares out at least as much."""
WORTH = 4  # passes over a text that are worth nearly as much as new text (Muennighoff 2023)
SOURCE = "python-docs"
PYTHON_DOCS = {2**9: 1.08e6, 2**10: 8.2e5, 2**11: 6.7e5, 2**12: 5.8e5, 2**13: 5.3e5, 2**14: 5.0e5}
"""Tokens, about, of the text that ships with Python, by the most entries of a vocabulary trained on it."""


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
    """6·N·D, as laws count."""
    exact_flops: float
    """As a device has to do them, which `time` is of."""
    law: AnyLaw
    loss: float
    steps: int
    learning_rate: float
    warmup_steps: int
    workload: Workload
    limit: float | None
    """Bytes that a device has; null where nothing says so."""
    considered: list[Choice]
    """The layouts that were looked at, in order; the last is taken."""
    time: TimeEstimate | None
    """Null where no device was named."""
    front: list[Point]
    reasons: list[str]

    @property
    def seq_len(self) -> int:
        return self.workload.seq_len

    @property
    def precision(self) -> Precision:
        return self.workload.precision

    @property
    def device(self) -> Device | None:
        return None if self.time is None else self.time.device

    @property
    def hours(self) -> float | None:
        return None if self.time is None else self.time.hours

    @property
    def is_extrapolated(self) -> bool:
        """Whether the model is smaller than any that the law was fitted to, so that its loss means nothing."""
        return self.parameters < self.law.smallest

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
    def accumulation(self) -> int:
        return self.chosen.accumulation

    @property
    def num_devices(self) -> int:
        return self.layout.devices

    @property
    def mixed_precision(self) -> str:
        """The value of `training.mixed_precision`."""
        if self.precision == "fp32":
            return "no"
        return "bf16" if self.device is None else self.device.dtype_of(self.precision)

    def source_reason(self, source: str) -> str:
        """What is to be said of the text that the run reads."""
        if source != SOURCE:
            return f"data.source: {source}"
        said = f"data.source: {SOURCE}, the text that ships with Python"
        entries = self.config.vocab_size
        if entries > max(PYTHON_DOCS):
            return f"{said}, which is too little for a vocabulary of {entries:,}: give your own with --source"
        there = next(tokens for most, tokens in PYTHON_DOCS.items() if entries <= most)
        passes = f", {self.tokens / there:,.1f} times over" if self.tokens > there else ""
        if self.tokens > WORTH * there and not isinstance(self.law, Repeated):
            passes += f" (the loss is that of text which is all different: see --unique_tokens {there:.0f})"
        return f"{said}{passes}: give your own with --source"

    def run(self, *, source: str = SOURCE, output_dir: str = "runs/planned") -> dict[str, Any]:
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
            "mixed_precision": self.mixed_precision,
            "activation_checkpointing": self.chosen.recompute != "none",
        }
        num_processes = self.layout.data * self.layout.tensor
        if num_processes > 1:
            training["num_processes"] = num_processes
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
        if layout.pipeline > 1 or (layout.tensor > 1 and layout.data > 1):
            return (
                "no trainer of attnkit divides layers among groups of devices, or one after the other among devices: "
                f"take the sizes of {file} to one that does, or plan for devices with more memory"
            )
        if layout.tensor > 1:
            return (
                "accelerate launch --config_file configs/accelerate/tensor_parallel.yaml --num_processes "
                f"{layout.tensor} --parallelism_config_tp_size {layout.tensor} train/pretrain.py --config {file}"
            )
        if layout.data == 1:
            return f"attnkit pretrain --config {file}"
        launcher = LAUNCHERS[layout.sharding]
        return (
            f"accelerate launch --config_file configs/accelerate/{launcher} --num_processes {layout.data} "
            f"train/pretrain.py --config {file}"
        )

    def to_yaml(self, *, source: str = SOURCE, output_dir: str = "runs/planned") -> str:
        """The run as a file, with the reasons as its comments."""
        reasons = "".join(f"# {reason}\n" for reason in [*self.reasons, self.source_reason(source)])
        return reasons + yaml.safe_dump(self.run(source=source, output_dir=output_dir), sort_keys=False)
