"""The learning rate as a function of the optimizer step, and of nothing else.

The curves are those of `transformers.optimization`. Only their formulas are used: a scheduler object has a step counter
of its own, which a prepared scheduler advances once per process and a resumed run must restore.
"""

from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import optimization

from attnkit.training.settings import TrainingConfig


def cosine(optimizer: Optimizer, training: TrainingConfig) -> LambdaLR:
    """Half a cosine from peak to minimum (Loshchilov 2017)."""
    return optimization.get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, training.warmup_steps, training.num_steps, min_lr=training.min_learning_rate
    )


def linear(optimizer: Optimizer, training: TrainingConfig) -> LambdaLR:
    """A straight line from peak to minimum."""
    return optimization.get_polynomial_decay_schedule_with_warmup(
        optimizer, training.warmup_steps, training.num_steps, lr_end=training.min_learning_rate, power=1.0
    )


def constant(optimizer: Optimizer, training: TrainingConfig) -> LambdaLR:
    """The peak until the end."""
    return optimization.get_constant_schedule_with_warmup(optimizer, training.warmup_steps)


def inverse_sqrt(optimizer: Optimizer, training: TrainingConfig) -> LambdaLR:
    """peak · √(w / step), w the warm-up's steps, and never below the minimum (Vaswani 2017, section 5.3); without a
    warm-up w is 10,000."""
    curve = optimization.get_inverse_sqrt_schedule(optimizer, training.warmup_steps).lr_lambdas[0]
    floor = training.min_learning_rate / training.learning_rate
    return LambdaLR(optimizer, lambda step: curve(step) if step < training.warmup_steps else max(curve(step), floor))


def warmup_stable_decay(optimizer: Optimizer, training: TrainingConfig) -> LambdaLR:
    """The peak, then minimum + (peak - minimum)·(1 - √progress) over the last decay steps (Hägele 2024).

    Until then the rate knows no end, so any checkpoint before can be decayed from: `training.from_checkpoint`.
    """
    curve = optimization.get_wsd_schedule(
        optimizer,
        training.warmup_steps,
        training.num_decay_steps,
        num_training_steps=training.num_steps,
        decay_type="1-sqrt",
        min_lr_ratio=training.min_learning_rate / training.learning_rate,
    ).lr_lambdas[0]
    warmup = training.warmup_steps  # which would begin at the minimum there
    return LambdaLR(optimizer, lambda step: step / warmup if step < warmup else curve(step))


SCHEDULES: dict[str, Callable[[Optimizer, TrainingConfig], LambdaLR]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "warmup_stable_decay": warmup_stable_decay,
}


def learning_rate(training: TrainingConfig) -> Callable[[int], float]:
    """Return step -> learning rate of the update after `step` updates, step = 0 … `max_steps` - 1.

    Linear warm-up from zero is at the peak at step `warmup_steps`; the curve would be at `min_learning_rate` at step
    `max_steps`, but for `constant` and `inverse_sqrt`, which have no end.
    """
    optimizer = torch.optim.SGD(
        [torch.zeros(1)], lr=training.learning_rate
    )  # read for its learning rate, never stepped
    factor = SCHEDULES[training.schedule](optimizer, training).lr_lambdas[0]
    return lambda step: training.learning_rate * float(factor(step))
