"""Every file type reads the same texts, and refuses every fault in one line that names file, place and remedy."""

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from file_writers import TABLES, encode, write, write_table

from attnkit.data import DataConfig, Documents, PretrainDataConfig
from attnkit.data.readers import BEGINNINGS, readers
from attnkit.data.sources import read_rows
from attnkit.errors import UsageError

KINDS = list(readers)
LINES = [kind for kind in KINDS if kind not in ("parquet", "arrow")]
TEXTS = [
    "NA",
    "null",
    "007",
    "1e5",
    "nan",
    "true",
    "2024-01-01",
    'say "this", or that',
    "café 日本語 🙂",
    "next\x85line and \u2028separator\u2029 stay",
    "two\nlines",
    "  spaces around  ",
    "a tab\there",
]
ONE_LINE = [text for text in TEXTS if "\n" not in text and "\t" not in text]  # all that a cell of TSV can hold
BOM = b"\xef\xbb\xbf"


def read(*paths: str, **settings: object) -> list[str]:
    """All documents behind some paths, held out or not."""
    return [document.texts[0] for document in Documents(PretrainDataConfig(source=list(paths), seed=0, **settings))]


def refuse(path: str, match: str, **settings: object) -> None:
    """Loading raises one line that begins with the file."""
    with pytest.raises(UsageError, match=match) as error:
        read(path, **settings)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert Path(path).name in message


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_stays_text(kind: str, packed: str, tmp_path: Path) -> None:
    texts = ONE_LINE if kind == "tsv" else TEXTS
    path = write_table(tmp_path / f"it.{kind}{packed}", {"text": texts})
    assert sorted(read(path)) == sorted(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_suffixes_in_capitals_are_read(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"IT.{kind.upper()}", encode(kind, {"text": ONE_LINE}))
    assert sorted(read(path)) == sorted(ONE_LINE)


@pytest.mark.parametrize("kind", TABLES)
def test_the_text_column_has_any_name_and_place(kind: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / f"it.{kind}", {"id": ["1", "2"], "the body": ["one", "two"], "text": ["x", "y"]})
    assert sorted(read(path, text_column="the body")) == ["one", "two"]


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("kind", LINES)
def test_marks_of_byte_order_and_line_ends_are_no_text(kind: str, end: bytes, tmp_path: Path) -> None:
    content = encode(kind, {"text": ["one", "two", "three"]})
    path = write(tmp_path / f"it.{kind}", BOM + content.replace(b"\n", end))
    assert sorted(read(path)) == ["one", "three", "two"]


@pytest.mark.parametrize("kind", ["txt", "csv", "tsv"])
def test_lines_may_end_with_a_return_alone(kind: str, tmp_path: Path) -> None:
    content = encode(kind, {"text": ["one", "two", "three"]})
    path = write(tmp_path / f"it.{kind}", content.replace(b"\n", b"\r"))
    assert sorted(read(path)) == ["one", "three", "two"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_may_be_long(kind: str, tmp_path: Path) -> None:
    long = "word " * 300_000  # more than a cell of Python's csv or a block of Arrow's holds unasked
    path = write_table(tmp_path / f"it.{kind}", {"text": [long.strip(), "short"]})
    limit = csv.field_size_limit()
    assert sorted(map(len, read(path))) == [5, len(long) - 1]
    assert csv.field_size_limit() == limit, "one for the whole process"


def test_blank_lines_and_blank_texts_are_passed_over(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "it.jsonl", b'\n{"text": "one"}\n  \n{"text": " "}\n')
    table = write(tmp_path / "it.csv", b'\ntext\n\ntwo\n"  "\n""\n')
    assert sorted(read(jsonl, table)) == ["one", "two"]


def row(number: int, kind: str) -> str:
    """How the place of a row is named in errors."""
    line = number + (kind in ("csv", "tsv"))
    return rf"it.{kind}(\.gz)?(, row {number}|:{line})"


def faults(kind: str) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of a type: its bytes, and what has to be said."""
    found = {"empty": (b"", rf"it.{kind}(\.gz)?: (is empty|holds no rows|is no complete (Parquet|Arrow))")}
    if kind in LINES:
        good = encode(kind, {"text": ["déjà 日", "two", "three"]})
        bad = good.replace(b"two", b"caf\xe9")
        number, offset = bad[: bad.index(b"\xe9")].count(b"\n") + 1, bad.index(b"\xe9")
        found["Latin-1"] = (
            bad,
            rf"it.{kind}(\.gz)?:{number}: is not UTF-8 at byte offset {offset} \(0xe9\).* -f WINDOWS-1252 ",
        )
        found["Latin-1 after a mark"] = (BOM + bad, rf":{number}: is not UTF-8 at byte offset {offset + 3} ")
        for encoding in ("UTF-16", "UTF-32"):
            found[encoding] = ("text\n".encode(encoding), rf": is {encoding}; convert it, .* -f {encoding} -t UTF-8")
            for order in ("LE", "BE"):
                said = rf": is {encoding}{order} without a mark; convert it, .* -f {encoding}{order} -t UTF-8"
                found[encoding + order] = ("text,label\n".encode(encoding + order), said)
        for beginning, said in BEGINNINGS.items():
            found[repr(beginning)] = (beginning + b"\x00\x07\xff\n\x80", rf": {re.escape(said)}$")
        found["compressed"] = (gzip.compress(b"text\none\n"), r": is compressed with gzip; let its name end with \.gz")
        found["blank"] = (b" \n\n  \n" if kind not in ("csv", "tsv") else b"\n\n", "holds no rows of text")
        nul = good.replace(b"two", b"t\0o")
        number, offset = nul[: nul.index(b"\0")].count(b"\n") + 1, nul.index(b"\0")
        found["NUL"] = (nul, rf"it.{kind}(\.gz)?:{number}: holds a NUL byte at byte offset {offset}, .*remove it")
        found["NUL after a mark"] = (BOM + nul, rf":{number}: holds a NUL byte at byte offset {offset + 3}, ")
    if kind in TABLES:
        found["no rows"] = (encode(kind, {"text": []}), r"holds no rows of text|is empty")
        missing = r"has no column 'text' \(columns: 'id', 'body'\); name it with data.text_column"
        found["no text column"] = (encode(kind, {"id": ["1"], "body": ["one"]}), missing)
        found["blank texts"] = (encode(kind, {"text": ["", " "]}), "column 'text' holds no text")
    if kind in ("json", "jsonl", "parquet", "arrow"):
        found["null"] = (encode(kind, {"text": ["one", None]}), row(2, kind) + ": column 'text' is null; fill it")
        found["a number"] = (encode(kind, {"text": [1, 2]}), row(1, kind) + ": column 'text' holds int, not text")
        found["a list"] = (encode(kind, {"text": [["a"], ["b"]]}), row(1, kind) + ": column 'text' holds list")
    if kind in ("json", "jsonl"):
        good = b'{"text": "one"}\n'
        found["no JSON"] = (good + b"{text: two}\n", row(2, kind) + ": is no JSON .*one JSON object")
        found["an open row"] = (
            good + b'{"text": \n',
            row(2, kind) + r": is no JSON \(Expecting value at character 9\);",
        )
        found["an open row of an array"] = (
            b'\n[{"text": "one"},\n{"a"}]',
            r":3: is no JSON \(.*':' .* at character 5\);",
        )
        found["a row on several lines"] = (b'{\n"text": "one"\n}\n', row(1, kind) + ": is no JSON .*one array of them")
        found["an array of texts"] = (b'["one", "two"]', r", row 1: is no JSON object; each row has to look like")
        found["an open array"] = (b'\n[{"text": "one"},\n{"text": "two"}', ": is no JSON .*one array of them")
        found["an array of lines"] = (b'["one"]\n["two"]\n', ": is no JSON .*one array of them")
        found["no rows in an array"] = (b"[]\n", "holds no rows of text")
        found["an array without text"] = (b'[{"text": "one"}, {"body": "two"}]', ", row 2: has no column 'text'")
        found["deep JSON"] = (good + b"[" * 100_000 + b"\n", row(2, kind) + ": is no JSON ")
        found["no object"] = (good + b'["two"]\n', row(2, kind) + ": is no JSON object; each row has to look like")
        found["a row without text"] = (good + b'{"body": "two"}\n', row(2, kind) + ": has no column 'text'")
        twice = ": the key 'text' is given twice; keep one of them"
        found["a key twice"] = (good + b'{"text": "one", "text": "two"}\n', row(2, kind) + twice)
        found["a key twice in an array"] = (b'[{"text": "one", "text": "two"}]', twice)
        found["a key twice inside"] = (b'{"text": "a", "b": [{"text": 1, "te\\u0078t": 1}]}\n', row(1, kind) + twice)
        found["half a character"] = (b'{"text": "a\\ud83d"}\n', row(1, kind) + ": .*surrogate pair at character 1;")
    if kind in ("csv", "tsv"):
        other = ";" if kind == "csv" else ","
        found["another separator"] = (f'"id"{other}"text"\n1{other}"one"\n'.encode(), f"has '{other}' between its col")
    if kind == "csv":
        found["too many cells"] = (b"id,text\n1,one\n2,two, three\n", ":3: has 3 cells where the header has 2; quote")
        found["too few cells"] = (b'id,text\n1,"one\nmore"\n\n2\n', ":5: has 1 cells where the header has 2")
        found["an open quote"] = (b'text\none\n"two\nthree\n', ":3: is no CSV .*quote texts")
        found["a stray quote"] = (b'text\n"one" more\n', ":2: is no CSV .*double the quotes")
        found["two text columns"] = (b"text,text\none,two\n", "has 2 columns named 'text'; rename all but one")
    if kind == "tsv":
        found["too many cells"] = (b"id\ttext\n1\tone\n2\ttwo\tthree\n", ":3: has 3 cells .* has 2; replace tabs")
        found["too few cells"] = (b"id\ttext\n1\tone\nmore\n", ":3: has 1 cells where the header has 2; replace")
    if kind in ("parquet", "arrow"):
        column = ": column 'text' holds "
        latin = pa.array([b"caf\xe9"]).view(pa.string())
        found["Latin-1"] = (
            encode(kind, {"text": latin}),
            row(1, kind) + column + "text that is not UTF-8 .*write it again as UTF-8",
        )
        far = pa.array([2**30], pa.int32()).cast(pa.date32())
        found["a far day"] = (
            encode(kind, {"text": far}),
            column + r"a value of type date32\[day\] that cannot be read",
        )
        far = pa.array([10**18], pa.timestamp("us"))
        found["a far second"] = (encode(kind, {"text": far}), column + r"a value of type timestamp\[us\] that cannot")
        nowhere, zone = pa.array([1], pa.timestamp("us", tz="Nowhere/Bad")), r"timestamp\[us, tz=Nowhere/Bad\]"
        found["a time nowhere"] = (encode(kind, {"text": nowhere}), f"a value of type {zone} .*; store it as text")
        twice = pa.StructArray.from_arrays([pa.array([1])] * 2, names=["a", "a"])
        found["a field twice"] = (
            encode(kind, {"text": twice}),
            "a value of type struct<a: int64, a: int64> that cannot",
        )
    if kind == "arrow":
        found["cut off"] = (encode(kind, {"text": ["one", "two"]})[:-90], "is no complete Arrow file .*write it again")
        found["something else"] = (b"text\none\n" * 5, "is no complete Arrow file")
    if kind == "parquet":
        good = encode(kind, {"text": ["one", "two"]})
        found["cut off"] = (good[:-20], "is no complete Parquet file .*write it again")
        found["something else"] = (b"text\none\n" * 5, "is no complete Parquet file")
        found["damaged"] = (good[:4] + bytes(40) + good[44:], "is no complete Parquet file")
    return found


CASES = [(kind, fault) for kind in KINDS for fault in faults(kind)]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_every_fault_is_refused(kind: str, fault: str, packed: str, tmp_path: Path) -> None:
    content, match = faults(kind)[fault]
    refuse(write(tmp_path / f"it.{kind}{packed}", content), match)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_gzip_is_refused(kind: str, tmp_path: Path) -> None:
    content = gzip.compress(encode(kind, {"text": ["one", "two", *map(str, range(500))]}))
    path = tmp_path / f"it.{kind}.gz"
    for damaged in (content[:-12], b"text\none\n", content[:30] + bytes(30) + content[60:]):
        path.write_bytes(damaged)
        refuse(str(path), "is no complete gzip file .*compress it again")


@pytest.mark.parametrize("other", TABLES)
@pytest.mark.parametrize("kind", TABLES)
def test_only_the_wanted_columns_have_to_be_in_every_file(kind: str, other: str, tmp_path: Path) -> None:
    first = write_table(tmp_path / f"a.{kind}", {"text": ["one", "two"], "label": ["x", "y"]})
    second = write_table(tmp_path / f"b.{other}", {"topic": ["x"], "text": ["three"]})
    assert sorted(read(str(tmp_path))) == sorted(read(first, second)) == ["one", "three", "two"]
    write_table(tmp_path / f"c.{other}", {"topic": ["x"], "body": ["four"]})
    with pytest.raises(UsageError, match=rf"c.{other}.*: has no column 'text' \(columns: .*'body'.*data.text_column"):
        read(str(tmp_path))


def test_the_order_of_columns_is_no_difference(tmp_path: Path) -> None:
    first = write_table(tmp_path / "a.csv", {"text": ["one"], "label": ["x"]})
    second = write_table(tmp_path / "b.jsonl", {"label": ["y"], "text": ["two"]})
    assert sorted(read(first, second)) == ["one", "two"]


def test_a_column_that_only_some_lines_have_is_no_difference(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", b'{"text": "one"}\n{"text": "two", "note": 1}\n')
    second = write(tmp_path / "b.jsonl", b'{"text": "three", "note": 1}\n{"text": "four"}\n')
    assert len(read(first, second)) == 4


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("paragraph", ["one\ntwo", "three", " four\nfive"]),
        ("line", ["one", "two", "three", " four", "five"]),
        ("file", ["one\ntwo\n\nthree\n \t\n\n four\nfive"]),
    ],
)
def test_what_a_document_of_plain_text_is(unit: str, expected: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "it.txt", b"\n\none\r\ntwo\n\nthree\n \t\n\n four\nfive\n\n")
    other = write(tmp_path / "other.txt", b"other")
    assert sorted(read(path, other, documents=unit)) == sorted([*expected, "other"])


def test_unsupported_types_are_refused_with_those_that_are_read(tmp_path: Path) -> None:
    refuse(write(tmp_path / "it.pdf", b"one"), r"it.pdf: .*\.arrow, \.csv, .*\.parquet, \.tsv, \.txt, each also with")
    refuse(write(tmp_path / "it.pdf.gz", b"one"), "it.pdf.gz: is of no type that is read here")
    refuse(write(tmp_path / "it", b"one"), "it: is of no type that is read here")


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "it.txt", b"one")
    columns = {"text": "data.text_column", "label": "task.label_column"}
    with pytest.raises(UsageError, match=r"it.txt: plain text has no columns, so none named 'label'; give csv, jsonl"):
        list(read_rows(path, columns=columns, data=DataConfig()))


@pytest.mark.parametrize("kind", TABLES)
def test_rows_hold_the_wanted_columns_and_say_where_they_stand(kind: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / f"it.{kind}", {"id": ["1", "2"], "text": ["one", "two"], "label": ["x", "y"]})
    columns = {"label": "task.label_column", "text": "data.text_column"}
    rows = list(read_rows(path, columns=columns, data=DataConfig()))
    assert [values for _, values in rows] == [{"label": "x", "text": "one"}, {"label": "y", "text": "two"}]
    assert all(re.search(row(number, kind) + "$", place) for number, (place, _) in enumerate(rows, start=1))


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["one", "two", "three"]}).save_to_disk(tmp_path / "saved", num_shards=2)
    assert sorted(read(str(tmp_path / "saved"))) == ["one", "three", "two"]


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_an_array_of_objects_is_read_like_lines(kind: str, tmp_path: Path) -> None:
    rows = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
    for indent in (None, 2):
        path = write(tmp_path / f"it.{kind}", BOM + b"\n" + json.dumps(rows, indent=indent).encode())
        assert sorted(read(path)) == sorted(TEXTS)
    ((place, values), *_) = read_rows(path, columns={"text": "data.text_column"}, data=DataConfig())
    assert (place, values) == (f"{path}, row 1", {"text": TEXTS[0]})


@pytest.mark.parametrize("kind", TABLES)
def test_all_columns_that_a_file_lacks_are_said_at_once(kind: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / f"it.{kind}", {"body": ["one"], "tag": ["x"]})
    columns = {"text": "data.text_column", "body": "data.kept_columns", "label": "task.label_column"}
    message = r"has no column 'text' and no column 'label' \(columns: 'body', 'tag'\); name them with data\.text_column"
    with pytest.raises(UsageError, match=message + r" and task\.label_column$"):
        list(read_rows(path, columns=columns, data=DataConfig()))


def test_an_arrow_file_is_read_like_a_stream(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two"]})
    with pa.ipc.new_file(str(tmp_path / "it.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert sorted(read(str(tmp_path / "it.arrow"))) == ["one", "two"]


def test_damaged_arrow_files_end_in_a_line(tmp_path: Path) -> None:
    """Their numbers say where to read; a process that follows them anywhere dies, so another one tries."""
    table = pa.table({"text": [f"document number {number} with a few words" for number in range(400)]})
    script = tmp_path / "read.py"
    script.write_text("""
import random, sys
from pathlib import Path
import attnkit.data
from attnkit.data.readers import open_file
from attnkit.errors import UsageError

refused = 0
for path in map(Path, sys.argv[1:]):
    whole = path.read_bytes()
    for seed in range(60):
        damaged, draw = bytearray(whole), random.Random(seed)
        for _ in range(3):
            damaged[draw.randrange(8, len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            rows = list(open_file(path, documents="line", refuse=lambda error: None).rows({"text": "it"}))
        except UsageError as error:
            assert len(str(error).splitlines()) == 1, error
            refused += 1
print(refused)
""")
    for opened, name in ((pa.ipc.new_file, "file.arrow"), (pa.ipc.new_stream, "stream.arrow")):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(table)
    files = [str(tmp_path / name) for name in ("file.arrow", "stream.arrow")]
    ended = subprocess.run([sys.executable, str(script), *files], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10
