"""Every fault of every file is said at once, each with its places, before anything is trained."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_of_tasks import GOOD, OPTIONS, TURNS, write

from attnkit.errors import UsageError
from attnkit.tasks import ExamplesConfig, TaskConfig, load_examples, make_task, tasks
from attnkit.tasks.examples import KEPT, PLACE, read_examples


def faults(task: TaskConfig, **data: Any) -> list[str]:
    config = ExamplesConfig(**data)
    with pytest.raises(UsageError) as raised:
        load_examples(make_task(task, config), config)
    return str(raised.value).splitlines()


def test_all_files_are_looked_through(tmp_path: Path) -> None:
    good = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(4)]
    train = write(tmp_path / "train.jsonl", *good, {"text": " ", "label": "a"}, {"text": 7, "label": "a"})
    more = write(tmp_path / "more.jsonl", {"body": "text", "label": "a"})
    held_out = write(tmp_path / "held_out.jsonl", {"text": "x", "label": "c"}, {"text": "y", "label": None})
    (tmp_path / "test.csv").write_text("text,label\none,a\ntwo,d,\n", encoding="utf-8")
    found = faults(
        TaskConfig(),
        source=[train, more, str(tmp_path / "nowhere.csv")],
        held_out_source=held_out,
        test_source=str(tmp_path / "test.csv"),
    )
    expected = [
        "nowhere.csv: there is no such file or folder",
        "train.jsonl:5: column 'text' holds no text; fill in or remove the row",
        "train.jsonl:6: column 'text' holds int, not text",
        "more.jsonl:1: has no column 'text'",
        "held_out.jsonl:2: column 'label' is null",
        "test.csv:3: has 3 cells where the header has 2",
    ]
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert part in line


def test_a_file_is_read_on_after_a_faulty_row(tmp_path: Path) -> None:
    good = '{"text": "x", "label": "a"}\n'
    path = tmp_path / "a.jsonl"
    path.write_text(good + '{"text": 1, "label": null}\n{bad\n{"text": "y"}\n[1]\n{"text": \n' + good, encoding="utf-8")
    number, null, broken, lacking, listed = faults(TaskConfig(), source=str(path), held_out_source=str(path))[:5]
    assert re.search(
        r"a\.jsonl:3, \S+a\.jsonl:6: is no JSON \(Expecting property .* at character 2, Exp.* 9\); ", broken
    )
    assert "a.jsonl:4: has no column 'label' (columns: 'text'); name it with task.label_column" in lacking
    assert "a.jsonl:5: is no JSON object" in listed
    assert "a.jsonl:2: column 'text' holds int" in number
    assert "a.jsonl:2: column 'label' is null" in null
    (tmp_path / "b.csv").write_text("text,label\nx,a\nx,a,b\ny,b\nonly\n,a\n", encoding="utf-8")
    ragged, empty = faults(TaskConfig(), source=str(tmp_path / "b.csv"))
    assert "b.csv:5: has 3, 1 cells where the header has 2; quote texts" in ragged
    assert "b.csv:6: column 'text' holds no text" in empty
    days = pa.array([0, 2**30, 2**30], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"text": ["x", "y", "z"], "label": ["a", "b", "a"], "day": days}), tmp_path / "c.parquet")
    _, far = faults(TaskConfig(), source=str(tmp_path / "c.parquet"), kept_columns=["day"])
    assert "c.parquet, row 3: column 'day' holds a value of type date32[day] that cannot be read (" in far


def test_labels_that_differ_by_white_space_are_said(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": ("pos", "pos ", "neg")[number % 3]} for number in range(12)]
    config, notes = ExamplesConfig(source=write(tmp_path / "a.jsonl", *rows), held_out_fraction=0.3), []
    load_examples(make_task(TaskConfig(), config), config, notes=notes)
    assert [note for note in notes if "white space" in note] == [
        "'pos', 'pos ' differ only by white space around them and are classes of their own: write them alike"
    ]


def test_classes_that_lose_all_their_examples_are_said(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": "abcd"[number % 4]} for number in range(40)]
    source, notes = write(tmp_path / "a.jsonl", *rows), []
    config = ExamplesConfig(source=source, held_out_source=source, max_train_samples=2)
    kept = load_examples(make_task(TaskConfig(), config), config, notes=notes)["train"]
    lost = sorted({*"abcd"} - {example["label"] for example in kept})
    said = f"{len(lost)} of 4 classes have no example to train on ({', '.join(map(repr, lost))}): raise"
    assert [note for note in notes if note.startswith(said)]


@pytest.mark.parametrize(("name", "column"), [("token_classification", "text"), ("multi_label", "label")])
def test_a_list_in_quotes_is_no_list_of_words(name: str, column: str, tmp_path: Path) -> None:
    row = {"text": "a b", "label": "O B-X"} | {column: '"[""a"", ""b""]"'}
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + f"{row['text']}\t{row['label']}\n" * 4, encoding="utf-8")
    config = ExamplesConfig(source=str(tmp_path / "a.tsv"))
    with pytest.raises(
        UsageError, match=rf"column '{column}' holds .*, a list in quotes, which a tsv file keeps: write"
    ):
        load_examples(make_task(TaskConfig(name=name), config), config)


def test_tags_that_are_numbers_can_have_names(tmp_path: Path) -> None:
    rows = [{"text": f"a b{number}", "label": [0, 1]} for number in range(4)]
    config = ExamplesConfig(source=write(tmp_path / "a.jsonl", *rows), held_out_fraction=0.5)
    with pytest.raises(UsageError, match=r"no BIO tag .*; name the tags by task\.label_names, or set task\.metrics"):
        load_examples(make_task(TaskConfig(name="token_classification"), config), config)


def test_a_fault_of_many_rows_is_one_line(tmp_path: Path) -> None:
    rows = [{"text": "", "label": "0"}] * 50 + [{"text": "x", "label": str(2 + number)} for number in range(40)]
    found = faults(TaskConfig(label_names=["a", "b"]), source=write(tmp_path / "a.jsonl", *rows))
    assert "a.jsonl:1, " in found[0]
    assert ", … (50 rows): column 'text' holds no text" in found[0]
    assert ", … (40 rows): column 'label' holds '2', '3', '4', …, no whole number below 2" in found[1]
    assert len(found) == 2


def test_a_column_of_decimal_commas_is_one_line(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": f"{number},5"} for number in range(40)]
    (line,) = faults(TaskConfig(name="regression"), source=write(tmp_path / "a.jsonl", *rows))
    assert "a.jsonl:3, … (40 rows): column 'label' holds '0,5', '1,5', '2,5', …, which is no number of at most" in line
    assert "(decimals follow a point)" in line


@pytest.mark.parametrize("name", tasks)
def test_a_missing_column_is_the_only_fault(name: str, tmp_path: Path) -> None:
    task = TaskConfig(name=name, options=OPTIONS.get(name, {}))
    for column in GOOD[name]:
        rest = {other: value for other, value in GOOD[name].items() if other != column}
        bad, good = write(tmp_path / "bad.jsonl", rest), write(tmp_path / "good.jsonl", *[GOOD[name]] * 3)
        for data in ({"source": [good, bad]}, {"source": bad}, {"source": bad, "held_out_source": good}):
            (line,) = faults(task, **data)
            assert f"bad.jsonl:1: has no column {column!r} (columns: " in line


def test_a_label_is_known_if_its_row_has_another_fault(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", {"text": "x", "label": "a"}, {"text": "", "label": "b"})
    held_out = write(tmp_path / "b.jsonl", {"text": "y", "label": "b"}, {"text": "z", "label": "c"})
    empty, unseen = faults(TaskConfig(), source=train, held_out_source=held_out, test_source=held_out)[:2]
    assert "a.jsonl:2: column 'text' holds no text" in empty
    assert "b.jsonl:2: column 'label' holds 'c', which no training row has; correct it, or train on rows" in unseen
    train = write(tmp_path / "a.jsonl", {"text": "x", "label": "a"}, {"text": "y", "label": None})
    (line,) = faults(TaskConfig(), source=train, held_out_source=held_out)
    assert "a.jsonl:2: column 'label' is null" in line


def test_lists_in_cells_are_json(tmp_path: Path) -> None:
    cells = {
        "multi_label": ({"text": "one", "label": '["x, y", "z"]'}, {"labels": ["x, y", "z"]}),
        "token_classification": (
            {"text": '["one", "text"]', "label": '["O", "B-x"]'},
            {"words": ["one", "text"], "tags": ["O", "B-x"]},
        ),
        "question_answering": (
            {"text": "one {text", "question": "?", "label": "{text"},
            {"answers": [("{text", 4)]},
        ),
    }
    for name, (row, expected) in cells.items():
        source = str(tmp_path / f"{name}.csv")
        pd.DataFrame([row]).to_csv(source, index=False)
        (example,) = read_examples(
            source, task=make_task(TaskConfig(name=name), ExamplesConfig()), data=ExamplesConfig(source=source)
        ).examples
        assert expected.items() <= example.items()


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ({"name": "regression"}, {"label": "high"}, "column 'label' holds 'high', which is no number"),
        ({"name": "regression"}, {"label": "nan"}, "column 'label' holds 'nan', which is no number"),
        ({"name": "regression"}, {"label": "1_000"}, "column 'label' holds '1_000', which is no number"),
        ({"name": "regression"}, {"label": "١٢"}, "column 'label' holds '١٢', which is no number"),
        ({"name": "multi_label"}, {"label": 5}, "column 'label' holds int, not text"),
        (
            {"name": "token_classification"},
            {"label": "O O O"},
            "there are 3 tags for 2 words; give one tag for each word",
        ),
        ({"name": "token_classification"}, {"text": []}, "column 'text' holds no word"),
        ({"name": "token_classification"}, {"text": ["a", " "]}, "column 'text' holds ' ', where a word should be"),
        ({"name": "multiple_choice"}, {"choices": ["a"]}, "column 'choices' holds 1 choices; give two or more"),
        ({"name": "multiple_choice"}, {"choices": ["a", "b"], "label": 2}, "from 0 to 1"),
        ({"name": "multiple_choice"}, {"choices": ["a", "b"], "label": "١"}, "from 0 to 1"),
        ({"name": "multiple_choice"}, {"choices": ["a", "b"], "label": "9" * 5000}, "from 0 to 1"),
        ({"name": "multiple_choice"}, {"choices": '[{"a": 1, "a": 2}]'}, "the key 'a' is given twice; keep one"),
        (
            {"name": "multiple_choice"},
            {"choices": "a"},
            "holds 'a' (Expecting value: line 1 column 1 (char 0)), which is no JSON; write",
        ),
        ({"name": "multiple_choice"}, {"choices": {}}, "column 'choices' holds {}, no list of texts; write it as"),
        ({"name": "question_answering"}, {"question": "?", "label": "dog"}, "the text has the answer 'dog' 0 times"),
        ({"name": "question_answering"}, {"question": "?", "label": "{dog"}, "the text has the answer '{dog' 0 times"),
        (
            {"name": "question_answering"},
            {"question": "?", "label": '{"text": ["one"], "answer_start": [0'},
            '), which is no JSON; write it as {"text": ["an answer"], "answer_start": [0]}',
        ),
        (
            {"name": "question_answering"},
            {"question": "?", "label": "{'text': array(['one']), 'answer_start': array([0])}"},
            'which is no JSON; write it as {"text": ["an answer"], "answer_start": [0]}',
        ),
        ({"name": "multi_label"}, {"label": "['x', 'y']"}, 'which is no JSON; write it as ["a text", "another"]'),
        ({"name": "token_classification"}, {"label": "['O' 'O']"}, 'which is no JSON; write it as ["a text",'),
        ({"name": "token_classification"}, {"text": "['one' 'text']"}, 'which is no JSON; write it as ["a text",'),
        ({"name": "instruction", "options": {"messages_column": "m"}}, {"m": "[{"}, "which is no JSON; write it as [{"),
        (
            {"name": "question_answering"},
            {"question": "?", "label": {"text": ["one"], "answer_start": [30]}},
            "an answer lies outside the text: 3 characters from 30 of 8",
        ),
        (
            {"name": "question_answering"},
            {"question": "?", "label": {"text": ["one"], "answer_start": []}},
            'which is no answer; give a text, or {"text": ["an answer"], "answer_start": [0]} with as many numbers',
        ),
        (
            {"name": "question_answering"},
            {"question": "?", "label": '{"text": ["one"], "answer_start": [0], "answer_start": [4]}'},
            "the key 'answer_start' is given twice; keep one of them",
        ),
        ({"name": "sequence_to_sequence", "label_column": "a[de]"}, {"a": {"en": "x"}}, "no mapping with 'de'"),
        ({"name": "sequence_to_sequence"}, {"label": " "}, "column 'label' holds no text; fill in or remove the row"),
        ({"name": "instruction"}, {"label": ""}, "column 'label' holds no text; fill in or remove the row"),
        (
            {"name": "question_answering", "options": {"no_answer": True}},
            {"question": "?", "label": {"text": [" "], "answer_start": [3]}},
            "column 'label': an answer is only white space; remove it, and its answer_start",
        ),
        ({"name": "classification", "label_names": ["n", "p"]}, {"label": 2}, "no whole number below 2"),
        ({"name": "classification", "label_names": ["n", "p"]}, {"label": "١"}, "no whole number below 2"),
    ],
)
def test_every_task_says_what_is_wrong_with_a_row(
    task: dict[str, Any], row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.jsonl", {"text": "one text", "label": "x", **row})
    lines = faults(TaskConfig(**task), source=source, held_out_source=source)
    assert any(line.startswith(f"{source}:1: ") and message in line for line in lines)


MALFORMED = [
    *(None, -1, 10**400, True, 1.5, 1e39, float("nan"), float("inf"), {}, {"text": ["x"]}, [], [None], [1], [[]]),
    *("", " ", "1e400", "[", "[" * 100_000, '{"a":' * 100_000, "{}", "null", "a\ud800b", ["a", ""], ["a"] * 100),
    *("1_0", "٣", '{"a": 1, "a": 2}', '{"text": ["one"], "text": [], "answer_start": []}'),
    *({"text": ["one"], "answer_start": [at]} for at in (-1, 10**30, True, "0", None)),
    *([{"role": "user"}], [{"role": ["user"], "content": "x"}], TURNS[:1], TURNS[1:]),
    [*TURNS[:1], {**TURNS[1], "content": ""}],
]  # fmt: skip


@pytest.mark.parametrize("name", tasks)
def test_whatever_a_column_holds_is_read_or_refused_with_its_place(name: str, tmp_path: Path) -> None:
    task, refused = TaskConfig(name=name, options=OPTIONS.get(name, {})), 0
    for column in GOOD[name]:
        for value in MALFORMED:
            source = write(tmp_path / "a.jsonl", *[GOOD[name]] * 2, {**GOOD[name], column: value})
            made = make_task(task, ExamplesConfig())
            read = read_examples(source, task=made, data=ExamplesConfig(source=source))
            lines = read.faults.lines()
            refused += len(lines)
            assert len(read.examples) == 3 - len(lines) >= 2
            for line in lines:
                assert re.match(rf"{source}:3: columns? '\w+'[^\n]*;", line)
                assert len(line) < 400
    assert refused >= 20


def test_kept_columns_go_along_with_what_is_not_trained_on(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": "ab"[number % 2], "id": [number, None]} for number in range(8)]
    path = write(tmp_path / "a.jsonl", *rows)
    data = ExamplesConfig(source=path, test_source=path, kept_columns=["id", "text"])
    task = make_task(TaskConfig(), data)
    examples = load_examples(task, data)
    assert [it[KEPT] for it in examples["test"]] == [{"id": row["id"], "text": row["text"]} for row in rows]
    assert not any(KEPT in it for it in examples["train"])
    assert task.question(examples["test"][0]) == task.question({"text": "text 0"})
    (line,) = faults(TaskConfig(), source=path, kept_columns=["key"])
    assert (
        "a.jsonl:3, … (8 rows): has no column 'key' (columns: 'text', 'label', 'id'); name it with data.kept_col"
        in line
    )
    pq.write_table(pa.table({"text": ["x"], "label": ["a"], "id": [b"1"]}), tmp_path / "a.parquet")
    (line,) = faults(TaskConfig(), source=path, test_source=str(tmp_path / "a.parquet"), kept_columns=["id"])
    assert "a.parquet, row 1: column 'id' holds b'1', which no line of JSON holds; store it as text, or leave" in line
    with pytest.raises(UsageError, match=r"^data\.kept_columns: files of predictions call something else 'gold'"):
        make_task(TaskConfig(), ExamplesConfig(kept_columns=["gold"]))
    with pytest.raises(UsageError, match=r"^data\.text_column: files of predictions call something else 'prediction'"):
        make_task(TaskConfig(), ExamplesConfig(text_column="prediction"))
    assert ExamplesConfig(kept_columns=["id", "id"]).problems() == [
        "data.kept_columns: 'id' is there twice; give it once"
    ]
    for nothing in ({}, {"source": []}):
        assert faults(TaskConfig(), **nothing)[0].startswith(
            "data.source: is missing: give the files or the hub name of"
        )
    assert ExamplesConfig(test_source=[]).problems()[0].startswith("data.test_source: is an empty list; give a local")


def test_choices_are_as_many_everywhere(tmp_path: Path) -> None:
    rows = [{"text": "t", "choices": list("abc"[:number]), "label": 0} for number in (2, 3)]
    (line,) = faults(
        TaskConfig(name="multiple_choice"),
        source=write(tmp_path / "a.jsonl", rows[0]),
        held_out_source=write(tmp_path / "b.jsonl", rows[1]),
    )
    assert line.endswith("b.jsonl:1: column 'choices' holds 3 choices where others have 2; give each as many")
    rows += [{**rows[1], "choices": list("abcd")}, *[{**rows[0], "text": text} for text in "uvwxyz"]]
    (line,) = faults(TaskConfig(name="multiple_choice"), source=write(tmp_path / "a.jsonl", *rows))
    places = ", ".join(f"{tmp_path}/a.jsonl:{number}" for number in (2, 3))
    assert line == f"{places}: column 'choices' holds 3, 4 choices where others have 2; give each as many"


def test_choices_are_as_many_where_no_answer_is_known() -> None:
    task = make_task(TaskConfig(name="multiple_choice"), ExamplesConfig())
    rows = [(1, "ab"), (2, "abc"), (3, "ab")]
    examples = [{PLACE: f"a.csv:{number}", "text": "t", "choices": list(choices)} for number, choices in rows]
    with pytest.raises(UsageError, match=r"^a\.csv:2: column 'choices' holds 3 choices where others have 2; give each"):
        task.encode(examples, None, max_length=8)  # type: ignore[arg-type]  # nothing is tokenized
    with pytest.raises(UsageError, match=r"task\.options: choice_columns \['a'\] must name two columns or more"):
        make_task(TaskConfig(name="multiple_choice", options={"choice_columns": ["a"]}), ExamplesConfig())


def test_labels_with_more_digits_than_python_counts_with_are_labels(tmp_path: Path) -> None:
    huge = "9" * 5000
    rows = [{"text": f"text {number}", "label": [huge, "10", "9"][number % 3]} for number in range(30)]
    path = write(tmp_path / "a.jsonl", *rows)
    task = make_task(TaskConfig(), ExamplesConfig(source=path))
    load_examples(task, ExamplesConfig(source=path))
    assert task.names() == ["9", "10", huge]
    config = ExamplesConfig(source=path)
    with pytest.raises(UsageError, match=r"column 'label' holds '9+ …, '10', '9', no whole number below 2"):
        load_examples(make_task(TaskConfig(label_names=["a", "b"]), config), config)


def with_half_a_character(value: Any) -> Iterator[Any]:
    """A value, with each of its texts in turn no text that UTF-8 can hold."""
    if isinstance(value, str):
        yield f"a\ud800{value}"
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from ([*value[:place], bad, *value[place + 1 :]] for bad in with_half_a_character(part))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: bad} for bad in with_half_a_character(part))


@pytest.mark.parametrize("name", tasks)
def test_every_text_is_one_that_utf_8_can_hold(name: str, tmp_path: Path) -> None:
    task = make_task(TaskConfig(name=name, options=OPTIONS.get(name, {})), ExamplesConfig())
    count = 0
    for column, good in GOOD[name].items():
        for bad in with_half_a_character(good):
            for cell in [bad] if isinstance(bad, str) else [bad, json.dumps(bad)]:
                source = write(tmp_path / "a.jsonl", {**GOOD[name], column: cell})
                (line,) = read_examples(source, task=task, data=ExamplesConfig()).faults.lines()
                assert re.search(rf"a\.jsonl:1: column '{column}' holds (half of a surrogate pair|.*no message)", line)
                count += 1
    assert count


def test_numbers_may_be_decimals(tmp_path: Path) -> None:
    table = pa.table({"text": ["x", "y"], "label": pa.array([Decimal("1.5"), Decimal("-2.0")])})
    pq.write_table(table, tmp_path / "a.parquet")
    task = make_task(TaskConfig(name="regression"), ExamplesConfig())
    read = read_examples(str(tmp_path / "a.parquet"), task=task, data=ExamplesConfig())
    assert [example["label"] for example in read.examples] == [1.5, -2.0]


def test_what_has_no_choices_is_refused_without_answers_too(tmp_path: Path) -> None:
    task = make_task(TaskConfig(name="multiple_choice"), ExamplesConfig())
    source = write(tmp_path / "a.jsonl", *[{"text": "t", "choices": choices} for choices in ([], ["a"])])
    read = read_examples(source, task=task, data=ExamplesConfig(), answers=False)
    assert re.search(r"a\.jsonl:2: column 'choices' holds 0, 1 choices; give two or more$", *read.faults.lines())
    for columns in ([1, 2], ["a", ["b"]], "ab"):
        with pytest.raises(
            UsageError, match=r"choice_columns of MultipleChoice is .*, not 'list\[str\]' or 'NoneType'"
        ):
            make_task(TaskConfig(name="multiple_choice", options={"choice_columns": columns}), ExamplesConfig())
    with pytest.raises(UsageError, match=r"choice_columns \['a', 'a'\] must name two columns or more, each once"):
        make_task(TaskConfig(name="multiple_choice", options={"choice_columns": ["a", "a"]}), ExamplesConfig())


def stored(folder: Path, kind: str, rows: list[dict[str, Any]], features: dict[str, Any]) -> str:
    """Rows in a file of a kind that `datasets` writes."""
    table = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    if kind == "arrow":
        table.save_to_disk(folder / "saved")
        return str(folder / "saved")
    table.to_parquet(folder / "rows.parquet")
    return str(folder / "rows.parquet")


NAMES = datasets.ClassLabel(names=["neg", "pos"])
TAG = datasets.List(datasets.ClassLabel(names=["O", "B-x"]))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_labels_have_the_names_that_their_file_gives_them(kind: str, tmp_path: Path) -> None:
    text, lists = datasets.Value("string"), datasets.List(datasets.Value("string"))
    cases = {
        "classification": ({"text": text, "label": NAMES}, [{"text": f"t{n}", "label": n % 2} for n in range(8)]),
        "multi_label": (
            {"text": text, "label": datasets.LargeList(NAMES)},
            [{"text": f"t{n}", "label": [n % 2]} for n in range(8)],
        ),
        "token_classification": (
            {"text": lists, "label": TAG},
            [{"text": ["a", str(n)], "label": [0, n % 2]} for n in range(8)],
        ),
    }
    for name, (features, rows) in cases.items():
        (tmp_path / name).mkdir()
        source = stored(tmp_path / name, kind, rows, features)
        for given in (None, ["O", "B-other"]):
            config = ExamplesConfig(source=source)
            task = make_task(TaskConfig(name=name, label_names=given), config)
            load_examples(task, config)
            assert sorted(task.names()) == sorted(given or (["O", "B-x"] if "token" in name else ["neg", "pos"]))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_label_inside_a_mapping_and_the_place_of_a_choice(kind: str, tmp_path: Path) -> None:
    text = datasets.Value("string")
    features = {"text": text, "choices": datasets.List(text), "of": {"label": NAMES}}
    rows = [{"text": f"t{n}", "choices": ["a", "b"], "of": {"label": n % 2}} for n in range(8)]
    source = stored(tmp_path, kind, rows, features)
    for name, expected in {"classification": {"neg", "pos"}, "multiple_choice": {"0", "1"}}.items():
        task = make_task(TaskConfig(name=name, label_column="of[label]"), ExamplesConfig())
        read = read_examples(source, task=task, data=ExamplesConfig(source=source))
        assert not read.faults.lines()
        assert {task.gold(example) for example in read.examples} == expected


@pytest.mark.parametrize("given", [None, ["n", "p"]])
def test_a_label_that_datasets_stores_as_missing_is_no_class(given: list[str] | None, tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": n % 3 - 1} for n in range(9)]
    source = stored(tmp_path, "parquet", rows, {"text": datasets.Value("string"), "label": NAMES})
    (line,) = faults(TaskConfig(label_names=given), source=source)
    assert "rows.parquet, row 1, " in line
    assert "column 'label' holds -1, which has no name in its file (-1 stands for no label); remove the row" in line
    plain = write(tmp_path / "plain.jsonl", *rows)
    task = make_task(TaskConfig(), ExamplesConfig(source=plain))
    load_examples(task, ExamplesConfig(source=plain))
    assert task.names() == ["-1", "0", "1"]  # of three that somebody names so


def test_a_column_of_fractions_is_one_line(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, None]}).to_parquet(tmp_path / "a.parquet")
    line, missing = faults(TaskConfig(), source=str(tmp_path / "a.parquet"))
    assert "row 3: column 'label' is null" in missing
    assert "a.parquet, row 1, " in line
    assert (
        "column 'label' holds 0.0, 1.0, numbers with a decimal point; a label is text or a whole number: convert"
        in line
    )


def test_metadata_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "label": ["x"]}).replace_schema_metadata({"huggingface": "{}"})
    pq.write_table(table, tmp_path / "a.parquet")
    (line, *_) = faults(TaskConfig(), source=str(tmp_path / "a.parquet"))
    assert "a.parquet: its metadata 'huggingface' do not tell the columns ('info'); write it again" in line
