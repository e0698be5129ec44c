"""In which order rows are read: a function of the seed and of the position in the data."""

from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from attnkit.training.settings import TrainingConfig


@runtime_checkable
class ReadsMany(Protocol):
    """torch's convention for a dataset that reads many rows at once quicker than one by one."""

    def __getitems__(self, indices: list[int]) -> list[Any]: ...


class Mark(Protocol):
    """Where the reading of rows has come to."""

    def save(self, path: Path) -> None: ...


@runtime_checkable
class Remembers(ReadsMany, Protocol):
    """Rows in the order in which they come, of which more has to be known than the position to go on from there."""

    def mark(self) -> Mark: ...

    def go_to(self, path: Path) -> None: ...


TrainRows = Sequence[Any] | ReadsMany
"""Rows to train on. Those without a length have no end, and are read in the order in which they come."""


def count_rows(rows: TrainRows) -> int | None:
    """The number of rows; None where they have no end."""
    return len(rows) if isinstance(rows, Sized) else None


def rows_of_step(training: TrainingConfig, *, num_processes: int) -> int:
    """The rows of an optimizer step, after the ramp if there is one."""
    return training.per_device_batch_size * training.gradient_accumulation_steps * num_processes


def take(rows: TrainRows, indices: list[int]) -> list[Any]:
    """The rows at these indices."""
    return rows.__getitems__(indices) if isinstance(rows, ReadsMany) else [rows[index] for index in indices]


GROUPED = 50  # steps whose rows are sorted by length together


def row_length(row: Any) -> int:
    """The number of tokens of a row, of all its choices if it has several."""
    ids = row["input_ids"]
    return sum(map(len, ids)) if len(ids) and isinstance(ids[0], list) else len(ids)


def shuffled(num_rows: int, *, seed: int, epoch: int, lengths: np.ndarray | None, group_size: int) -> np.ndarray:
    """The rows of an epoch in an order that (seed, epoch) determines.

    With `lengths`, so many rows as `GROUPED` groups hold are sorted by length at a time, and the groups are shuffled
    again: the rows of a group have about the same length, and which rows meet still changes from epoch to epoch.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(num_rows)
    if lengths is None:
        return order
    size = GROUPED * group_size
    parts = [order[start : start + size] for start in range(0, num_rows, size)]
    by_length = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    groups = [by_length[start : start + group_size] for start in range(0, num_rows, group_size)]
    return np.concatenate([groups[index] for index in generator.permutation(len(groups))])


class RowOrder:
    """The batches of one process, each as (position of its first row, indices of its rows).

    The rows of a run are one endless sequence: epochs end to end, each a permutation that (seed, epoch) determines.
    Micro batch m of the run is rows [m·b, (m+1)·b) of that sequence, b = `batch_size`, and process r of W reads the
    micro batches m ≡ r (mod W). So a global batch is full also where an epoch ends, it holds the same rows whatever the
    number of processes it is split over, each epoch meets each row once, and the whole position is one number. With the
    `lengths` of the rows, groups of `group_size` rows that follow each other have about the same length.
    """

    def __init__(
        self,
        num_rows: int | None,
        *,
        seed: int,
        batch_size: int,
        num_processes: int = 1,
        process: int = 0,
        first_row: int = 0,
        lengths: Sequence[int] | None = None,
        group_size: int = 1,
    ) -> None:
        self.num_rows = num_rows
        self.seed = seed
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.process = process
        self.first_row = first_row
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.group_size = group_size
        self._permutations: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        start = self.first_row + self.process * self.batch_size
        while True:
            yield start, [self.row(position) for position in range(start, start + self.batch_size)]
            start += self.num_processes * self.batch_size

    def row(self, position: int) -> int:
        """The index of the row at a position of the endless sequence; rows without end are in their order already."""
        if self.num_rows is None:
            return position
        epoch, place = divmod(position, self.num_rows)
        if epoch not in self._permutations:
            self._permutations = {e: p for e, p in self._permutations.items() if e == epoch - 1}
            self._permutations[epoch] = shuffled(
                self.num_rows, seed=self.seed, epoch=epoch, lengths=self.lengths, group_size=self.group_size
            )
        return int(self._permutations[epoch][place])
