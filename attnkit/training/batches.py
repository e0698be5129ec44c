"""The batches of an optimizer step: what each process reads, and how much of the loss is whose."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from attnkit.errors import UsageError
from attnkit.models.language import loss_terms
from attnkit.training.evaluation import TERMS, count_terms
from attnkit.training.launch import num_readers, sum_over_readers
from attnkit.training.order import RowOrder, TrainRows, count_rows, row_length, rows_of_step, take
from attnkit.training.randomness import COLLATE, reseed
from attnkit.training.settings import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one process passes through the model at once."""

    position: int  # of its first row in the data of the run
    inputs: dict[str, Any]
    num_labels: dict[str, int]
    """Of each term of the loss."""


class Window:
    """The micro batches of this process for one optimizer step, and the counts of those of all processes together."""

    def __init__(self, batches: Sequence[MicroBatch], *, accelerator: Accelerator, stop: bool, step: int) -> None:
        self.batches = batches
        self._accelerator = accelerator
        self._shares: list[torch.Tensor] = []
        num_tokens, num_empty, num_stopping, *totals = sum_over_readers(
            accelerator,
            [
                sum(count_tokens(batch.inputs) for batch in batches),
                sum(batch.num_labels["labels"] == 0 for batch in batches),
                stop,
                *(sum(batch.num_labels.get(name, 0) for batch in batches) for name in TERMS),
            ],
        )
        self._totals = dict(zip(TERMS, totals, strict=True))
        self.num_labels, self.num_tokens = int(self._totals["labels"]), int(num_tokens)
        self.stops = num_stopping > 0  # as a process was told to
        if num_empty and not self.stops:
            raise UsageError(f"step {step}: a batch has no label to predict; leave out such rows")

    def share(self, batch: MicroBatch, output: Any) -> torch.Tensor:
        """What a micro batch has in the loss of the global batch: of each term, its mean over the batch by the part of
        all labels that are there. Times the processes with rows of their own, as wrappers average gradients over
        them."""
        terms = loss_terms(output).items()
        shares = [term * (batch.num_labels[name] / self._totals[name]) for name, term in terms]
        share = torch.stack(shares).sum() if len(shares) > 1 else shares[0]
        self._shares.append(share.detach())  # without waiting for the device
        return share * num_readers(self._accelerator)

    def loss(self) -> float:
        """The loss of the global batch, once the shares of all of its micro batches are taken."""
        return sum_over_readers(self._accelerator, [torch.stack(self._shares).sum().item()])[0]


def micro_batches(
    rows: TrainRows,
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    training: TrainingConfig,
    accelerator: Accelerator,
    first_row: int,
) -> Iterator[MicroBatch]:
    """The batches that this process reads from a position in the data on, without end."""
    readers = num_readers(accelerator)
    order = RowOrder(
        count_rows(rows),
        seed=training.seed,
        batch_size=training.per_device_batch_size,
        num_processes=readers,
        process=accelerator.process_index % readers,
        first_row=first_row,
        lengths=[row_length(row) for row in cast(Iterable[Any], rows)] if training.group_by_length else None,
        group_size=rows_of_step(training, num_processes=readers),
    )
    for position, indices in order:
        reseed(training.seed, COLLATE, position)
        inputs = collate(take(rows, indices))
        yield MicroBatch(
            position=position, inputs=send_to_device(inputs, accelerator.device), num_labels=count_terms(inputs)
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
