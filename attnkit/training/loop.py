"""The one training loop."""

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class TrainingConfig:
    """How a model is trained, whatever it is trained for."""

    output_dir: str = "runs/attnkit"
    """Folder of the run: checkpoints, log, resolved config and the final model."""
    max_steps: int = 1000
    """Optimizer steps."""
    per_device_batch_size: int = 16
    """Rows per process and forward pass."""
    gradient_accumulation_steps: int = 1
    """Forward passes per optimizer step."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant", "warmup_stable_decay"] = "cosine"
    """How the learning rate moves after the warm-up."""
    warmup_steps: int = 100
    """Optimizer steps of linear warm-up."""
    decay_steps: int | None = None
    """`warmup_stable_decay`: optimizer steps of the decay at the end; a fifth of `max_steps` without it."""
    min_learning_rate: float = 0.0
    """Learning rate at the end of the schedule."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the matrices (Loshchilov 2019); biases, norms and vectors have none."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null for no clipping."""
    eval_steps: int = 200
    """Optimizer steps between evaluations."""
    save_steps: int = 500
    """Optimizer steps between checkpoints."""
    keep_last: int = 2
    """Checkpoints that are kept, besides the best one."""
    log_steps: int = 10
    """Optimizer steps between log lines."""
    seed: int = 0
    """Seed of weights, data order and dropout."""
    num_processes: int | None = None
    """Processes that this run was planned for; the run stops if it has another number."""
    resume: bool = False
    """Go on from the newest complete checkpoint in `output_dir`."""
    overwrite: bool = False
    """Delete the run that `output_dir` already holds."""
