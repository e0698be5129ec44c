"""The one training loop."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from attnkit.errors import UsageError
from attnkit.models.language import minimising
from attnkit.models.loss import TokenLoss
from attnkit.training.evaluation import count_labels
from attnkit.training.interrupt import stop_on_signal
from attnkit.training.launch import sum_over_processes
from attnkit.training.optimizer import set_learning_rate
from attnkit.training.order import RowOrder, row_length, take
from attnkit.training.randomness import COLLATE, FORWARD, reseed
from attnkit.training.run import Evaluate, Run, TrainResult
from attnkit.training.schedule import learning_rate
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import Tracker

__all__ = ["TrainResult", "TrainingConfig", "train"]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one process passes through the model at once."""

    position: int  # of its first row in the data of the run
    inputs: dict[str, Any]
    num_labels: int


def count_tokens(inputs: dict[str, Any]) -> int:
    """The tokens that the model reads, padding not counted: without a mask it reads all of them."""
    mask = inputs.get("attention_mask")
    return inputs["input_ids"].numel() if mask is None or mask.ndim != 2 else int(mask.sum())


def windows(
    rows: Sequence[Any],
    order: RowOrder,
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    size: int,
    seed: int,
) -> Iterator[list[MicroBatch]]:
    """The batches of this process, `size` of them per optimizer step, without end."""
    reading = iter(order)
    while True:
        window = []
        for position, indices in islice(reading, size):
            reseed(seed, COLLATE, position)
            inputs = collate(take(rows, indices))
            window.append(MicroBatch(position=position, inputs=inputs, num_labels=count_labels(inputs)))
        yield window


def train(
    model: nn.Module,
    train_rows: Sequence[Any],
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    training: TrainingConfig,
    accelerator: Accelerator,
    tracker: Tracker,
    evaluate: Evaluate | None = None,
) -> TrainResult:
    """Train `model`, in place, on rows that `collate` turns into keyword arguments of the model.

    Among these are `labels`, and the model returns `.loss`, the mean over the labels that are not -100. What is
    minimised is the mean over all labels of the global batch,

        loss = Σ loss_i · n_i / Σ n_i,    i over the micro batches of all processes, n_i their number of labels,

    so neither the number of processes nor that of accumulation steps changes the gradient. `evaluate(bare_model)`
    returns metrics by name, equal on every process, `training.best_metric` among them; see `evaluation.evaluate_loss`.
    Raises `UsageError` for impossible settings, an output folder that holds a run, missing processes, a checkpoint of
    another run, a batch without labels, a loss that is no number, and a disk that refuses.
    """
    num_processes, device = accelerator.num_processes, accelerator.device
    run = Run.start(
        model, len(train_rows), training=training, accelerator=accelerator, tracker=tracker, evaluate=evaluate
    )
    model, optimizer, progress = run.wrapped, run.optimizer, run.progress
    rate_at = learning_rate(training)
    num_rows = training.per_device_batch_size * training.gradient_accumulation_steps * num_processes  # per step
    order = RowOrder(
        len(train_rows),
        seed=training.seed,
        batch_size=training.per_device_batch_size,
        num_processes=num_processes,
        process=accelerator.process_index,
        first_row=progress.rows_seen,
        lengths=[row_length(row) for row in train_rows] if training.group_by_length else None,
        group_size=num_rows,
    )
    reading = windows(train_rows, order, collate=collate, size=training.gradient_accumulation_steps, seed=training.seed)
    is_first_step = True

    token_loss = TokenLoss(label_smoothing=training.label_smoothing, z_loss=training.z_loss)
    with minimising(token_loss, run.model), stop_on_signal() as stop:
        while run.goes_on:
            began = time.perf_counter()
            window = next(reading)
            num_labels, num_tokens, num_empty, num_stopping = sum_over_processes(
                accelerator,
                [
                    sum(micro.num_labels for micro in window),
                    sum(count_tokens(micro.inputs) for micro in window),
                    sum(micro.num_labels == 0 for micro in window),
                    stop.asked,
                ],
            )
            if num_stopping:  # on any process
                run.interrupted = True
                run.save()
                break
            if num_empty:
                raise UsageError(f"step {progress.step + 1}: a batch has no label to predict; leave out such rows")

            loss_sum = torch.zeros((), device=device)
            for micro in window:
                # Gradients travel between processes once, with the last micro batch.
                with nullcontext() if micro is window[-1] else accelerator.no_sync(model):
                    batch = send_to_device(micro.inputs, device)
                    reseed(training.seed, FORWARD, micro.position)
                    outputs = model(**batch)
                    # Wrappers average over processes, hence their number; `backward` divides by one accumulation step.
                    accelerator.backward(outputs.loss * (micro.num_labels * num_processes / num_labels))
                loss_sum += outputs.loss.detach() * micro.num_labels
            if is_first_step:
                run.name_unused_parameters()
                is_first_step = False
            grad_norm = accelerator.clip_grad_norm_(model.parameters(), training.max_grad_norm or math.inf).item()
            loss = sum_over_processes(accelerator, [loss_sum.item()])[0] / num_labels
            is_finite = math.isfinite(loss) and (math.isfinite(grad_norm) or accelerator.scaler is not None)
            if not is_finite:
                raise UsageError(
                    f"step {progress.step + 1}: the loss is {loss} and the norm of the gradient {grad_norm}; lower "
                    "training.learning_rate or training.max_grad_norm, or lengthen training.warmup_steps"
                )

            rate = rate_at(progress.step)
            set_learning_rate(optimizer, rate)
            optimizer.step()
            optimizer.zero_grad()

            progress.add_step(
                rows=num_rows,
                tokens=int(num_tokens),
                labels=int(num_labels),
                loss=loss,
                seconds=time.perf_counter() - began,
            )
            tracker.step(progress.step, loss)
            run.after_step(learning_rate=rate, grad_norm=grad_norm)
    return run.finish()
