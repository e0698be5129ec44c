"""Which documents were met before, by their hashes, in bounded memory: what is much lies on disk."""

import mmap
import tempfile

import numpy as np

from attnkit.errors import UsageError
from attnkit.files.disk import said_by_disk

IN_MEMORY = 2**15  # hashes: longer arrays are in temporary files


class Seen:
    """Which hashes were met before, by their highest bits in parts.

    A part is sorted arrays, each longer than all after it; parts, as little more than one of them is ever there twice.
    Raises `UsageError` where the disk refuses.
    """

    BITS = 4

    def __init__(self) -> None:
        self.parts: list[list[Sorted]] = [[] for _ in range(2**self.BITS)]

    def __len__(self) -> int:
        return sum(len(array.hashes) for arrays in self.parts for array in arrays)

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each of the hashes (64 bits) is new, and the first of its kind among them; all are met after."""
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        part_of = hashes >> np.uint64(64 - self.BITS)
        for number, arrays in enumerate(self.parts):
            places = np.flatnonzero(part_of == number)
            is_new[places] &= add_to(arrays, hashes[places], is_first=is_new[places])
        return is_new


class Sorted:
    """Sorted hashes, in memory or, where they are many, in a file that is gone when they are."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.hashes, self.mapped = hashes, None
        if len(hashes) > IN_MEMORY:
            try:
                with tempfile.TemporaryFile() as file:
                    file.write(hashes.data)
                    file.flush()
                    self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise UsageError(
                    f"{tempfile.gettempdir()}: cannot hold the hashes of documents ({said_by_disk(error)}); free "
                    "space, or set TMPDIR to another folder"
                ) from error
            self.hashes = np.frombuffer(self.mapped, dtype=hashes.dtype)
            self.mapped.madvise(mmap.MADV_RANDOM)  # a page for each that is looked up, not its neighbours

    def hold(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each of the hashes is among these."""
        places = np.searchsorted(self.hashes, hashes)
        found = self.hashes[np.minimum(places, len(self.hashes) - 1)] == hashes
        if self.mapped is not None:
            self.mapped.madvise(mmap.MADV_DONTNEED)  # the pages that were read go out of this process again
        return found


def add_to(arrays: list[Sorted], hashes: np.ndarray, *, is_first: np.ndarray) -> np.ndarray:
    """Add to a part those hashes that are the first of their kind, and return which of all it lacked."""
    is_new = np.ones(len(hashes), dtype=bool)
    for array in arrays:
        is_new &= ~array.hold(hashes)
    added = np.sort(hashes[is_new & is_first])
    while len(added) and arrays and len(arrays[-1].hashes) <= 2 * len(added):
        added = np.concatenate([arrays.pop().hashes, added])
        added.sort(kind="stable")  # in place, and of runs that are sorted already a merge
    if len(added):
        arrays.append(Sorted(added))
    return is_new
