"""What a run checks and does to its model before the first step, and undoes after the last."""

from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel

from attnkit.errors import UsageError, nearest
from attnkit.models.language import LanguageModel
from attnkit.training.checkpoint import is_complete
from attnkit.training.launch import check_num_processes, dividing_layers
from attnkit.training.order import TrainRows, count_rows
from attnkit.training.settings import TrainingConfig
from attnkit.training.shards import check_divisible

HALF = (torch.bfloat16, torch.float16)


def check(
    model: nn.Module,
    rows: TrainRows,
    *,
    training: TrainingConfig,
    accelerator: Accelerator,
    metric_names: Sequence[str] | None,
) -> None:
    """Raise `UsageError` for whatever of a run can be known to be wrong before the first step."""
    if count_rows(rows) == 0:
        raise UsageError("there is no row to train on: give more text or examples")
    if accelerator.gradient_accumulation_steps != 1:
        raise ValueError("the accelerator divides gradients itself: make it with training.launch.make_accelerator")
    check_num_processes(accelerator, training.num_processes)
    check_settings(model, training, accelerator=accelerator, metric_names=metric_names)


def check_settings(
    model: nn.Module, training: TrainingConfig, *, accelerator: Accelerator, metric_names: Sequence[str] | None
) -> None:
    """Raise `UsageError` for settings that say nonsense, or go with no model, metric or checkpoint that is there, and
    for a model that the processes cannot divide among them as the launcher asks."""
    problems = training.problems()
    if problems:
        raise UsageError("; ".join(problems))
    check_equipment(model, training)
    check_divisible(model, dividing_layers(accelerator))
    if metric_names is not None:
        check_metric(training, metric_names)
    if training.from_checkpoint is not None and not is_complete(Path(training.from_checkpoint)):
        raise UsageError(
            f"training.from_checkpoint: {training.from_checkpoint} is no complete checkpoint; give a folder "
            "checkpoints/step-… of a run"
        )


def check_metric(training: TrainingConfig, names: Sequence[str] | dict[str, float]) -> None:
    """Raise `UsageError` if the metric that decides which checkpoint is the best is none of a run's."""
    if training.best_metric not in names:
        known = nearest(training.best_metric, names)
        raise UsageError(f"training.best_metric: this run has no metric {training.best_metric!r}: {known}")


def check_equipment(model: nn.Module, training: TrainingConfig) -> None:
    """Raise `UsageError` if a model cannot do what the settings ask of it."""
    asked = [name for name in ("label_smoothing", "z_loss") if vars(training)[name]]
    if asked and not isinstance(model, LanguageModel):
        raise UsageError(
            f"training.{asked[0]}: {type(model).__name__} computes its own loss; set it to 0, or train a language "
            "model of attnkit"
        )
    recomputes = isinstance(model, PreTrainedModel) and model.supports_gradient_checkpointing
    if training.activation_checkpointing and not recomputes:
        raise UsageError(
            f"training.activation_checkpointing: {type(model).__name__} cannot compute activations anew; set it to "
            "false"
        )
    if training.compile_backend is None:
        return  # the compiler takes half a second to import
    backends = torch.compiler.list_backends(exclude_tags=())
    if training.compile_backend not in backends:
        raise UsageError(
            f"training.compile_backend: unknown backend {training.compile_backend!r}: "
            f"{nearest(training.compile_backend, backends)}"
        )


def equip(model: nn.Module, training: TrainingConfig, *, mixed_precision: str) -> None:
    """Make the model ready for training as the settings say, under its own names of parameters."""
    model.train()
    if mixed_precision != "no" or any(weight.dtype in HALF for weight in model.parameters()):
        model.float()  # half precision is for the passes: small updates would be lost in half weights
    if training.activation_checkpointing and isinstance(model, PreTrainedModel):
        model.activation_checkpointing_enable()
    if training.compile_backend is not None:
        model.compile(backend=training.compile_backend)


def unequip(model: nn.Module, training: TrainingConfig) -> None:
    """Give the model back as plain as it came."""
    if training.activation_checkpointing and isinstance(model, PreTrainedModel):
        model.activation_checkpointing_disable()
    if training.compile_backend is not None:
        model._compiled_call_impl = None  # torch has no public way back
