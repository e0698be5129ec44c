"""Reading and writing YAML: what is a number, what is a text, and what is refused."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from attnkit.errors import UsageError
from attnkit.files import strict_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-2.", -2.0),
        ("1_000", 1000),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("-3", -3),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("e5", "e5"),
        (".", "."),
        ("'3e-4'", "3e-4"),
        ("[a, 1e3]", ["a", 1e3]),
        ("{a: no}", {"a": "no"}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = strict_yaml.parse(text)
    assert read == value
    assert type(read) is type(value)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
@example({"\x85": None})
def test_what_is_dumped_is_read_back(value: object) -> None:
    assert strict_yaml.parse(strict_yaml.dump(value)) == value


@pytest.mark.parametrize("text", ["no", "010", "1e3", "3e-4", "1:30", "null", "~", "<<", "=", "2024-01-01", "0o7", ""])
def test_a_text_stays_a_text(text: str) -> None:
    assert strict_yaml.parse(strict_yaml.dump({"key": text})) == {"key": text}


def test_read_returns_the_line_of_each_key(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# a run\nmodel:\n  scorer: dot\n\n  scorer_options: {a: 1}\nimports: []\n")
    mapping, lines = strict_yaml.read(path)
    assert mapping == {"model": {"scorer": "dot", "scorer_options": {"a": 1}}, "imports": []}
    assert lines == {
        "model": 2,
        "model.scorer": 3,
        "model.scorer_options": 5,
        "model.scorer_options.a": 5,
        "imports": 6,
    }


def test_anchors_and_merges_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a\n")
    assert strict_yaml.read(path)[0] == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"run\.yaml: the file is empty"),
        (b"# nothing\n", r"run\.yaml: the file is empty"),
        (b"a: 1\nb: \xe9\n", r"run\.yaml:2: not UTF-8 at byte 8"),
        (b"a: 1\nb: [1\n", r"run\.yaml:3: not YAML: "),
        (b"a: 1\n\tb: 2\n", r"run\.yaml:2: not YAML: "),
        (b"a: \x07\n", r"run\.yaml:1: not YAML: it holds the control character '\\x07'"),
        (b"- a\n- b\n", r"run\.yaml:1: expected `section:` and its keys"),
        (b"just text\n", r"run\.yaml:1: expected `section:` and its keys"),
        (b"a: 1\n---\nb: 2\n", r"run\.yaml:2: not YAML: "),
        (b"a: !!python/object:os.system {}\n", r"run\.yaml:1: not YAML: could not determine a constructor"),
        (b"a: {x: 1}\nb: 1\na: 2\n", r"run\.yaml:3: a is given twice: keep one of them"),
        (b"a:\n  x: 1\n  x: 2\n", r"run\.yaml:3: a\.x is given twice"),
    ],
)
def test_faulty_files_are_named_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        strict_yaml.read(path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    assert strict_yaml.read(path)[0] == {"a": 1}


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: no such file"):
        strict_yaml.read(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        strict_yaml.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["!!int abc", "!!float dot", "!!timestamp dot", "9" * 5000, "[" * 3000],
    ids=["int", "float", "time", "long", "deep"],
)
def test_a_value_that_cannot_be_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"training:\n  seed: {text}\n")
    with pytest.raises(UsageError, match=r"run\.yaml:2: not YAML: "):
        strict_yaml.read(path)
    with pytest.raises(yaml.YAMLError):
        strict_yaml.parse(text)
