"""Packing: documents of token ids become rows of at most `sequence_length` tokens.

Each document ends with its `end`, so where documents begin can be read from the rows: position ids that restart, or
masks between documents, need nothing else.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import pyarrow as pa

from attnkit.data.sources import MIN_ROW
from attnkit.registry import Registry

TOKEN_IDS = pa.list_(pa.int32())


class TokenizedTexts(NamedTuple):
    """Texts as token ids, one after the other, each with the end of its document."""

    token_ids: np.ndarray  # int32 [tokens of all texts]
    lengths: np.ndarray  # int64 [texts], tokens of each; 1 for a text that is nothing but its end


class Packing(ABC):
    """Makes rows of documents that come in portions; what is not yet a full row may wait for the next portion.

    Every token is in exactly one row, or counted in `dropped_tokens`.
    """

    schema: ClassVar[pa.Schema] = pa.schema({"input_ids": TOKEN_IDS})

    def __init__(self, *, row_length: int) -> None:
        self.row_length = row_length  # tokens
        self.dropped_tokens = 0

    @abstractmethod
    def add(self, texts: TokenizedTexts) -> pa.Table:
        """The rows that are complete once these documents have come."""

    @abstractmethod
    def rest(self) -> pa.Table:
        """The rows of what still waits, after the last document."""

    def state(self) -> dict[str, Any]:
        """What of the documents so far decides on the rows to come, as JSON holds it."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (most remember nothing)
        """Go on where a packing of the same settings had this state."""

    @final
    def take_dropped(self) -> int:
        """The tokens that were dropped since this was asked last."""
        dropped, self.dropped_tokens = self.dropped_tokens, 0
        return dropped

    @final
    def rows(self, token_ids: np.ndarray, lengths: np.ndarray) -> pa.Table:
        """Token ids one after the other as rows of these lengths, but for rows too short to predict anything."""
        long_enough = lengths >= MIN_ROW
        self.dropped_tokens += int(lengths[~long_enough].sum())
        return pa.table(
            [list_array(token_ids[np.repeat(long_enough, lengths)], lengths[long_enough])], schema=Packing.schema
        )


packings: Registry[Packing] = Registry("packing", Packing)


@final
@packings.register("concatenate")
class Concatenate(Packing):
    """All documents end to end, cut into rows of one length; only the last is shorter (Liu 2019, FULL-SENTENCES).

    document 1 ⊕ end ⊕ document 2 ⊕ end ⊕ …   →   rows
    """

    def __init__(self, *, row_length: int) -> None:
        super().__init__(row_length=row_length)
        self.waiting = np.empty(0, dtype=np.int32)

    def add(self, texts: TokenizedTexts) -> pa.Table:
        token_ids = np.concatenate([self.waiting, texts.token_ids])
        num_rows = len(token_ids) // self.row_length
        full, self.waiting = np.split(token_ids, [num_rows * self.row_length])
        return self.rows(full, np.full(num_rows, self.row_length))

    def rest(self) -> pa.Table:
        waiting, self.waiting = self.waiting, self.waiting[:0]
        return self.rows(waiting, np.array([len(waiting)] if len(waiting) else [], dtype=np.int64))

    def state(self) -> dict[str, Any]:
        return {"waiting": self.waiting.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.waiting = np.array(state["waiting"], dtype=np.int32)


@final
@packings.register("best_fit")
class BestFit(Packing):
    """Whole documents, each in the fullest row that has room for it, the longest first (Ding 2024, section 3.1).

    Only a document longer than a row is cut, into full rows and one remainder. Rows are filled from the documents of
    one portion, so there is no need to hold more.
    """

    def add(self, texts: TokenizedTexts) -> pa.Table:
        starts, lengths = cut(texts.lengths, self.row_length)
        row_of = best_fit(lengths, self.row_length)
        order = np.argsort(row_of, kind="stable")
        return self.rows(
            texts.token_ids[places(starts[order], lengths[order])],
            np.bincount(row_of, weights=lengths).astype(np.int64) if len(row_of) else lengths,
        )

    def rest(self) -> pa.Table:
        return Packing.schema.empty_table()


@final
@packings.register("one_document")
class OneDocument(Packing):
    """One document per row; one that is longer than a row is cut into several (Liu 2019, DOC-SENTENCES)."""

    def add(self, texts: TokenizedTexts) -> pa.Table:
        _, lengths = cut(texts.lengths, self.row_length)
        return self.rows(texts.token_ids, lengths)

    def rest(self) -> pa.Table:
        return Packing.schema.empty_table()


def cut(lengths: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of the pieces of documents that lie end to end, none longer than `longest`."""
    num_pieces = -(-lengths // longest)
    pieces = np.full(num_pieces.sum(), longest)
    pieces[np.cumsum(num_pieces) - 1] = lengths - (num_pieces - 1) * longest
    return np.cumsum(pieces) - pieces, pieces


def best_fit(lengths: np.ndarray, room: int) -> np.ndarray:
    """The row of each piece: the longest first, each into the row with the least room that suffices, or a new one."""
    row_of = np.empty(len(lengths), dtype=np.int64)
    rows_with: list[list[int]] = [[] for _ in range(room + 1)]  # by the room that is left in them
    rooms: list[int] = []  # those that some row has left, in rising order
    num_rows = 0
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, left = num_rows, room - length
            num_rows += 1
        else:
            row, left = rows_with[rooms[place]].pop(), rooms[place] - length
            if not rows_with[rooms[place]]:
                del rooms[place]
        row_of[piece] = row
        if left:
            if not rows_with[left]:
                insort(rooms, left)
            rows_with[left].append(row)
    return row_of


def places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The places start, start + 1, … of each piece, one piece after the other."""
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def list_array(values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Values one after the other as an array of lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(int_array(offsets), int_array(values))


def int_array(values: np.ndarray) -> pa.Array:
    """Whole numbers as an array of Arrow, from their bytes: `pa.array` would import pandas, which takes 50 MB."""
    whole = np.ascontiguousarray(values, dtype=np.int32)
    return pa.Array.from_buffers(pa.int32(), len(whole), [None, pa.py_buffer(whole)])
