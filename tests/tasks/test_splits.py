"""Laws of the split into train and held-out rows, and of what is left out and held out of files."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of_tasks import OPTIONS, numbered, write

from attnkit.tasks import ExamplesConfig, TaskConfig, load_examples, make_task, tasks
from attnkit.tasks.splits import stratified_split

ROWS = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("XYZ")), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 5))
def test_each_row_is_on_one_side_and_no_text_on_both(rows: list[tuple[str, str]], fraction: float, seed: int) -> None:
    texts, labels = zip(*rows, strict=True)
    train, held_out = stratified_split(texts, labels, fraction=fraction, seed=seed)
    assert sorted(train + held_out) == list(range(len(rows)))
    assert not {texts[row] for row in train} & {texts[row] for row in held_out}
    assert {labels[row] for row in held_out} <= {labels[row] for row in train}


def test_each_label_has_the_same_part_held_out() -> None:
    labels = ["many"] * 100 + ["some"] * 20 + ["two"] * 2 + ["one"]
    texts = [str(number) for number in range(len(labels))]
    _, held_out = stratified_split(texts, labels, fraction=0.1, seed=0)
    assert Counter(labels[row] for row in held_out) == {"many": 10, "some": 2, "two": 1}


def test_the_seed_decides() -> None:
    texts, labels = [str(number) for number in range(100)], ["a", "b"] * 50
    splits = [stratified_split(texts, labels, fraction=0.2, seed=seed) for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_a_text_with_two_labels_trains() -> None:
    texts, labels = ["same", "same", "x", "y", "z", "w"], ["a", "b", "a", "a", "b", "b"]
    for seed in range(10):
        assert {0, 1} <= set(stratified_split(texts, labels, fraction=0.5, seed=seed)[0])


def test_samples_cut_examples_and_not_classes(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": str(number % 5)} for number in range(50)]
    data = {f"{name}source": write(tmp_path / f"{name}rows.jsonl", *rows) for name in ("", "held_out_", "test_")}
    config = ExamplesConfig(**data, max_train_samples=3, max_held_out_samples=7, max_test_samples=4)
    task = make_task(TaskConfig(), config)
    examples = load_examples(task, config)
    assert {split: len(members) for split, members in examples.items()} == {"train": 3, "held_out": 7, "test": 4}
    assert len(task.names()) == 5
    assert examples == load_examples(task, config)
    numbers = [int(example["text"].split()[1]) for example in examples["held_out"]]
    assert numbers == sorted(numbers)
    assert ExamplesConfig(max_train_samples=0, max_test_samples=0, sequence_length=0).problems() == [
        "data.sequence_length: 0 must be from 2 to 16777216",
        "data.max_train_samples: 0 must be 1 or more",
        "data.max_test_samples: 0 must be 1 or more",
    ]


def test_a_small_part_held_out_is_explained(tmp_path: Path) -> None:
    rows = [{"text": "same", "label": "ab"[number % 2]} for number in range(95)]
    rows += [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(5)]
    config, notes = ExamplesConfig(source=write(tmp_path / "a.jsonl", *rows), held_out_fraction=0.2), []
    assert len(load_examples(make_task(TaskConfig(), config), config, notes=notes)["held_out"]) == 2
    assert notes == [
        "2.0% are held out: 94 of 100 repeat a text and stay on its side, and 95 are of texts with several labels, "
        "which are trained on; that is far below data.held_out_fraction 0.2: remove the repeated or give "
        "data.held_out_source"
    ]


def test_questions_about_one_text_stay_together(tmp_path: Path) -> None:
    rows = [
        {"text": f"text {number // 4} one", "question": f"question {number}?", "label": "one"} for number in range(40)
    ]
    config = ExamplesConfig(source=write(tmp_path / "a.jsonl", *rows), held_out_fraction=0.3)
    examples = load_examples(make_task(TaskConfig(name="question_answering"), config), config)
    train, held_out = ({example["text"] for example in examples[split]} for split in ("train", "held_out"))
    assert len(held_out) == 3
    assert not train & held_out


@pytest.mark.parametrize("name", tasks)
def test_what_is_trained_on_and_judged_too_is_said(name: str, tmp_path: Path) -> None:
    ranges = {"source": range(6), "held_out_source": range(4, 9), "test_source": range(5, 6)}
    paths = {
        key: write(tmp_path / f"{key}.jsonl", *[numbered(name, number) for number in numbers])
        for key, numbers in ranges.items()
    }
    for names, expected in {
        ("source", "held_out_source", "test_source"): ["2 of 5 held-out", "1 of 1 test"],
        ("source",): [],
    }.items():
        config, notes = ExamplesConfig(**{key: paths[key] for key in names}), []
        task = make_task(TaskConfig(name=name, options=OPTIONS.get(name, {})), config)
        load_examples(task, config, notes=notes)
        assert notes == [
            f"{count} examples are trained on too, which makes their figures too good: remove them from one side"
            for count in expected
        ]
