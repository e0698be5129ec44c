"""Files of every type that is read, written by what others would write them with."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnkit.data.readers import readers

TABLES = [kind for kind in readers if kind != "txt"]
Table = dict[str, Sequence[Any]]


def encode(kind: str, table: Table) -> bytes:
    """A table as the bytes of a file; plain text has the first column, a blank line between its texts."""
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    if kind == "txt":
        return "\n\n".join(next(iter(table.values()))).encode()
    if kind in ("json", "jsonl"):
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    if kind == "csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(table), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()
    if kind == "tsv":
        return "".join("\t".join(cells) + "\n" for cells in [list(table), *zip(*table.values(), strict=True)]).encode()
    stream = io.BytesIO()
    if kind == "arrow":
        columns = pa.table(table)
        with pa.ipc.new_stream(stream, columns.schema) as writer:
            writer.write_table(columns)
        return stream.getvalue()
    assert kind == "parquet", f"write files of type {kind} here as well"
    pq.write_table(pa.table(table), stream)
    return stream.getvalue()


def write(path: Path, content: bytes) -> str:
    """Write bytes under a name, through gzip if it ends with .gz."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def write_table(path: Path, table: Table) -> str:
    return write(path, encode(path.name.removesuffix(".gz").rpartition(".")[2], table))
