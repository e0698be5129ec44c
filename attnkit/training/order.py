"""In which order rows are read: a function of the seed and of the position in the data."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class ReadsMany(Protocol):
    """torch's convention for a dataset that reads many rows at once quicker than one by one."""

    def __getitems__(self, indices: list[int]) -> list[Any]: ...


def take(rows: Sequence[Any], indices: list[int]) -> list[Any]:
    """The rows at these indices."""
    return rows.__getitems__(indices) if isinstance(rows, ReadsMany) else [rows[index] for index in indices]


class RowOrder:
    """The batches of one process, each as (position of its first row, indices of its rows).

    The rows of a run are one endless sequence: epochs end to end, each a permutation that (seed, epoch) determines.
    Micro batch m of the run is rows [m·b, (m+1)·b) of that sequence, b = `batch_size`, and process r of W reads the
    micro batches m ≡ r (mod W). So a global batch is full also where an epoch ends, it holds the same rows whatever the
    number of processes it is split over, each epoch meets each row once, and the whole position is one number.
    """

    def __init__(
        self, num_rows: int, *, seed: int, batch_size: int, num_processes: int = 1, process: int = 0, first_row: int = 0
    ) -> None:
        self.num_rows = num_rows
        self.seed = seed
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.process = process
        self.first_row = first_row
        self._permutations: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        start = self.first_row + self.process * self.batch_size
        while True:
            yield start, [self.row(position) for position in range(start, start + self.batch_size)]
            start += self.num_processes * self.batch_size

    def row(self, position: int) -> int:
        """The index of the row at a position of the endless sequence."""
        epoch, place = divmod(position, self.num_rows)
        if epoch not in self._permutations:
            self._permutations = {e: p for e, p in self._permutations.items() if e == epoch - 1}
            self._permutations[epoch] = np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
        return int(self._permutations[epoch][place])
