"""The documents of a run: read from their sources one after the other, without repetitions, some of them held out."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np

from attnkit.data.seen import Seen
from attnkit.data.sources import PretrainDataConfig, Source, named, read_rows, sources_of, text_of
from attnkit.errors import UsageError

CHUNK = 1024  # documents that are compared with those before them together


class Document(NamedTuple):
    """One document, and what is done with it."""

    texts: tuple[str, ...]
    """Its text; a pair of a text to read and one to write where the objective wants two."""
    source: int
    """Which of `Documents.sources` it is from."""
    held_out: bool
    """Whether it is evaluated on, and not trained on."""


class Documents:
    """The documents of `data.source` and `data.held_out_source`, read anew by each iteration, in bounded memory.

    A text that was met before is passed over, and so is white space alone. Equal settings and files give equal
    documents in equal order. Without `held_out_source`, a document is held out where a hash of its text and `seed` lies
    in the lowest `held_out_fraction` of all hashes, so a text stays on its side whatever is added to the source; if
    there is none, it is the document with the lowest hash. With `held_out_source`, a text that both hold is held out.

    `target_column` names a second column, of texts to write. With `all_held_out` nothing is trained on, and
    `held_out_source` is not read. Raises `UsageError`, when it is made or read, for a source
    that is missing, faulty, or too small for both parts.
    """

    def __init__(
        self, data: PretrainDataConfig, *, target_column: str | None = None, all_held_out: bool = False
    ) -> None:
        self.data = data
        self.sources = sources_of(data)
        self.target_column = target_column
        self.all_held_out = all_held_out
        self.duplicates = 0
        """Documents that the last iteration passed over because the same text was there already."""
        if data.seed < 0:
            raise UsageError(f"data.seed: {data.seed} must be 0 or more")
        if not all_held_out and data.held_out_source is None and not 0 < data.held_out_fraction < 1:
            raise UsageError(f"data.held_out_fraction: got {data.held_out_fraction}; it has to lie between 0 and 1")

    def __iter__(self) -> Iterator[Document]:
        """All documents, in the order of their sources and files; those of `held_out_source` come first."""
        self.duplicates = 0
        seen = Seen()
        fraction = 0.0
        if self.all_held_out:
            fraction = 1.0
        elif self.data.held_out_source is None:
            fraction = self.data.held_out_fraction
        else:
            held_out = self._held_out_source
            yield from (Document(texts, 0, held_out=True) for texts, _ in self._distinct(held_out, seen, order=None))
        counts = [0, 0]  # documents to train on, and held out
        lowest, waiting = 1.0, None
        for number, source in enumerate(self.sources):
            for texts, hashed in self._distinct(source, seen, order=None):
                document = Document(texts, number, held_out=hashed < fraction)
                if counts[True] == 0 and fraction and not document.held_out and hashed < lowest:
                    lowest, waiting, document = hashed, document, waiting
                elif document.held_out and waiting is not None:
                    counts[False] += 1
                    yield waiting
                    waiting = None
                if document is not None:
                    counts[document.held_out] += 1
                    yield document
        if waiting is not None:
            counts[True] += 1
            yield waiting._replace(held_out=True)
        self._check(*counts, name=named(self.data.source))

    def read_source(self, number: int, *, epoch: int) -> Iterator[Document]:
        """The documents of one source to train on, its files in an order that `data.seed` and the epoch determine.

        Passed over are the texts of `held_out_source`, which there has to be, and those that the same source held
        before: what several sources hold is in each of them. Raises `UsageError` where nothing is left.
        """
        seen, source = Seen(), self.sources[number]
        for _ in self._distinct(self._held_out_source, seen, order=None):
            pass
        order = np.random.default_rng([self.data.seed, epoch, number])
        num_train = 0
        for texts, _ in self._distinct(source, seen, order=order):
            num_train += 1
            yield Document(texts, number, held_out=False)
        self._check(num_train, 0, name=source.name)

    @property
    def train_texts(self) -> "TrainTexts":
        """The texts to train on."""
        return TrainTexts(self)

    @property
    def _held_out_source(self) -> Source:
        data = self.data
        return Source(
            source=data.held_out_source or [],
            weight=None,
            text_column=data.text_column,
            documents=data.documents,
            subset=data.subset,
        )

    def _check(self, num_train: int, num_held_out: int, *, name: str) -> None:
        """Refuse documents that are all on one side."""
        if num_train or self.all_held_out:
            return
        if self.data.held_out_source is not None:
            raise UsageError(
                f"data.source: every document of {name} is in data.held_out_source as well; "
                f"give text that is not held out"
            )
        if num_held_out == 1:
            raise UsageError(
                f"data.source: {name} holds one document, too few to hold some out for evaluation; "
                f"give more text, let data.documents be paragraph or line, or set data.held_out_source"
            )
        raise UsageError(
            f"data.held_out_fraction: {self.data.held_out_fraction} holds out all {num_held_out} documents of "
            f"{name}; lower it, or choose another data.seed"
        )

    def _distinct(
        self, source: Source, seen: Seen, *, order: np.random.Generator | None
    ) -> Iterator[tuple[tuple[str, ...], float]]:
        """The texts of a source that were not seen before, each with its hash in [0, 1)."""
        salt = self.data.seed.to_bytes(16, "little")
        texts = self._texts(source, order=order)
        while chunk := list(islice(texts, CHUNK)):
            hashes = b"".join(blake2b("\0".join(each).encode(), digest_size=16, salt=salt).digest() for each in chunk)
            identities, draws = np.frombuffer(hashes, dtype="<u8").reshape(-1, 2).T
            is_new = seen.add(identities)
            self.duplicates += len(chunk) - int(is_new.sum())
            yield from (
                (each, draw) for each, draw, new in zip(chunk, (draws / 2**64).tolist(), is_new, strict=True) if new
            )

    def _texts(self, source: Source, *, order: np.random.Generator | None) -> Iterator[tuple[str, ...]]:
        """The texts of a source that hold more than white space."""
        columns = {source.text_column: "data.text_column"}
        if self.target_column is not None:
            if self.target_column in columns:
                raise UsageError(
                    f"objective.target_column: {self.target_column!r} is data.text_column as well; give each its own"
                )
            columns[self.target_column] = "objective.target_column"
        filled, found = dict.fromkeys(columns, False), False
        for row in read_rows(source.source, columns=columns, data=source, order=order):
            texts = tuple(text_of(row, column) for column in columns)
            if all(text.strip() for text in texts):
                found = True
                yield texts
            elif not found:
                filled = {
                    column: filled[column] or bool(text.strip()) for column, text in zip(columns, texts, strict=True)
                }
        if not found:
            empty = [column for column in columns if not filled[column]]
            said = f"column {empty[0]!r} holds no text" if empty else f"no row has text in both {' and '.join(columns)}"
            raise UsageError(
                f"{named(source.source)}: {said}; fill it, or name another with {columns[(empty or list(columns))[0]]}"
            )


class TrainTexts:
    """The texts of documents to train on, read anew by each iteration."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents

    def __iter__(self) -> Iterator[str]:
        return (text for document in self.documents if not document.held_out for text in document.texts)
