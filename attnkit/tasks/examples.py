"""Labelled examples: the rows of `data.source` as text, checked and split into train and held-out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from datasets import Dataset

from attnkit.data import python_docs
from attnkit.data.readers import Row
from attnkit.data.sources import PYTHON_DOCS, DataConfig, read_rows, text_of
from attnkit.errors import UsageError
from attnkit.tasks.splits import stratified_split

SHOWN = 5  # places that an error names


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the source: its name there, and the setting that gives it."""

    name: str
    setting: str


def read_examples(data: DataConfig, *, columns: Mapping[str, Column]) -> tuple[Dataset, Dataset]:
    """Train and held-out examples. `columns` says which column of the source becomes `text`, `label` and so on.

    Every value is text and holds more than white space; labels may be stored as whole numbers or booleans too. Without
    `data.held_out_source`, `data.held_out_fraction` of the texts of each label is held out.

    Raises `UsageError` for a column that is missing or named twice, and for rows without text or label (naming some).
    """
    settings_of: dict[str, list[str]] = {}
    for column in columns.values():
        settings_of.setdefault(column.name, []).append(column.setting)
    for name, settings in settings_of.items():
        if len(settings) > 1:
            raise UsageError(f"{' and '.join(settings)} name the same column, {name!r}; give each its own")
    examples = read(data.source, data=data, columns=columns)
    if data.held_out_source is not None:
        return examples, read(data.held_out_source, data=data, columns=columns)
    if not 0 < data.held_out_fraction < 1:
        raise UsageError(f"data.held_out_fraction: got {data.held_out_fraction}; it has to lie between 0 and 1")
    train, held_out = stratified_split(
        examples["text"][:], examples["label"][:], fraction=data.held_out_fraction, seed=data.seed
    )
    if not held_out:
        raise UsageError(
            "data.source: no label has two different texts, so none can be held out; give data.held_out_source"
        )
    return examples.select(train), examples.select(held_out)


def read(source: str | list[str], *, data: DataConfig, columns: Mapping[str, Column]) -> Dataset:
    """All examples of one source, their columns named by role."""
    values: dict[str, list[str]] = {role: [] for role in columns}
    empty: list[str] = []
    for row in labelled_rows(source, data=data, columns=columns):
        texts = {
            role: label_of(row, it.name) if role == "label" else text_of(row, it.name) for role, it in columns.items()
        }
        empty.extend(f"{row[0]} ({columns[role].name})" for role, text in texts.items() if not text.strip())
        for role, text in texts.items():
            values[role].append(text)
    if empty:
        raise UsageError(
            f"{', '.join(empty[:SHOWN])}{', …' * (len(empty) > SHOWN)}: {len(empty)} "
            f"cell{'s hold' if len(empty) > 1 else ' holds'} no text; fill in or remove the rows"
        )
    return Dataset.from_dict(values)


def labelled_rows(source: str | list[str], *, data: DataConfig, columns: Mapping[str, Column]) -> Iterator[Row]:
    """The rows of a source; `python-docs` has labels of its own."""
    if source != PYTHON_DOCS:
        yield from read_rows(source, columns={it.name: it.setting for it in columns.values()}, data=data)
        return
    for it in columns.values():
        if it.name not in ("text", "label"):
            raise UsageError(f"{it.setting}: {PYTHON_DOCS} has the columns 'text' and 'label', and no {it.name!r}")
    for number, example in enumerate(python_docs.labelled(), start=1):
        yield f"{PYTHON_DOCS}, example {number}", dict(example)


def label_of(row: Row, column: str) -> str:
    """The label in a column of a row as text. Raises `UsageError` where it is neither text nor a whole number."""
    place, values = row
    if isinstance(values[column], float):
        raise UsageError(
            f"{place}: column {column!r} holds {values[column]}; a label is text or a whole number, so write it as one"
        )
    whole_number = isinstance(values[column], int)
    return str(values[column]) if whole_number else text_of(row, column)
