"""Held-out loss, and metrics over all held-out rows, each row counted exactly once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import nn

from attnkit.errors import UsageError
from attnkit.training.launch import sum_over_processes
from attnkit.training.order import take
from attnkit.training.randomness import EVALUATION, reseed

IGNORED = -100  # a label with this value is not predicted


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics that are no average over rows, such as F1, or that need more than the loss."""

    outcomes: Callable[[dict[str, Any], Any], list[Any]]
    """(batch, model output) -> one item per row of the batch, e.g. (prediction, label); must be picklable."""
    score: Callable[[list[Any]], dict[str, float]]
    """The items of all rows, in their order -> metrics by name."""


def count_labels(batch: dict[str, Any]) -> int:
    """The number of predictions in a batch: the terms of the mean that the model returns as `loss`."""
    return int((batch["labels"] != IGNORED).sum())


def evaluate_loss(
    model: nn.Module,
    rows: Sequence[Any],
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    batch_size: int,
    accelerator: Accelerator,
    metrics: Metrics | None = None,
) -> dict[str, float]:
    """Return `loss` = Σ nll / Σ labels over all rows and processes, and the metrics asked for. Equal on every process.

    Neither `batch_size` nor the number of processes changes the result (where `collate` draws random masks, the batch
    size does, as it decides which rows are drawn for together). `model` is the bare model; its training mode is left as
    it was. Raises `UsageError` if there is no row, or no label in them.
    """
    if len(rows) == 0:
        raise UsageError("there is no held-out row to evaluate on: give more text or examples to hold out")
    was_training = model.training
    model.eval()
    loss, labels, outcomes = 0.0, 0, []
    num_batches = math.ceil(len(rows) / batch_size)
    # Every process runs the same number of forward passes, as sharded models gather their weights in each.
    for turn in range(math.ceil(num_batches / accelerator.num_processes)):
        index = turn * accelerator.num_processes + accelerator.process_index
        counts = index < num_batches
        start = index * batch_size if counts else 0
        reseed(EVALUATION, start)
        batch = collate(take(rows, list(range(start, min(start + batch_size, len(rows))))))
        batch = send_to_device(batch, accelerator.device)
        with torch.no_grad():
            output = model(**batch)
        num_labels = count_labels(batch)
        if counts and num_labels:
            loss += float(output.loss) * num_labels
            labels += num_labels
        if counts and metrics is not None:
            outcomes.append((index, metrics.outcomes(batch, output)))
    model.train(was_training)
    total_loss, total_labels = sum_over_processes(accelerator, [loss, labels])
    if total_labels == 0:
        raise UsageError("no held-out row has a label to predict (every label is -100)")
    result = {"loss": total_loss / total_labels}
    if metrics is not None:
        ordered = sorted(gather_object(outcomes), key=lambda pair: pair[0])
        result.update(metrics.score([item for _, items in ordered for item in items]))
    return result
