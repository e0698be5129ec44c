"""Sources: which files and data sets, in which order, and what a mix may say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from file_writers import write, write_table

from attnkit.data import DataConfig, Documents, PretrainDataConfig
from attnkit.data.sources import Source, read_rows, sources_of
from attnkit.errors import UsageError


def in_order(source: str | list[str], **settings: object) -> list[str]:
    """The texts of a source in the order in which they are read."""
    data = DataConfig(source=source, **settings)
    return [values["text"] for _, values in read_rows(source, columns={"text": "data.text_column"}, data=data)]


def refuse(match: str, **settings: object) -> None:
    with pytest.raises(UsageError, match=match) as error:
        list(Documents(PretrainDataConfig(**settings)))
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
    empty = PretrainDataConfig(source=[], held_out_source=[]).problems()
    assert [line[:32] for line in empty] == ["data.source: is an empty list; g", "data.held_out_source: is an empt"]
    refuse("data.source: has an empty entry", source=[corpus, " "])


def test_a_source_of_one_entry_may_be_a_list(folder: Path) -> None:
    one, listed = (list(Documents(PretrainDataConfig(source=source))) for source in (str(folder), [str(folder)]))
    assert one == listed


def test_a_list_of_mappings_is_a_mix_of_sources() -> None:
    data = PretrainDataConfig(text_column="body", documents="line", source=["a.txt", "b.txt"])
    defaults = {"weight": None, "text_column": "body", "documents": "line", "subset": None}
    assert sources_of(data) == [Source(source=["a.txt", "b.txt"], **defaults)]
    data.source = ["a.txt", {"source": ["b.csv", "c.csv"], "text_column": "review"}]
    assert sources_of(data) == [
        Source(source="a.txt", **defaults),
        Source(source=["b.csv", "c.csv"], **{**defaults, "text_column": "review"}),
    ]
    data.source = [{"source": "a.txt", "weight": 2, "documents": "file"}, {"source": "org/corpus", "weight": 0.5}]
    assert [(source.weight, source.documents) for source in sources_of(data)] == [(2, "file"), (0.5, "line")]


def test_what_an_entry_of_a_mix_may_not_say_is_refused() -> None:
    entries = {
        "has an unknown key 'wieght': did you mean 'weight'": {"source": "a", "wieght": 1},
        "names no source; write {source: FILES": {"weight": 1},
        "names no source": {"source": [1]},
        "has weight 0; it has to be a number above 0": {"source": "a", "weight": 0},
        "has weight True;": {"source": "a", "weight": True},
        "has weight '1';": {"source": "a", "weight": "1"},
        "has text_column 3; it has to be text": {"source": "a", "text_column": 3},
        "has documents 'lines': did you mean 'line'": {"source": "a", "documents": "lines"},
    }
    for match, entry in entries.items():
        refuse(f"data.source: the entry .*{match}", source=[entry])
    refuse(
        "only some entries have a weight; give one to all of them or to none",
        source=["a", {"source": "b", "weight": 1}],
    )


@pytest.mark.parametrize(
    "name", ["org/corpus", "corpus", "org/corpus-1.5", "org/corpus:dev", "org/corpus@refs/pr/1:dev"]
)
def test_a_hub_dataset_is_refused_offline(name: str) -> None:
    refuse(
        rf"{re.split('[@:]', name)[0]}' is no file or folder here, and the hub cannot be reached for a dataset of that "
        "name; give a local txt, jsonl, csv, tsv, parquet or arrow file",
        source=name,
    )
    refuse("did you mean 'python-docs'", source="python-doc")


def test_a_hub_that_does_not_answer_is_asked_once() -> None:
    code = (
        "from attnkit.data import Documents, PretrainDataConfig, load_tokenizer\n"
        "for load, what in ((Documents, PretrainDataConfig(source='org/corpus')), (load_tokenizer, 'org/tokenizer')):\n"
        "    try:\n"
        "        list(load(what))\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    closed = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}  # nobody listens at this port
    result = subprocess.run([sys.executable, "-c", code], env=closed, capture_output=True, text=True, check=True)
    dataset, tokenizer = result.stdout.splitlines()
    assert "'org/corpus' is no file or folder here, and the hub cannot be reached for a dataset" in dataset
    assert "'org/tokenizer' is no file or folder here, and the hub cannot be reached for a model" in tokenizer
    assert not result.stderr
