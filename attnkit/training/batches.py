"""The batches of an optimizer step: what each process reads, and how much of the loss is whose."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from attnkit.errors import UsageError
from attnkit.training.evaluation import count_labels
from attnkit.training.launch import sum_over_processes
from attnkit.training.order import RowOrder, TrainRows, count_rows, row_length, rows_of_step, take
from attnkit.training.randomness import COLLATE, reseed
from attnkit.training.settings import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one process passes through the model at once."""

    position: int  # of its first row in the data of the run
    inputs: dict[str, Any]
    num_labels: int


class Window:
    """The micro batches of this process for one optimizer step, and the counts of those of all processes together."""

    def __init__(self, batches: Sequence[MicroBatch], *, accelerator: Accelerator, stop: bool, step: int) -> None:
        self.batches = batches
        self._accelerator = accelerator
        self._losses: list[torch.Tensor] = []
        num_labels, num_tokens, num_empty, num_stopping = sum_over_processes(
            accelerator,
            [
                sum(batch.num_labels for batch in batches),
                sum(count_tokens(batch.inputs) for batch in batches),
                sum(batch.num_labels == 0 for batch in batches),
                stop,
            ],
        )
        self.num_labels, self.num_tokens = int(num_labels), int(num_tokens)
        self.stops = num_stopping > 0  # as a process was told to
        if num_empty and not self.stops:
            raise UsageError(f"step {step}: a batch has no label to predict; leave out such rows")

    def weight(self, batch: MicroBatch) -> float:
        """What the mean loss of a micro batch counts in the gradient, which wrappers average over processes."""
        return batch.num_labels * self._accelerator.num_processes / self.num_labels

    def add_loss(self, batch: MicroBatch, loss: torch.Tensor) -> None:
        """Take note of the mean loss of a micro batch, without waiting for the device."""
        self._losses.append(loss.detach() * batch.num_labels)

    def loss(self) -> float:
        """The mean loss over the labels of all processes."""
        return sum_over_processes(self._accelerator, [torch.stack(self._losses).sum().item()])[0] / self.num_labels


def micro_batches(
    rows: TrainRows,
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    training: TrainingConfig,
    accelerator: Accelerator,
    first_row: int,
) -> Iterator[MicroBatch]:
    """The batches that this process reads from a position in the data on, without end."""
    order = RowOrder(
        count_rows(rows),
        seed=training.seed,
        batch_size=training.per_device_batch_size,
        num_processes=accelerator.num_processes,
        process=accelerator.process_index,
        first_row=first_row,
        lengths=[row_length(row) for row in cast(Iterable[Any], rows)] if training.group_by_length else None,
        group_size=rows_of_step(training, num_processes=accelerator.num_processes),
    )
    for position, indices in order:
        reseed(training.seed, COLLATE, position)
        inputs = collate(take(rows, indices))
        yield MicroBatch(
            position=position, inputs=send_to_device(inputs, accelerator.device), num_labels=count_labels(inputs)
        )


def next_window(
    reading: Iterator[MicroBatch], *, training: TrainingConfig, accelerator: Accelerator, stop: bool, step: int
) -> Window:
    """The batches of the optimizer step after `step` others."""
    batches = list(islice(reading, num_micro_batches(training, step)))
    return Window(batches, accelerator=accelerator, stop=stop, step=step + 1)


def num_micro_batches(training: TrainingConfig, step: int) -> int:
    """Micro batches per process of the optimizer step after `step` others.

    They grow by `initial_accumulation_steps` at a time, over `ramp_steps`, to `gradient_accumulation_steps`: with twice
    the processes and half of both settings, global batches stay the same.
    """
    full, first = training.gradient_accumulation_steps, training.initial_accumulation_steps
    if step >= training.ramp_steps:
        return full
    num_levels = -(-full // first)
    return min(full, first * (1 + step * (num_levels - 1) // training.ramp_steps))


def count_tokens(inputs: dict[str, Any]) -> int:
    """The tokens that the model reads, padding not counted: without a mask it reads all of them."""
    mask = inputs.get("attention_mask")
    return inputs["input_ids"].numel() if mask is None or mask.ndim != 2 else int(mask.sum())
