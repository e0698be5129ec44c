"""Rows that are made while a run reads them, so that neither text nor rows are ever in memory as a whole."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from attnkit.data.documents import Documents
from attnkit.data.objectives import Objective
from attnkit.data.rows import Account, RowMaker, account_of
from attnkit.errors import UsageError

Row = dict[str, Any]


@dataclass(kw_only=True)
class Place:
    """How far a source is read: with its shuffle buffer, all that decides on the rows to come.

    Documents become rows in portions. Of the portion at hand this says where it begins and how many of its rows are
    taken, so that only that one has to be tokenized again, whatever stands before it.
    """

    epoch: int = 0
    documents: int = 0
    """Of the epoch, before the portion at hand."""
    packing: dict[str, Any] = field(default_factory=dict)
    """The packing buffer before it."""
    account: dict[str, int] = field(default_factory=dict)
    """What became of all documents before it, those of earlier epochs included."""
    made: dict[str, int] = field(default_factory=dict)
    """What became of the documents of the portion at hand."""
    rows: int = 0
    """Taken of those that the portion at hand has made."""
    draw: dict[str, Any] = field(default_factory=dict)
    """The state of the generator that draws from the shuffle buffer."""


class SourceRows:
    """The rows of one source without end: epochs, end to end, each of all its rows.

    Each epoch reads the files in another order, and its rows pass through a buffer of `data.shuffle_buffer` rows, from
    which the next one is drawn.
    """

    def __init__(
        self, documents: Documents, number: int, tokenizer: PreTrainedTokenizerBase, *, objective: Objective
    ) -> None:
        self.documents, self.number = documents, number
        self.maker = RowMaker(tokenizer, packing=objective.packing)
        self.go_to(Place(), [])

    def go_to(self, place: Place, buffer: list[Row]) -> None:
        """Go on where reading had come to this place, with these rows in the shuffle buffer."""
        self.place, self.buffer = replace(place), list(buffer)
        self.account = Account(**place.account) + Account(**place.made)
        """What became of the text so far, a text of several epochs once for each."""
        self.draw = np.random.default_rng([self.documents.data.seed, place.epoch, self.number])
        if place.draw:
            self.draw.bit_generator.state = place.draw
        self.reading = self._read()

    def mark(self) -> tuple[Place, list[Row]]:
        """Where reading has come to, as `go_to` takes it."""
        return replace(self.place, draw=dict(self.draw.bit_generator.state)), list(self.buffer)

    def _read(self) -> Iterator[Row]:
        while True:
            yield from self._epoch()
            self.place = Place(epoch=self.place.epoch + 1, account=asdict(self.account))
            self.draw = np.random.default_rng([self.documents.data.seed, self.place.epoch, self.number])

    def _epoch(self) -> Iterator[Row]:
        """What is left of the epoch: a row that comes takes the place of one that is drawn from the buffer."""
        size, place = self.documents.data.shuffle_buffer, self.place
        is_empty = place.documents == place.rows == 0
        for row in self._rows():
            is_empty = False
            if len(self.buffer) < size:
                self.buffer.append(row)
                continue
            drawn = int(self.draw.integers(size))
            row, self.buffer[drawn] = self.buffer[drawn], row
            yield row
        if is_empty:
            name = self.documents.sources[self.number].name
            raise UsageError(f"data.source: too little text: {name!r} makes no row; give more text, or leave it out")
        while self.buffer:
            drawn = int(self.draw.integers(len(self.buffer)))
            self.buffer[drawn], self.buffer[-1] = self.buffer[-1], self.buffer[drawn]
            yield self.buffer.pop()

    def _rows(self) -> Iterator[Row]:
        """What is left of the rows of the epoch, in the order of its files."""
        place, packing = self.place, self.maker.packing()
        if place.packing:
            packing.load_state(place.packing)
        documents = islice(self.documents.read_source(self.number, epoch=place.epoch), place.documents, None)
        portions = (portion for _, portion in self.maker.tokenized(documents))
        for portion in chain(portions, [None]):  # and after the last what still waits
            table = packing.rest() if portion is None else packing.add(portion.texts)
            made = (Account() if portion is None else portion.account) + account_of(table, packing)
            place.made, self.account = asdict(made), Account(**place.account) + made
            for row in islice(rows_of(table), place.rows, None):
                place.rows += 1
                yield row
            place.documents += made.documents + made.empty_documents
            place.packing, place.account, place.made, place.rows = packing.state(), asdict(self.account), {}, 0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Where the reading of all sources has come to. Arrow holds it: the rows of the buffers, and the rest as JSON."""

    position: int
    taken: list[int]
    sources: list[tuple[Place, list[Row]]]
    settings: dict[str, Any]
    schema: pa.Schema

    def save(self, path: Path) -> None:
        """Write it to a file."""
        said = {
            "position": self.position,
            "taken": self.taken,
            "places": [asdict(place) for place, _ in self.sources],
            "buffered": [len(buffer) for _, buffer in self.sources],
            "settings": self.settings,
        }
        rows = [row for _, buffer in self.sources for row in buffer]
        table = pa.Table.from_pylist(rows, schema=self.schema.with_metadata({"mark": json.dumps(said)}))
        with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)


class StreamedRows:
    """Rows without end, and so without a length, that the settings and `data.seed` determine.

    With several sources row n is of the one that lacks most of its share, `weight · (n + 1) - rows taken`, so the
    shares hold at every moment, to about a row. From a checkpoint on, the documents of the epoch before it are read, to
    know which are repetitions, but not tokenized: packing buffers and shuffle buffers are part of it.

    All processes tokenize all of the text, and each keeps the rows of its own batches. For where a row begins depends
    on how many tokens all documents before it have; what each process could tokenize for itself would be other rows,
    and other global batches, with each number of processes. `attnkit prepare` spares them that.
    """

    def __init__(self, documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> None:
        self.documents = documents
        weights = [1.0 if source.weight is None else source.weight for source in documents.sources]
        self.shares = np.array(weights) / sum(weights)
        self.sources = [
            SourceRows(documents, number, tokenizer, objective=objective) for number in range(len(documents.sources))
        ]
        packing = objective.packing()
        self.schema = packing.schema
        self.settings = {
            "the weights of data.source": weights,
            "data.seed": documents.data.seed,
            "data.shuffle_buffer": documents.data.shuffle_buffer,
            "the kind of rows": type(packing).__name__,
            "the tokens of a row": packing.row_length,
        }
        self.start()

    def start(self) -> None:
        """Go to the first row."""
        self.position, self.taken = 0, np.zeros(len(self.sources), dtype=np.int64)
        for source in self.sources:
            source.go_to(Place(), [])

    def check(self) -> None:
        """Raise `UsageError` for a source that makes no row."""
        for source in self.sources:
            next(source.reading)
        self.start()

    @property
    def accounts(self) -> list[Account]:
        """What became of the text of each source so far, a text of several epochs once for each."""
        return [source.account for source in self.sources]

    def first(self, num_rows: int) -> list[int]:
        """How many of the first rows are of each source; no fewer of them than are read."""
        taken = self.taken.copy()
        for position in range(self.position, num_rows):
            taken[self._source_of(position, taken)] += 1
        return [int(number) for number in taken]

    def __getitems__(self, positions: list[int]) -> list[Row]:
        """The rows at rising positions. Going back starts anew from the first row."""
        rows = []
        for position in positions:
            if position < self.position:
                self.start()
            while self.position < position:
                self._next()
            rows.append(self._next())
        return rows

    def _next(self) -> Row:
        number = self._source_of(self.position, self.taken)
        row = next(self.sources[number].reading)
        self.position += 1
        self.taken[number] += 1
        return row

    def _source_of(self, position: int, taken: np.ndarray) -> int:
        """The source of a row, with the rows that are taken of each before it."""
        return int(np.argmax(self.shares * (position + 1) - taken))

    def mark(self) -> Mark:
        """Where reading has come to: quick, as it is asked for at each step."""
        return Mark(
            position=self.position,
            taken=self.taken.tolist(),
            sources=[source.mark() for source in self.sources],
            settings=self.settings,
            schema=self.schema,
        )

    def go_to(self, path: Path) -> None:
        """Go on from the mark in a file. Raises `UsageError` where it is that of other rows."""
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            said, table = json.loads(reader.schema.metadata[b"mark"]), reader.read_all()
        changed = [
            f"{key} was {said['settings'][key]} and is {now}"
            for key, now in self.settings.items()
            if said["settings"][key] != now
        ]
        if changed:
            raise UsageError(f"cannot go on from {path.parent}: {'; '.join(changed)}; set them back or start a new run")
        self.position, self.taken = said["position"], np.array(said["taken"])
        buffered = rows_of(table)
        for source, place, number in zip(self.sources, said["places"], said["buffered"], strict=True):
            source.go_to(Place(**place), list(islice(buffered, number)))


def rows_of(table: pa.Table) -> Iterator[Row]:
    """The rows of a table one by one, their lists as arrays of their own, which take a tenth of the memory."""
    columns = {}
    for name, column in zip(table.column_names, table.combine_chunks().columns, strict=True):
        whole = column.combine_chunks()
        if pa.types.is_list(whole.type):
            columns[name] = np.split(whole.flatten().to_numpy(), np.cumsum(whole.value_lengths().to_numpy())[:-1])
        else:
            columns[name] = whole.to_pylist()
    for number in range(table.num_rows):
        row = {name: values[number] for name, values in columns.items()}
        yield {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in row.items()}
