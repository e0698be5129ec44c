"""Rows that are made while a run reads them, so that neither text nor rows are ever in memory as a whole."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from attnkit.data.documents import Documents
from attnkit.data.objectives import Objective
from attnkit.data.rows import Account, Group, RowMaker
from attnkit.errors import UsageError

TRAIN = Group(source=0, held_out=False)


class StreamedRows:
    """Rows without end, and so without a length, that the settings and `data.seed` determine: epochs, end to end.

    Each epoch reads the files in another order, and its rows pass through a buffer of `data.shuffle_buffer` rows, from
    which the next one is drawn. A position is all that there is to remember: to go on from there, the rows before it
    are made again and passed over. All processes read all of the text, and each keeps the rows of its own batches; so
    none has fewer than another, and the batches are those of one process.
    """

    def __init__(self, documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> None:
        self.documents = documents
        self.tokenizer = tokenizer
        self.objective = objective
        self.account = Account()
        """What became of the text so far, a text of several epochs once for each."""
        self.position = 0
        self.reading = self._read()

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        """The rows at rising positions. Going back starts anew from the first row."""
        rows = []
        for position in positions:
            if position < self.position:
                self.position, self.reading, self.account = 0, self._read(), Account()
            while self.position < position:
                next(self.reading)
                self.position += 1
            rows.append(next(self.reading))
            self.position += 1
        return rows

    def _read(self) -> Iterator[dict[str, Any]]:
        epoch = 0
        while True:
            yield from self._shuffled(epoch)
            epoch += 1

    def _shuffled(self, epoch: int) -> Iterator[dict[str, Any]]:
        """The rows of an epoch: a row that comes takes the place of one that is drawn from the buffer."""
        draw = np.random.default_rng([self.documents.data.seed, epoch])
        size = self.documents.data.shuffle_buffer
        buffer: list[dict[str, Any]] = []
        for row in self._rows(epoch):
            if len(buffer) < size:
                buffer.append(row)
                continue
            place = int(draw.integers(size))
            drawn, buffer[place] = buffer[place], row
            yield drawn
        if not buffer:
            raise UsageError("data.source: too little text: it makes no row; give more text")
        yield from (buffer[place] for place in draw.permutation(len(buffer)))

    def _rows(self, epoch: int) -> Iterator[dict[str, Any]]:
        """The rows of an epoch in the order of its files."""
        maker = RowMaker(self.tokenizer, packing=self.objective.packing)
        before = self.account
        documents = (document for document in self.documents.read(epoch) if not document.held_out)
        for _, table in maker.rows(documents):
            self.account = before + maker.accounts[TRAIN]
            yield from table.to_pylist()
