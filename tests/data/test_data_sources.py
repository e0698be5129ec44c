"""Sources become documents: which files, in which order, and which documents are held out."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from file_writers import write, write_table
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data import DataConfig, Documents, load_documents, sources
from attnkit.data.sources import read_rows
from attnkit.errors import UsageError


def all_texts(documents: Documents) -> list[str]:
    return [*documents.train["text"], *documents.held_out["text"]]


def in_order(source: str | list[str], **settings: object) -> list[str]:
    """The texts of a source in the order in which they are read."""
    data = DataConfig(source=source, **settings)
    return [values["text"] for _, values in read_rows(source, columns={"text": "data.text_column"}, data=data)]


def refuse(match: str, **settings: object) -> None:
    with pytest.raises(UsageError, match=match) as error:
        load_documents(DataConfig(**settings))
    assert len(str(error.value).splitlines()) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / "b" / "z.txt", b"z")
    write_table(tmp_path / "b" / "a.csv", {"text": ["a"]})
    write(tmp_path / "c.txt.gz", b"c")
    write(tmp_path / "a.txt", b"first\n\nsecond")
    write(tmp_path / "README.md", b"no text of the corpus")
    write(tmp_path / ".hidden" / "it.txt", b"hidden")
    write(tmp_path / ".it.txt", b"hidden")
    return tmp_path


def test_a_folder_stands_for_all_files_in_it_that_can_be_read(folder: Path) -> None:
    assert in_order(str(folder)) == ["first", "second", "a", "z", "c"]


def test_a_glob_stands_for_the_files_that_match(folder: Path) -> None:
    assert in_order(f"{folder}/*.txt*") == ["first", "second", "c"]
    assert in_order(f"{folder}/**/*.[tc][xs][tv]") == ["first", "second", "a", "z"]


def test_a_list_keeps_its_order_and_reads_each_file_once(folder: Path) -> None:
    assert in_order([f"{folder}/c.txt.gz", f"{folder}/b/../a.txt", str(folder)]) == ["c", "first", "second", "a", "z"]


def test_a_path_may_begin_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert in_order("~/a.txt") == in_order(f"{folder}/a.txt")


def test_the_documents_of_python_stand_beside_files(folder: Path) -> None:
    texts = in_order(["python-docs", f"{folder}/c.txt.gz"], text_column="text")
    assert len(texts) > 5_000
    assert texts[-1] == "c"


def test_only_the_text_of_python_docs_is_a_column() -> None:
    columns = {"text": "data.text_column", "label": "task.label_column"}
    with pytest.raises(UsageError, match="python-docs: holds documents only and no column 'label'"):
        next(read_rows("python-docs", columns=columns, data=DataConfig()))


def test_sources_that_are_not_there_are_refused(folder: Path) -> None:
    corpus = write(folder / "corpus.txt", b"one")
    refuse(r"corpis.txt: there is no such file or folder; did you mean '.*corpus.txt'\?", source=f"{folder}/corpis.txt")
    refuse("there is no such file or folder; give a local txt", source=f"{folder}/none/it.txt")
    refuse(r"\*.pdf: no file matches this pattern", source=f"{folder}/*.pdf")
    (folder / "empty" / "b").mkdir(parents=True)
    refuse("empty: is a folder without txt, jsonl", source=f"{folder}/empty")
    refuse("README.md: is of no type that is read here", source=[corpus, f"{folder}/*.md"])
    refuse("data.source: is an empty list", source=[])
    refuse("data.source: has an empty entry", source=[corpus, " "])


def test_a_source_of_one_entry_may_be_a_list(folder: Path) -> None:
    one, listed = (load_documents(DataConfig(source=source)) for source in (str(folder), [str(folder)]))
    assert all_texts(one) == all_texts(listed)


@given(
    texts=st.lists(st.text(min_size=1), min_size=2, max_size=30),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32),
)
def test_every_document_is_in_exactly_one_part(texts: list[str], fraction: float, seed: int) -> None:
    table, duplicates = sources._distinct(iter(texts), seen=set())
    assert table["text"].to_pylist() == list(dict.fromkeys(texts))
    assert table.num_rows + duplicates == len(texts)
    if table.num_rows > 1:
        is_held_out = sources._held_out(table.num_rows, fraction=fraction, seed=seed)
        assert 0 < is_held_out.sum() < table.num_rows
        assert abs(is_held_out.sum() - fraction * table.num_rows) <= 1
        assert np.array_equal(is_held_out, sources._held_out(table.num_rows, fraction=fraction, seed=seed))


def test_the_split_is_that_of_its_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "it.txt", "\n\n".join(map(str, [*range(100), *range(20)])).encode())
    first, again, other = (
        load_documents(DataConfig(source=path, seed=seed, held_out_fraction=0.2)) for seed in (1, 1, 2)
    )
    assert first.train["text"][:] == again.train["text"][:]
    assert first.held_out["text"][:] == again.held_out["text"][:] != other.held_out["text"][:]
    assert (len(first.train), len(first.held_out), first.duplicates) == (80, 20, 20)
    assert sorted(all_texts(first), key=int) == list(map(str, range(100)))
    assert first.train.column_names == first.held_out.column_names == ["text"]


def test_long_text_is_stored_in_parts_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "it.txt", "\n\n".join(map(str, range(500))).encode())
    whole = load_documents(DataConfig(source=path))
    monkeypatch.setattr(sources, "CHUNK", 64)
    parts = load_documents(DataConfig(source=path))
    assert parts.train.data["text"].num_chunks > 1
    assert all_texts(parts) == all_texts(whole)


def test_text_to_hold_out_may_have_its_own_source(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", b"one\n\ntwo\n\nthree\n\ntwo")
    held_out = write_table(tmp_path / "held_out.jsonl", {"text": ["three", "four", "four"], "id": [1, 2, 3]})
    documents = load_documents(DataConfig(source=train, held_out_source=held_out))
    assert documents.train["text"][:] == ["one", "two"]
    assert documents.held_out["text"][:] == ["three", "four"]
    assert documents.duplicates == 3
    refuse("every document of .* is in data.held_out_source as well", source=train, held_out_source=train)


def test_what_cannot_be_split_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "it.txt", b"one\n\none")
    refuse("it.txt' holds one document, too few .*data.documents.*data.held_out_source", source=path)
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        refuse("data.held_out_fraction: got .*between 0 and 1", source=path, held_out_fraction=fraction)


@pytest.mark.parametrize("name", ["org/corpus", "corpus", "org/corpus-1.5", "org/corpus:validation"])
def test_a_hub_dataset_is_refused_offline(name: str) -> None:
    refuse(
        rf"{name.partition(':')[0]}' is no file or folder here, and the hub cannot be reached for a dataset of that "
        "name; give a local txt, jsonl, csv or parquet file",
        source=name,
    )
    refuse("did you mean 'python-docs'", source="python-doc")


def test_a_hub_that_does_not_answer_is_asked_once() -> None:
    code = (
        "from attnkit.data import DataConfig, load_documents, load_tokenizer\n"
        "for load, what in ((load_documents, DataConfig(source='org/corpus')), (load_tokenizer, 'org/tokenizer')):\n"
        "    try:\n"
        "        load(what)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    closed = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}  # nobody listens at this port
    result = subprocess.run([sys.executable, "-c", code], env=closed, capture_output=True, text=True, check=True)
    dataset, tokenizer = result.stdout.splitlines()
    assert "'org/corpus' is no file or folder here, and the hub cannot be reached for a dataset" in dataset
    assert "'org/tokenizer' is no file or folder here, and the hub cannot be reached for a model" in tokenizer
    assert not result.stderr
