"""Where text comes from: the settings of `data`, and the documents behind `data.source`."""

import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa

from attnkit.data import python_docs
from attnkit.data.hub import require_repository, unreachable
from attnkit.data.readers import DataFile, DocumentUnit, Row, file_type, first_line, open_file
from attnkit.errors import UsageError

PYTHON_DOCS = "python-docs"
# `name` or `org/name`, either with `:split`.
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:\w+)?", re.ASCII)
LOCAL_REMEDY = "give a local txt, jsonl, csv or parquet file, a folder of them, or 'python-docs' as the source"
CHUNK = 32 * 2**20  # characters of text that are turned into one Arrow array


@dataclass(kw_only=True)
class DataConfig:
    """The text of a pretraining run."""

    source: str | list[str] = PYTHON_DOCS
    """`python-docs`, or files, globs and folders of txt, jsonl, csv and parquet (plain or .gz), or a hub name
    (`org/name`, or `org/name:split`; the split is `train` if none is named)."""
    subset: str | None = None
    """The configuration of a hub dataset that has several, e.g. `wikitext-2-raw-v1`."""
    text_column: str = "text"
    """The column that holds the text in jsonl, csv and parquet files and hub datasets."""
    documents: DocumentUnit = "paragraph"
    """What one document of a txt file is: a `paragraph` (up to the next blank line), a `line`, or the `file`."""
    held_out_source: str | list[str] | None = None
    """Text to evaluate on; without it a part of `source` is held out, document by document."""
    held_out_fraction: float = 0.05
    """The part of the documents of `source` that is held out when there is no `held_out_source`."""
    sequence_length: int = 256  # tokens
    """Tokens in one training row."""
    seed: int = 0
    """Seed of the split into training and held-out documents."""


@dataclass(kw_only=True)
class Documents:
    """Documents to train on and documents held out from training; each dataset has the one column `text`."""

    train: datasets.Dataset
    held_out: datasets.Dataset
    duplicates: int
    """Documents left out because the same text is there already."""


def load_documents(data: DataConfig) -> Documents:
    """The documents of a run, without duplicates, split by document.

    Equal settings and files give equal documents in equal order. No text is in both parts, and neither is empty.
    Without `held_out_source`, `held_out_fraction` of the documents are drawn with `seed`; with it, a text that both
    sources hold is held out. Texts of nothing but white space are passed over.

    Raises `UsageError` for a source that is missing, faulty or holds too few documents.
    """
    seen: set[bytes] = set()
    if data.held_out_source is not None:
        held_out, held_out_duplicates = _distinct(_texts(data.held_out_source, data), seen=seen)
        train, train_duplicates = _distinct(_texts(data.source, data), seen=seen)
        if train.num_rows == 0:
            raise UsageError(
                f"data.source: every document of {_named(data.source)} is in data.held_out_source as well; "
                f"give text that is not held out"
            )
        return _documents(train, held_out, duplicates=train_duplicates + held_out_duplicates)
    if not 0 < data.held_out_fraction < 1:
        raise UsageError(f"data.held_out_fraction: got {data.held_out_fraction}; it has to lie between 0 and 1")
    table, duplicates = _distinct(_texts(data.source, data), seen=seen)
    if table.num_rows < 2:
        raise UsageError(
            f"data.source: {_named(data.source)} holds one document, too few to hold some out for evaluation; "
            f"give more text, let data.documents be paragraph or line, or set data.held_out_source"
        )
    is_held_out = _held_out(table.num_rows, fraction=data.held_out_fraction, seed=data.seed)
    return _documents(table.filter(pa.array(~is_held_out)), table.filter(pa.array(is_held_out)), duplicates=duplicates)


def read_documents(source: str | list[str], *, data: DataConfig) -> datasets.Dataset:
    """All documents of a source, without duplicates, in the one column `text`.

    Raises `UsageError` for a source that is missing, faulty or empty.
    """
    table, _ = _distinct(_texts(source, data), seen=set())
    return datasets.Dataset(table)


def read_rows(source: str | list[str], *, columns: Mapping[str, str], data: DataConfig) -> Iterator[Row]:
    """Rows of files, folders, globs and hub datasets, each with its place: the wanted columns as they were stored.

    `columns` gives with each column the setting that names it, for the errors. Files come in the order of the list, and
    sorted by path within a glob or folder; a file that is met twice is read once.
    """
    entries = [source] if isinstance(source, str) else source
    if not entries:
        raise UsageError(f"data.source: is an empty list; {LOCAL_REMEDY}")
    first: DataFile | None = None
    met: set[Path] = set()
    for entry in entries:
        if entry == PYTHON_DOCS:
            yield from _python_docs(columns)
            continue
        paths = paths_of(entry)
        if paths is None:
            yield from _hub_rows(entry, columns=columns, data=data)
            continue
        for path in paths:
            if path.resolve() in met:
                continue
            met.add(path.resolve())
            file = open_file(path, documents=data.documents)
            yield from file.rows(columns)
            if file.columns:
                first = first or file
                _check_same_columns(file, first)


def text_of(row: Row, column: str) -> str:
    """The text in a column of a row. Raises `UsageError` if it is missing, no text, or text that UTF-8 cannot hold."""
    place, values = row
    text = values[column]
    if text is None:
        raise UsageError(f"{place}: column {column!r} is null; fill it or remove the row")
    if not isinstance(text, str):
        raise UsageError(
            f"{place}: column {column!r} holds {type(text).__name__}, not text; store it as text or name another column"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{place}: column {column!r} holds half of a surrogate pair at character {error.start}; remove it"
        ) from error
    return text


def _texts(source: str | list[str], data: DataConfig) -> Iterator[str]:
    """The texts of a source that hold more than white space."""
    empty = True
    for row in read_rows(source, columns={data.text_column: "data.text_column"}, data=data):
        text = text_of(row, data.text_column)
        if text.strip():
            empty = False
            yield text
    if empty:
        raise UsageError(
            f"{_named(source)}: column {data.text_column!r} holds no text; "
            f"fill it, or name another with data.text_column"
        )


def _distinct(texts: Iterator[str], *, seen: set[bytes]) -> tuple[pa.Table, int]:
    """A table of the texts that were not seen before, and the number of those that were; all are seen after."""
    chunks: list[pa.Array] = []
    pending: list[str] = []
    size = duplicates = 0
    for text in texts:
        digest = blake2b(text.encode(), digest_size=16).digest()
        if digest in seen:
            duplicates += 1
            continue
        seen.add(digest)
        pending.append(text)
        size += len(text)
        if size >= CHUNK:
            chunks.append(pa.array(pending, pa.string()))
            pending, size = [], 0
    chunks.append(pa.array(pending, pa.string()))
    return pa.table({"text": pa.chunked_array(chunks, pa.string())}), duplicates


def _held_out(num_documents: int, *, fraction: float, seed: int) -> np.ndarray:
    """Which of at least two documents are held out: `fraction` of them, but at least one and never all."""
    num_held_out = min(max(1, round(num_documents * fraction)), num_documents - 1)
    is_held_out = np.zeros(num_documents, dtype=bool)
    is_held_out[np.random.default_rng(seed).permutation(num_documents)[:num_held_out]] = True
    return is_held_out


def _documents(train: pa.Table, held_out: pa.Table, *, duplicates: int) -> Documents:
    return Documents(train=datasets.Dataset(train), held_out=datasets.Dataset(held_out), duplicates=duplicates)


def paths_of(entry: str) -> list[Path] | None:
    """The files that an entry of a source stands for; None for the name of a hub dataset."""
    if not entry.strip():
        raise UsageError(f"data.source: has an empty entry; {LOCAL_REMEDY}")
    path = Path(entry).expanduser() if re.match(r"~(/|$)", entry) else Path(entry)
    if path.is_dir():
        paths = sorted(
            file for file in path.rglob("*") if file.is_file() and file_type(file) and not _hidden(file, path)
        )
        if not paths:
            raise UsageError(f"{entry}: is a folder without txt, jsonl, json, csv or parquet files; give another")
        return paths
    if path.exists():
        return [path]
    if glob.has_magic(entry):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        paths = sorted(match for match in map(Path, matches) if match.is_file())
        if not paths:
            raise UsageError(f"{entry}: no file matches this pattern; check it and the folder it starts from")
        return paths
    # A suffix of letters is that of a file; `org/corpus-1.5` is a name.
    if HUB_NAME.fullmatch(entry) and not path.suffix[1:2].isalpha():
        return None
    raise UsageError(f"{entry}: there is no such file or folder; {_remedy(path)}")


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _remedy(path: Path) -> str:
    """What to give in place of a path that does not exist: the nearest name, if one is near."""
    near = {sibling.name: str(sibling) for sibling in path.parent.iterdir()} if path.parent.is_dir() else {}
    if path.name == str(path):
        near[PYTHON_DOCS] = PYTHON_DOCS
    close = get_close_matches(path.name, near, n=1, cutoff=0.75)
    return f"did you mean {near[close[0]]!r}?" if close else LOCAL_REMEDY


def _hub_rows(entry: str, *, columns: Mapping[str, str], data: DataConfig) -> Iterator[Row]:
    """The rows of a dataset on the hub."""
    name, _, split = entry.partition(":")
    remedy = _remedy(Path(name))
    require_repository(name, kind="dataset", remedy=remedy)
    try:
        rows = datasets.load_dataset(name, data.subset, split=split or "train")
    except ConnectionError as error:
        raise unreachable(name, kind="dataset", remedy=remedy) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(
            f"{entry}: cannot be loaded from the hub ({first_line(error)}); check data.subset and the split"
        ) from error
    for column, setting in columns.items():
        if column not in rows.column_names:
            known = ", ".join(map(repr, rows.column_names))
            raise UsageError(f"{entry}: has no column {column!r} (columns: {known}); name it with {setting}")
    for number, values in enumerate(rows.select_columns(list(columns)), start=1):
        yield f"{entry}, row {number}", values


def _python_docs(columns: Mapping[str, str]) -> Iterator[Row]:
    """The documents of `python-docs`, which has one column, whatever its name."""
    column, *others = columns
    if others:
        raise UsageError(f"{PYTHON_DOCS}: holds documents only and no column {others[0]!r}; give csv, jsonl or parquet")
    for number, text in enumerate(python_docs.documents(), start=1):
        yield f"{PYTHON_DOCS}, document {number}", {column: text}


def _check_same_columns(file: DataFile, first: DataFile) -> None:
    """Refuse files of one source that differ in their columns: most likely one of them is not meant."""
    if set(file.columns) != set(first.columns):
        here, there = (", ".join(sorted(map(repr, one.columns))) for one in (file, first))
        raise UsageError(
            f"{file.path}: its columns ({here}) differ from those of {first.path} ({there}); "
            f"give files with the same columns"
        )


def _named(source: str | list[str]) -> str:
    return repr(source) if isinstance(source, str) else ", ".join(map(repr, source))
