"""Documents: no text twice, each on exactly one side, and where it was before."""

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from file_writers import write, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.data import Documents, PretrainDataConfig, documents
from attnkit.data import seen as seen_module
from attnkit.data.seen import Seen
from attnkit.errors import UsageError


def refuse(match: str, **chosen: object) -> None:
    with pytest.raises(UsageError, match=match) as error:
        list(Documents(PretrainDataConfig(**chosen)))
    assert len(str(error.value).splitlines()) == 1


def lines_of(folder: Path, lines: list[str], name: str = "it.txt") -> str:
    return write(folder / name, "\n".join(lines).encode())


def sides(path: str, **chosen: object) -> tuple[list[str], list[str]]:
    """The texts to train on, and those held out."""
    found = list(Documents(PretrainDataConfig(source=path, documents="line", **chosen)))
    return tuple([it.texts[0] for it in found if it.held_out is side] for side in (False, True))


@given(
    lines=st.lists(st.integers(0, 40).map(str), min_size=2, max_size=60).map(lambda some: ["a", *some]),
    fraction=st.floats(0.001, 0.1),
    seed=st.integers(0, 2**32),
    chunk=st.sampled_from([1, 3, 1024]),
)
@settings(deadline=None, max_examples=60)
def test_every_text_is_on_exactly_one_side(
    lines: list[str], fraction: float, seed: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = lines_of(tmp_path_factory.mktemp("text"), lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "CHUNK", chunk)
        made = Documents(PretrainDataConfig(source=path, documents="line", held_out_fraction=fraction, seed=seed))
        found = list(made)
    assert sorted(it.texts[0] for it in found) == sorted(set(lines))
    assert made.duplicates == len(lines) - len(set(lines))
    assert {it.held_out for it in found} == {True, False}
    assert found == list(made)


def test_a_text_stays_on_its_side_when_others_come(tmp_path: Path) -> None:
    lines = list(map(str, range(4000)))
    train, held_out = sides(lines_of(tmp_path, lines), held_out_fraction=0.2)
    random.Random(0).shuffle(lines)
    more_train, more_held_out = sides(lines_of(tmp_path, [*lines, "x", "y"]), held_out_fraction=0.2)
    assert set(train) <= set(more_train)
    assert set(held_out) <= set(more_held_out)
    assert abs(len(held_out) - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5  # four standard deviations
    assert sides(lines_of(tmp_path, lines), held_out_fraction=0.2, seed=1)[1] != held_out


def test_what_is_read_more_than_once_is_the_same(tmp_path: Path) -> None:
    made = Documents(PretrainDataConfig(source=lines_of(tmp_path, list("abcdefgh")), documents="line"))
    assert list(made.train_texts) == list(made.train_texts) == [it.texts[0] for it in made if not it.held_out]


def test_text_to_hold_out_may_have_its_own_source(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", b"one\n\ntwo\n\nthree\n\ntwo")
    held_out = write_table(tmp_path / "held_out.jsonl", {"text": ["three", "four", "four"], "id": [1, 2, 3]})
    made = Documents(PretrainDataConfig(source=train, held_out_source=held_out))
    found = [(it.texts[0], it.held_out) for it in made]
    assert found == [("three", True), ("four", True), ("one", False), ("two", False)]
    assert made.duplicates == 3
    refuse("every document of .* is in data.held_out_source as well", source=train, held_out_source=train)


def test_documents_of_a_mix_say_where_they_are_from(tmp_path: Path) -> None:
    first = lines_of(tmp_path, ["one", "two", "three"])
    second = write_table(tmp_path / "it.csv", {"body": ["three", "four"], "n": ["1", "2"]})
    entries = [{"source": first, "documents": "line"}, {"source": second, "text_column": "body"}]
    found = list(Documents(PretrainDataConfig(source=entries, held_out_source=lines_of(tmp_path, ["x"], "x.txt"))))
    assert [(it.texts[0], it.source) for it in found if not it.held_out] == [
        ("one", 0),
        ("two", 0),
        ("three", 0),
        ("four", 1),
    ]


def test_documents_may_be_pairs(tmp_path: Path) -> None:
    path = write_table(tmp_path / "it.csv", {"de": ["eins", "zwei", "eins", " "], "en": ["one", "two", "1", "x"]})
    data = PretrainDataConfig(source=path, text_column="de")
    pairs = {it.texts for it in Documents(data, target_column="en")}
    assert pairs == {("eins", "one"), ("zwei", "two"), ("eins", "1")}
    with pytest.raises(UsageError, match=r"has no column 'fr' .*; name it with objective.target_column"):
        list(Documents(data, target_column="fr"))
    with pytest.raises(UsageError, match=r"objective\.target_column: 'de' is data.text_column as well"):
        list(Documents(data, target_column="de"))


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ("one,\ntwo, \n", "column 'target' holds no text; fill it, or name another with objective.target_column"),
        (",one\n,two\n", "column 'text' holds no text; fill it, or name another with data.text_column"),
        ("one,\n,two\n", "no row has text in both text and target; fill it"),
    ],
)
def test_the_column_that_is_empty_is_named(rows: str, match: str, tmp_path: Path) -> None:
    path = write(tmp_path / "it.csv", f"text,target\n{rows}".encode())
    with pytest.raises(UsageError, match=match):
        list(Documents(PretrainDataConfig(source=path), target_column="target"))


def test_what_cannot_be_split_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "it.txt", b"one\n\none")
    refuse("it.txt holds one document, too few .*data.documents.*data.held_out_source", source=path)
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        refuse("data.held_out_fraction: got .*between 0 and 1", source=path, held_out_fraction=fraction)
    refuse("data.seed: -1 must be 0 or more", source=path, seed=-1)
    two = write(tmp_path / "two.txt", b"one\n\ntwo")
    refuse(
        "0.9999999 holds out all 2 documents of .*; lower it, or choose another",
        source=two,
        held_out_fraction=0.9999999,
    )


@given(hashes=st.lists(st.integers(0, 50), max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_what_was_seen_is_known(hashes: list[int], cuts: list[int]) -> None:
    seen, known = Seen(), set()
    spread = np.array(hashes, dtype=np.uint64) * np.uint64(2**64 // 51)  # over all parts
    for part in np.split(spread, sorted(cuts)):
        is_new = seen.add(part)
        for value, new in zip(part.tolist(), is_new.tolist(), strict=True):
            assert new == (value not in known)
            known.add(value)
    assert len(seen) == len(known)


def test_many_that_were_seen_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_module, "IN_MEMORY", 100)
    hashes = np.random.default_rng(0).integers(2**64, size=9000, dtype=np.uint64)
    seen = Seen()
    for part in np.split(hashes, 9):
        assert seen.add(part).all()
    assert any(array.mapped is not None for arrays in seen.parts for array in arrays)
    assert not seen.add(hashes).any()
    assert len(seen) == len(hashes)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(UsageError, match=r"/nowhere: cannot hold the hashes of documents .*set TMPDIR"):
        Seen().add(hashes)
