"""Files of text: one class per file type turns a file into rows, and every fault into one line that says where."""

import csv
import gzip
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, dropwhile, groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, NoReturn, cast, final

from attnkit.errors import Fault, RowError, UsageError, first_line
from attnkit.files.text import JSON
from attnkit.registry import Registry

DocumentUnit = Literal["paragraph", "line", "file"]
Row = tuple[str, dict[str, Any]]  # the place of a row, e.g. `notes.csv:3`, and its values by column

UTF8_MARK = b"\xef\xbb\xbf"
# How a file begins that is no UTF-8, the longer marks first, and what can be done about it.
BEGINNINGS = {
    b"\xff\xfe\x00\x00": "is UTF-32; convert it, e.g. with iconv -f UTF-32 -t UTF-8",
    b"\x00\x00\xfe\xff": "is UTF-32; convert it, e.g. with iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "is UTF-16; convert it, e.g. with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16; convert it, e.g. with iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "is compressed with gzip; let its name end with .gz",
    b"BZh91AY&SY": "is compressed with bzip2; unpack it, or use gzip",
    b"\xfd7zXZ\x00": "is compressed with xz; unpack it, or use gzip",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it, or use gzip",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or save the sheet as csv",
    b"PAR1\x15": "is a Parquet file; let its name end with .parquet",
    b"ARROW1\x00\x00": "is an Arrow file; let its name end with .arrow",
    b"\x89PNG\r": "is a picture; give a file of text",
    b"\xff\xd8\xff": "is a picture; give a file of text",
    b"%PDF-": "is a PDF; give its text",
}
# Text in Latin letters of which every unit has more bytes than one, without a mark.
UNITS = {
    "UTF-32LE": re.compile(rb"[^\0]\0\0\0[^\0]\0\0\0"),
    "UTF-32BE": re.compile(rb"\0\0\0[^\0]\0\0\0[^\0]"),
    "UTF-16LE": re.compile(rb"[^\0]\0[^\0]\0"),
    "UTF-16BE": re.compile(rb"\0[^\0]\0[^\0]"),
}
SEPARATORS = ",;\t|"
# A return that ends a line by itself, as old Macintosh files have it.
LONE_RETURN = re.compile(r"(?<=\r)(?!\n)")


def stop(error: RowError) -> NoReturn:
    """Read no further than a faulty row."""
    raise error


class DataFile(ABC):
    """One file of rows, plain or compressed with gzip.

    Text is UTF-8, with or without a byte order mark; lines end with LF, CRLF or CR and with nothing else: NEL (U+0085)
    and the line separator (U+2028) are characters like others. What a file holds stays text: nothing is read as a
    number, a date or a missing value. `refuse` is given the error of each row without which the rest can be read.
    """

    def __init__(self, path: Path, *, documents: DocumentUnit, refuse: Callable[[RowError], None] = stop) -> None:
        self.path = path
        self.documents = documents
        self.is_empty = True
        self.refuse_by = refuse

    @final
    def refuse(self, error: RowError) -> None:
        """Pass over a row."""
        self.is_empty = False
        self.refuse_by(error)

    @final
    def rows(self, columns: Mapping[str, str]) -> Iterator[Row]:
        """The rows with the wanted `columns`; each column is given with the setting that names it, for the errors.

        Raises `UsageError` for a file that cannot be opened, is empty, damaged or not UTF-8, and for a row that lacks a
        wanted column.
        """
        try:
            if self.path.stat().st_size == 0:
                raise UsageError(f"{self.path}: is empty; remove it, or give another file")
            with open_bytes(self.path) as stream:
                for row in self.read(stream, columns):
                    self.is_empty = False
                    yield row
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UsageError(f"{self.path}: is no complete gzip file ({error}); compress it again") from error
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read ({error.strerror or first_line(error)})") from error
        if self.is_empty:
            raise UsageError(f"{self.path}: holds no rows of text; remove it, or give another file")

    @abstractmethod
    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        """The rows of an open file."""

    def lines(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        """Number and text of each line, its end included; a line ends with LF here, whatever the file's type."""
        offset = 0
        for number, line in enumerate(stream, start=1):
            if number == 1:
                self.check_beginning(line)
                mark = UTF8_MARK if line.startswith(UTF8_MARK) else b""
                offset, line = len(mark), line.removeprefix(mark)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{self.path}:{number}: is not UTF-8 at byte offset {offset + error.start} "
                    f"(0x{line[error.start]:02x}); convert it, e.g. with iconv -f WINDOWS-1252 -t UTF-8"
                ) from error
            if b"\0" in line:
                raise UsageError(
                    f"{self.path}:{number}: holds a NUL byte at byte offset {offset + line.index(bytes(1))}, which "
                    "is no text; write the file again, or remove it, e.g. with tr -d '\\000'"
                )
            offset += len(line)
            yield number, text

    def check_beginning(self, line: bytes) -> None:
        """Refuse a file whose first line shows that it is something else than UTF-8."""
        for beginning, said in BEGINNINGS.items():
            if line.startswith(beginning):
                raise UsageError(f"{self.path}: {said}")
        for encoding, units in UNITS.items():
            if units.match(line):
                raise UsageError(
                    f"{self.path}: is {encoding} without a mark; convert it, e.g. with iconv -f {encoding} -t UTF-8"
                )


def check_columns(present: Sequence[str], wanted: Mapping[str, str], *, place: str) -> None:
    """Refuse a file or row that lacks wanted columns, or has one twice."""
    missing = {column: setting for column, setting in wanted.items() if column not in present}
    if missing:
        lacking = " and no ".join(f"column {column!r}" for column in missing)
        known = ", ".join(repr(name) for name in present) or "none"
        remedy = f"; name {'it' if len(missing) == 1 else 'them'} with {' and '.join(dict.fromkeys(missing.values()))}"
        raise RowError(place, Fault(f"has no {lacking} ", found=f"(columns: {known})", after=remedy))
    for column in wanted:
        if present.count(column) > 1:
            count = f"{present.count(column)} columns"
            raise RowError(place, Fault("has ", found=count, after=f" named {column!r}; rename all but one"))


readers: Registry[DataFile] = Registry("file type", DataFile)


@final
@readers.register("txt")
class TextFile(DataFile):
    """Plain text. `data.documents` says what one document is.

    `paragraph`: lines up to the next blank line; `line`: one line; `file`: the whole file. Line ends become LF.
    """

    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        (column, *others) = columns
        if others:
            raise UsageError(
                f"{self.path}: plain text has no columns, so none named {others[0]!r}; give csv, jsonl or parquet"
            )
        for number, text in self.units(stream):
            yield f"{self.path}:{number}", {column: text}

    def units(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        """Each document, without blank lines around it, and the number of its first line."""
        lines = self.lines_of_any_end(stream)
        if self.documents == "line":
            yield from ((number, line) for number, line in lines if line.strip())
        elif self.documents == "paragraph":
            for blank, group in groupby(lines, key=lambda numbered: not numbered[1].strip()):
                numbers, texts = zip(*group, strict=True)
                if not blank:
                    yield numbers[0], "\n".join(texts)
        else:
            text = "\n".join(line for _, line in lines).strip("\n")
            if text.strip():
                yield 1, text

    def lines_of_any_end(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        """Number and text of each line, without its end."""
        for number, line in self.lines(stream):
            for piece in line.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n"):
                yield number, piece


@final
@readers.register("jsonl")
@readers.register("json")
class JsonFile(DataFile):
    """One JSON object per line (https://jsonlines.org), blank lines passed over; or one JSON array of objects, which is
    read as a whole."""

    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        lines = dropwhile(lambda numbered: not numbered[1].strip(), self.lines(stream))
        first = next(lines, (0, ""))
        is_array = first[1].lstrip().startswith("[")
        for place, row in self.items(chain([first], lines)) if is_array else self.objects(chain([first], lines)):
            try:
                if not isinstance(row, dict):
                    raise RowError(place, Fault('is no JSON object; each row has to look like {"text": "..."}'))
                check_columns(list(row), columns, place=place)
            except RowError as error:
                self.refuse(error)
                continue
            yield place, {column: row[column] for column in columns}

    def objects(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
        """What each line holds, and where."""
        for number, line in lines:
            if line.strip():
                try:
                    value = self.decoded(line, first=number)
                except RowError as error:
                    self.refuse(error)
                    continue
                yield f"{self.path}:{number}", value

    def items(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
        """What the array holds that the lines are together, and where."""
        numbers, texts = zip(*lines, strict=True)
        array = self.decoded("".join(texts), first=numbers[0])
        yield from ((f"{self.path}, row {number}", item) for number, item in enumerate(array, start=1))

    def decoded(self, text: str, *, first: int) -> Any:
        """The value of some JSON, the number of whose `first` line is given."""
        line = first
        try:
            return JSON.decode(text.rstrip())  # without the line's end, after which an error would be in the next line
        except json.JSONDecodeError as error:
            line, said = first + error.lineno - 1, f"{error.msg} at character {error.colno}"
        except UsageError as error:
            raise RowError(f"{self.path}:{line}", Fault(str(error))) from error
        except (ValueError, RecursionError) as error:
            said = first_line(error)
        remedy = "); each line has to be one JSON object, or the file one array of them"
        raise RowError(f"{self.path}:{line}", Fault("is no JSON (", found=said, after=remedy))


@contextmanager
def cells_of_any_length() -> Iterator[None]:
    """Lift the limit of the module `csv`, 131,072 characters per cell, which is too low for documents, and put it back:
    it is one for the whole process."""
    limit = csv.field_size_limit(2**31 - 1)  # the highest on every platform
    try:
        yield
    finally:
        csv.field_size_limit(limit)


class SeparatedFile(DataFile):  # abstract
    """Cells between separators, under a header line; every cell is text, `NA`, `null` and `007` included."""

    dialect: ClassVar[dict[str, Any]]
    """How cells are told apart, in the words of the module `csv`."""
    named: ClassVar[str]
    remedy: ClassVar[str]
    """What to do where cells are not told apart."""

    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        # Python's parser rather than Arrow's: it knows the line of a fault, and a cell may be longer than a block.
        lines = self.lines_of_any_end(stream)
        first = next(lines, "")
        self.check_separator(first, columns)
        parser = csv.reader(chain([first], lines), strict=True, **self.dialect)
        header: list[str] | None = None
        while True:
            place = f"{self.path}:{parser.line_num + 1}"
            try:
                with cells_of_any_length():
                    cells = next(parser, None)
            except csv.Error as error:
                raise UsageError(f"{place}: is no {self.named} ({error}); {self.remedy}") from error
            if cells is None:
                return
            if not cells:  # a blank line
                continue
            if header is None:
                header = cells
                check_columns(header, columns, place=str(self.path))
                continue
            if len(cells) != len(header):
                remedy = f" cells where the header has {len(header)}; {self.remedy}"
                self.refuse(RowError(place, Fault("has ", found=str(len(cells)), after=remedy)))
                continue
            yield place, {column: cells[header.index(column)] for column in columns}

    def check_separator(self, header: str, wanted: Mapping[str, str]) -> None:
        """Refuse a file whose header has the wanted columns if it is cut at another separator."""
        named = {other: {name.strip().strip('"') for name in header.split(other)} for other in SEPARATORS}
        own = self.dialect.get("delimiter", ",")
        for other, names in named.items():
            if set(wanted) <= names and not set(wanted) <= named[own]:
                raise UsageError(
                    f"{self.path}: has {other!r} between its columns, and {self.named} {own!r}; write it with those"
                )

    def lines_of_any_end(self, stream: BinaryIO) -> Iterator[str]:
        """The text of each line with its end; the parser joins again what a quoted cell holds together."""
        for _, line in self.lines(stream):
            yield from (piece for piece in LONE_RETURN.split(line) if piece)


@final
@readers.register("csv")
class CsvFile(SeparatedFile):
    """Comma-separated values (RFC 4180): cells that hold commas, quotes or line ends are quoted."""

    dialect = {}
    named = "CSV"
    remedy = "quote texts that hold commas, and double the quotes in them"


@final
@readers.register("tsv")
class TsvFile(SeparatedFile):
    """Tab-separated values (as registered with IANA): no cell holds a tab or a line end, and quotes are characters."""

    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    named = "TSV"
    remedy = "replace tabs and line ends in texts, or give csv"


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, through gzip if its name ends with .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def file_type(path: Path) -> str | None:
    """The name in `readers` for a file, from its suffix before .gz; None if no reader has it."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix.removeprefix(".")
    return suffix if suffix in readers else None


def open_file(path: Path, *, documents: DocumentUnit, refuse: Callable[[RowError], None] = stop) -> DataFile:
    """The reader of a file. Raises `UsageError` for a file type that is not read."""
    kind = file_type(path)
    if kind is None:
        known = ", ".join(f".{name}" for name in sorted(readers))
        raise UsageError(f"{path}: is of no type that is read here; supported are {known}, each also with .gz")
    return readers[kind](path, documents=documents, refuse=refuse)
