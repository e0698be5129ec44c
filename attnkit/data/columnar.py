"""Files of columns with types, Parquet and Arrow, and the names that `datasets` gives the numbers in them."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, final

import pyarrow as pa
import pyarrow.parquet as pq

from attnkit.data.readers import DataFile, Row, check_columns, readers
from attnkit.errors import Fault, RowError, UsageError, first_line

ARROW_FILE = b"ARROW1"
FEATURES = b"huggingface"  # of the metadata of a schema


class NamedNumber(int):
    """A whole number that stands for a name, as `datasets` stores a `ClassLabel`; without one if none has it."""

    name: str | None

    def __new__(cls, number: int, *, names: Sequence[str]) -> "NamedNumber":
        self = super().__new__(cls, number)
        self.name = names[number] if 0 <= number < len(names) else None
        return self


def with_names(feature: Any, value: Any) -> Any:
    """A value of a column with the names of its numbers, which `feature` tells in the form of `datasets`."""
    if not feature:
        return value
    match feature, value:
        case {"_type": "ClassLabel", "names": list(names)}, int():
            return NamedNumber(value, names=names)
        case {"_type": "List" | "LargeList" | "Sequence", "feature": inner}, list():
            return [with_names(inner, item) for item in value]
        case dict(), dict():
            return {key: with_names(feature.get(key), item) for key, item in value.items()}
    return value


class ColumnarFile(DataFile):  # abstract
    """A file of columns with types; where `datasets` wrote it, with what it knows of them."""

    def features(self, schema: pa.Schema) -> dict[str, Any]:
        """What `datasets` says of the columns with named numbers; nothing where something else wrote the file."""
        said = (schema.metadata or {}).get(FEATURES)
        try:
            known = {} if said is None else dict(json.loads(said)["info"]["features"])
            return {column: feature for column, feature in known.items() if "ClassLabel" in json.dumps(feature)}
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path}: its metadata 'huggingface' do not tell the columns ({error}); write it again"
            ) from error

    def decoded(self, batches: Iterable[pa.RecordBatch], features: dict[str, Any]) -> Iterator[Row]:
        """The rows of batches, but those with a value that Python has not."""
        number = 0
        for batch in batches:
            for values in values_of(batch):
                number += 1
                place = f"{self.path}, row {number}"
                if isinstance(values, Fault):
                    self.refuse(RowError(place, values))
                else:
                    yield place, with_names(features, values)


def values_of(batch: pa.RecordBatch) -> list[dict[str, Any] | Fault]:
    """The values of each row by column, or what is wrong with one of them."""
    try:
        return list(batch.to_pylist())
    except (OverflowError, ValueError):  # a date after the year 9999, a key twice, text that is not UTF-8
        return [values_of_row(batch.slice(place, 1)) for place in range(batch.num_rows)]


def values_of_row(row: pa.RecordBatch) -> dict[str, Any] | Fault:
    """The values of a batch of one row by column, or what is wrong with the first that cannot be read."""
    found = {}
    for column, cells in zip(row.schema.names, row.columns, strict=True):
        try:
            found[column] = cells[0].as_py()
        except UnicodeDecodeError as error:
            remedy = "; write it again as UTF-8"
            return Fault(f"column {column!r} holds text that is not UTF-8 ", found=f"({error})", after=remedy)
        except (OverflowError, ValueError) as error:
            remedy = f" that cannot be read ({first_line(error)}); store it as text"
            return Fault(f"column {column!r} holds a value of type ", found=str(cells.type), after=remedy)
    return found


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch from a file, whose numbers say where to read: those of a damaged one point anywhere. Text that is not
    UTF-8 is of single rows."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
    return batch


@final
@readers.register("parquet")
class ParquetFile(ColumnarFile):
    """Apache Parquet; only the wanted columns are read."""

    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        # Parquet is read from its end, which a gzip stream cannot do.
        seekable = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        try:
            table = pq.ParquetFile(seekable)
            check_columns(table.schema_arrow.names, columns, place=str(self.path))
            features = self.features(table.schema_arrow)
            batches = table.iter_batches(batch_size=1024, columns=list(columns))
            yield from self.decoded(batches, features)
        except (pa.ArrowException, OSError) as error:  # what Arrow finds damaged may be an OSError too
            raise UsageError(
                f"{self.path}: is no complete Parquet file ({first_line(error)}); write it again"
            ) from error


@final
@readers.register("arrow")
class ArrowFile(ColumnarFile):
    """An Arrow stream or file, such as those in a folder that `Dataset.save_to_disk` wrote."""

    def read(self, stream: BinaryIO, columns: Mapping[str, str]) -> Iterator[Row]:
        # Unpacked before anything else, so that a damaged gzip stream is said to be one.
        stream = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        try:
            is_file = stream.read(len(ARROW_FILE)) == ARROW_FILE
            stream.seek(0)
            reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
            self.columns = list(reader.schema.names)
            check_columns(self.columns, columns, place=str(self.path))
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
            features = self.features(reader.schema)
            yield from self.decoded((checked(batch.select(list(columns))) for batch in batches), features)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise UsageError(f"{self.path}: is no complete Arrow file ({first_line(error)}); write it again") from error
