"""Where text comes from: the settings of `data`, and the rows behind `data.source`."""

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import numpy as np

from attnkit.data import python_docs
from attnkit.data.columnar import with_names
from attnkit.data.readers import DocumentUnit, Row, check_columns, file_type, open_file, stop
from attnkit.errors import Fault, RowError, UsageError, first_line, nearest, seed_problems
from attnkit.files.hub import require_repository, unreachable

Entries = str | Sequence[str | dict[str, Any]]

PYTHON_DOCS = "python-docs"
MIN_ROW = 2  # tokens: a row of one has none that is predicted from another
MAX_ROW = 2**24  # tokens
# `name` or `org/name`, either with `@revision` and `:split`.
HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?(:(?P<split>\w+))?", re.ASCII)
LOCAL_REMEDY = (
    "give a local txt, jsonl, csv, tsv, parquet or arrow file, a folder of them, or 'python-docs' as the source"
)
EMPTY = f"is an empty list; {LOCAL_REMEDY}"
# What `Dataset.save_to_disk` writes beside rows.
BESIDE_ARROW = {"dataset_info.json", "state.json", "dataset_dict.json"}


@dataclass(kw_only=True)
class DataConfig:
    """Where the text of a run is, and what of it is held out."""

    source: str | list[str] = PYTHON_DOCS
    """`python-docs`, or files, globs and folders of txt, jsonl, csv, tsv, parquet and arrow (plain or .gz), or a hub
    name (`org/name`, with `@revision` and `:split` where these are not `main` and `train`)."""
    subset: str | None = None
    """The configuration of a hub dataset that has several, e.g. `wikitext-2-raw-v1`."""
    text_column: str = "text"
    """The column that holds the text in jsonl, csv, tsv, parquet and arrow files and hub datasets."""
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

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        length: int | None = self.sequence_length
        allowed = length is None or MIN_ROW <= length <= MAX_ROW
        said = f"data.sequence_length: {length} must be from {MIN_ROW} to {MAX_ROW}"
        sources = {"data.source": self.source, "data.held_out_source": self.held_out_source}
        empty = [f"{name}: {EMPTY}" for name, given in sources.items() if given == []]
        return seed_problems("data.seed", self.seed) + ([] if allowed else [said]) + empty


@dataclass(kw_only=True)
class PretrainDataConfig(DataConfig):
    """The text of a pretraining run, and how it becomes rows."""

    source: str | list[str | dict[str, Any]] = PYTHON_DOCS  # type: ignore[assignment]
    """`python-docs`, or files, globs and folders of txt, jsonl, csv, tsv, parquet and arrow (plain or .gz), or a hub
    name (`org/name`, with `@revision` and `:split` where these are not `main` and `train`). A list of mappings {source,
    weight, text_column, documents, subset} mixes several sources; all but `source` may be left out there, `weight` in
    all of them or in none."""
    packing: str = "concatenate"
    """How documents share rows: end to end (`concatenate`), whole where they fit (`best_fit`), or each in rows of its
    own (`one_document`)."""
    document_mask: bool = False
    """Whether documents that share a row are kept apart: none attends to another, and positions start anew."""
    prepared: str | None = None
    """A folder that `attnkit prepare` filled with the rows of these settings; null to make them anew, in memory."""
    streaming: bool = False
    """Whether rows are made while the run reads them, and never all in memory; there has to be a `held_out_source`."""
    shuffle_buffer: int = 4096  # rows
    """`streaming`: rows of each source of which its next one is drawn."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line for each."""
        rules = {
            "streaming: the text is read while the run goes on, so text to evaluate on needs its own source; set "
            "data.held_out_source": not self.streaming or self.held_out_source is not None,
            "streaming: prepared rows are in no need of it; leave one of data.streaming and data.prepared out": not (
                self.streaming and self.prepared is not None
            ),
            "streaming: sources are mixed by their weights while they are read; give a weight to each entry of "
            "data.source": not (self.streaming and without_weight(self.source)),
            f"shuffle_buffer: {self.shuffle_buffer} must be 1 or more": self.shuffle_buffer >= 1,
        }
        return super().problems() + [f"data.{problem}" for problem, holds in rules.items() if not holds]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of a mix: its rows are packed and counted on their own."""

    source: str | list[str]
    weight: float | None
    """Its share of the training rows, in proportion to the other weights; None where each row is seen once."""
    text_column: str
    documents: DocumentUnit
    subset: str | None

    @property
    def name(self) -> str:
        """What accounts and errors call it."""
        return self.source if isinstance(self.source, str) else ", ".join(self.source)


def sources_of(data: PretrainDataConfig) -> list[Source]:
    """The sources of `data.source`: one for a name or a list of names, one per entry where mappings are among them.

    Raises `UsageError` for keys and values that an entry cannot have, and for weights that only some entries have.
    """
    defaults = {"text_column": data.text_column, "documents": data.documents, "subset": data.subset}
    if not is_mix(data.source):
        return [Source(source=data.source, weight=None, **defaults)]  # type: ignore[arg-type]
    entries = [entry if isinstance(entry, dict) else {"source": entry} for entry in data.source]
    problems = [problem for entry in entries for problem in _problems_of(entry)]
    if len({"weight" in entry for entry in entries}) == 2:
        problems.append("data.source: only some entries have a weight; give one to all of them or to none")
    if problems:
        raise UsageError(*problems)
    return [Source(**{"weight": None, **defaults, **entry}) for entry in entries]


def is_mix(source: Entries) -> bool:
    """Whether a source is a list with mappings in it."""
    return not isinstance(source, str) and any(isinstance(entry, dict) for entry in source)


def without_weight(source: Entries) -> bool:
    """Whether a source is a mix, of several entries, in which not each has a weight."""
    return is_mix(source) and len(source) > 1 and not all(isinstance(it, dict) and "weight" in it for it in source)


def _problems_of(entry: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an entry of a mix, a line for each problem."""
    place = f"data.source: the entry {entry}"
    known = ("source", "weight", "text_column", "documents", "subset")
    yield from (f"{place} has an unknown key {key!r}: {nearest(str(key), known)}" for key in entry if key not in known)
    names = entry.get("source")
    if not isinstance(names, str) and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        yield f"{place} names no source; write {{source: FILES, weight: 1}}"
    weight = entry.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        yield f"{place} has weight {weight!r}; it has to be a number above 0"
    for key in ("text_column", "subset"):
        if key in entry and not isinstance(entry[key], str):
            yield f"{place} has {key} {entry[key]!r}; it has to be text"
    unit, units = entry.get("documents", "line"), get_args(DocumentUnit)
    if unit not in units:
        yield f"{place} has documents {unit!r}: {nearest(str(unit), units)}"


def read_rows(
    source: str | list[str],
    *,
    columns: Mapping[str, str],
    data: DataConfig | Source,
    order: np.random.Generator | None = None,
    refuse: Callable[[RowError], None] = stop,
) -> Iterator[Row]:
    """Rows of files, folders, globs and hub datasets, each with its place: the wanted columns as they were stored.

    `columns` gives with each column the setting that names it, for the errors; what other columns there are does not
    matter, and files may differ in them. Files come in the order of the list, and sorted by path within a glob or
    folder, or as `order` draws them; a file that is met twice is read once. `refuse` is given the error of each row
    without which the rest can be read.
    """
    entries = [source] if isinstance(source, str) else source
    if not entries:
        raise UsageError(f"data.source: {EMPTY}")
    met: dict[str | Path, str | Path] = {}
    for entry in entries:
        found = None if entry == PYTHON_DOCS else paths_of(entry)
        for part in [entry] if found is None else found:
            met.setdefault(part.resolve() if isinstance(part, Path) else part, part)
    parts = list(met.values())
    for place in range(len(parts)) if order is None else order.permutation(len(parts)):
        part = parts[place]
        if isinstance(part, Path):
            yield from open_file(part, documents=data.documents, refuse=refuse).rows(columns)
        elif part == PYTHON_DOCS:
            yield from _python_docs(columns)
        else:
            yield from _hub_rows(part, columns=columns, subset=data.subset)


def text_of(row: Row, column: str) -> str:
    """The text in a column of a row. Raises `UsageError` if it is missing, no text, or text that UTF-8 cannot hold."""
    place, values = row
    text = values[column]
    if text is None:
        raise RowError(place, Fault(f"column {column!r} is null; fill it or remove the row"))
    if not isinstance(text, str):
        remedy = ", not text; store it as text or name another column"
        raise RowError(place, Fault(f"column {column!r} holds ", found=type(text).__name__, after=remedy))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"at character {error.start}"
        raise RowError(
            place, Fault(f"column {column!r} holds half of a surrogate pair ", found=found, after="; remove it")
        ) from error
    return text


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
            raise UsageError(
                f"{entry}: is a folder without txt, jsonl, json, csv, tsv, parquet or arrow files; give another"
            )
        return paths
    if path.exists():
        return [path]
    if glob.has_magic(entry):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        paths = sorted(match for match in map(Path, matches) if match.is_file())
        if not paths:
            raise UsageError(f"{entry}: no file matches this pattern; check it and the folder it starts from")
        return paths
    if may_be_on_hub(entry):
        return None
    raise UsageError(f"{entry}: there is no such file or folder; {_remedy(path)}")


def may_be_on_hub(entry: str) -> bool:
    """Whether an entry looks like a hub name: a suffix of letters is that of a file; `org/corpus-1.5` is a name."""
    return HUB_NAME.fullmatch(entry) is not None and not Path(entry).suffix[1:2].isalpha()


def _hidden(file: Path, folder: Path) -> bool:
    return file.name in BESIDE_ARROW or any(part.startswith(".") for part in file.relative_to(folder).parts)


def _remedy(path: Path) -> str:
    """What to give in place of a path that does not exist: the nearest name, if one is near."""
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    near = {sibling.name: str(sibling) for sibling in siblings if sibling.exists()}  # a link may lead nowhere
    if path.name == str(path):
        near[PYTHON_DOCS] = PYTHON_DOCS
    close = get_close_matches(path.name, near, n=1, cutoff=0.75)
    return f"did you mean {near[close[0]]!r}?" if close else LOCAL_REMEDY


def _hub_rows(entry: str, *, columns: Mapping[str, str], subset: str | None) -> Iterator[Row]:
    """The rows of a dataset on the hub."""
    import datasets  # here, as files are read without it

    name, revision, split = HUB_NAME.fullmatch(entry).group("name", "revision", "split")  # type: ignore[union-attr]
    remedy = _remedy(Path(name))
    require_repository(name, kind="dataset", remedy=remedy)
    try:
        rows = datasets.load_dataset(name, subset, revision=revision, split=split or "train")
    except ConnectionError as error:
        raise unreachable(name, kind="dataset", remedy=remedy) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(
            f"{entry}: cannot be loaded from the hub ({first_line(error)}); check data.subset, revision and split"
        ) from error
    check_columns(rows.column_names, columns, place=entry)
    features = rows.features.to_dict()
    for number, values in enumerate(rows.select_columns(list(columns)), start=1):
        yield f"{entry}, row {number}", with_names(features, values)


def _python_docs(columns: Mapping[str, str]) -> Iterator[Row]:
    """The documents of `python-docs`, which has one column, whatever its name."""
    column, *others = columns
    if others:
        raise UsageError(f"{PYTHON_DOCS}: holds documents only and no column {others[0]!r}; give csv, jsonl or parquet")
    for number, text in enumerate(python_docs.documents(), start=1):
        yield f"{PYTHON_DOCS}, document {number}", {column: text}


def named(source: Entries) -> str:
    """A source in words."""
    if isinstance(source, str):
        return source
    return ", ".join(named(entry["source"]) if isinstance(entry, dict) else entry for entry in source)
