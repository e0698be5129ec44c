"""The parts of an example: which column holds each, and how a cell of it is read."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from attnkit.data.columnar import NamedNumber
from attnkit.data.readers import Row
from attnkit.data.sources import text_of
from attnkit.errors import Fault, RowError, UsageError
from attnkit.files.text import JSON, parse_number

Read = Callable[[Row, str], Any]
"""(row, column) -> what the task uses; raises `RowError` for what it cannot be."""

LARGEST = 1e18  # a number whose square single precision still holds
WHOLE = re.compile(r"[0-9]{1,18}")  # a whole number that counts something
WIDTH = 60  # characters of a value that an error shows

LIST_OF_TEXTS = '["a text", "another"]'

QUOTED_LIST = re.compile(r'"\s*\[.*\]\s*"', re.DOTALL)
LIST = re.compile(r"\s*\[\s*(['\"].*|[0-9,\s]*)\]\s*", re.DOTALL)
"""A text that is to be a list of texts or of whole numbers, be it good JSON or not."""

INSIDE = re.compile(r"(.+)\[(.+)\]")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One part of an example. `column[key]` means what a column that holds mappings has under a key."""

    column: str
    setting: str
    """The setting that names the column, for errors."""
    read: Read
    is_answer: bool = False
    """Whether it is what the model has to say."""

    @property
    def stored_in(self) -> str:
        """The column of the file."""
        inside = INSIDE.fullmatch(self.column)
        return inside[1] if inside else self.column

    def value(self, row: Row) -> Any:
        """What a row holds of it."""
        inside = INSIDE.fullmatch(self.column)
        if inside is None:
            return self.read(row, self.column)
        place, values = row
        holder = values[inside[1]]
        if not isinstance(holder, dict) or inside[2] not in holder:
            said = f"column {inside[1]!r} holds no mapping with {inside[2]!r}; name it otherwise"
            raise RowError(place, Fault(said))
        return self.read((place, {self.column: holder[inside[2]]}), self.column)


def shown(value: Any) -> str:
    """A value as an error shows it: not more of it than a line holds."""
    found = repr(value)
    return found if len(found) <= WIDTH else f"{found[:WIDTH]} …"


def misread(place: str, column: str, value: Any, what: str) -> RowError:
    """The error for a value of a column, `what` is wrong with it and how to remedy that."""
    return RowError(place, Fault(f"column {column!r} holds ", found=shown(value), after=f", {what}"))


def listed(row: Row, column: str) -> list[Any] | None:
    """A list, which a csv file may hold as JSON; None where there is something else."""
    value = row[1][column]
    if isinstance(value, str) and QUOTED_LIST.fullmatch(value):
        raise misread(
            row[0], column, value, "a list in quotes, which a tsv file keeps: write it without them, or as csv"
        )
    if isinstance(value, str) and LIST.fullmatch(value):
        value = parsed(row, column, form=LIST_OF_TEXTS)
    return value if isinstance(value, list) else None


def text(row: Row, column: str) -> str:
    """A text that is more than white space."""
    found = text_of(row, column)
    if not found.strip():
        raise RowError(row[0], Fault(f"column {column!r} holds no text; fill in or remove the row"))
    return found


def any_text(row: Row, column: str) -> str:
    """A text, which may be empty."""
    return text_of(row, column)


def place_in(found: str, count: int) -> int | None:
    """The whole number below `count` that a text is; None if it is none."""
    return int(found) if WHOLE.fullmatch(found) and int(found) < count else None


def label(names: Sequence[str] | None, *, named: bool = True) -> Read:
    """A label as text: it may be stored as a whole number, which stands for one of `names` if these are given.

    Without them it has the name that its file gives it, unless numbers are to stay numbers (`named` false).
    """

    def read(row: Row, column: str) -> str:
        place, values = row
        value = values[column]
        if isinstance(value, float):
            raise misread(
                place,
                column,
                value,
                "numbers with a decimal point; a label is text or a whole number: convert the column (pandas makes "
                "such numbers where a label is missing)",
            )
        if isinstance(value, NamedNumber):
            if value.name is None:
                remedy = "which has no name in its file (-1 stands for no label); remove the row, or give another file"
                raise misread(place, column, int(value), remedy)
            if named and names is None:
                return value.name
        found = str(value) if isinstance(value, int) else text(row, column)
        if names is None:
            return found
        number = place_in(found, len(names))
        if number is None:
            least = (
                f"no whole number below {len(names)}, the number of task.label_names; correct it, or name more labels"
            )
            raise misread(place, column, found, least)
        return names[number]

    return read


def labels(names: Sequence[str] | None, *, separator: str) -> Read:
    """Labels in a list, or in a text with a separator between them; there may be none."""
    read_one = label(names)

    def read(row: Row, column: str) -> list[str]:
        place, parts = row[0], listed(row, column)
        if parts is None:
            parts = [part.strip() for part in text_of(row, column).split(separator) if part.strip()]
        return sorted({read_one((place, {column: part}), column) for part in parts})

    return read


def words(row: Row, column: str) -> list[str]:
    """Words in a list, or in a text with white space between them."""
    place, found = row[0], listed(row, column)
    if found is None:
        found = text(row, column).split()
    if not found:
        raise RowError(place, Fault(f"column {column!r} holds no word; fill in or remove the row"))
    for word in found:
        if not isinstance(word, str) or not word.strip():
            raise misread(place, column, word, "where a word should be; store words as text")
        text_of((place, {column: word}), column)
    return [" ".join(word.split()) for word in found]


def tags(names: Sequence[str] | None) -> Read:
    """A label per word, in a list or in a text with white space between them."""
    read_one = label(names)

    def read(row: Row, column: str) -> list[str]:
        place, found = row[0], listed(row, column)
        if found is None:
            found = text(row, column).split()
        return [read_one((place, {column: tag}), column) for tag in found]

    return read


def number(row: Row, column: str) -> float:
    """A number that can be learnt, which may be stored as text."""
    place, values = row
    value = values[column]
    try:
        if isinstance(value, str):
            found = parse_number(value)
        else:
            is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
            found = float(value) if is_number else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not abs(found) <= LARGEST:  # so that nan is none
        remedy = "correct it (decimals follow a point), scale the column, or remove the row"
        raise misread(place, column, value, f"which is no number of at most {LARGEST:g}; {remedy}")
    return found


def texts(row: Row, column: str) -> list[str]:
    """A list of texts."""
    place, _ = row
    value = parsed(row, column, form=LIST_OF_TEXTS)
    if not isinstance(value, list):
        raise misread(place, column, value, f"no list of texts; write it as {LIST_OF_TEXTS}")
    return [text((place, {column: item}), column) for item in value]


def parsed(row: Row, column: str, *, form: str) -> Any:
    """A value that is no text: as it is, or from the JSON that a csv file holds in its place; `form` is an example."""
    place, values = row
    value = values[column]
    try:
        found = JSON.decode(value) if isinstance(value, str) else value
    except UsageError as error:
        raise misread(place, column, value, f"in which {error}") from error
    except (ValueError, RecursionError) as error:
        said, remedy = f"{shown(value)} ({error})", f", which is no JSON; write it as {form}"
        raise RowError(place, Fault(f"column {column!r} holds ", found=said, after=remedy)) from error
    for part in texts_in(found):
        text_of((place, {column: part}), column)
    return found


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a value from a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)
