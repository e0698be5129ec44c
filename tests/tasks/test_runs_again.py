"""What the folder of a fine-tuned run is used for again: to go on, in grids, to measure again, and to predict."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit.cli import main
from attnkit.errors import UsageError
from attnkit.files.text import json_text
from attnkit.tasks import ExamplesConfig, TaskConfig, make_task

TINY = "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --tokenizer.vocab_size 262"
SHORT = "--training.max_steps 2 --training.warmup_steps 0 --tracking.progress false"
REVIEWS = [
    {"text": f"the {noun} is {word} {n}", "label": label}
    for n in range(4)
    for noun in "xyz"
    for word, label in (("good", "pos"), ("bad", "neg"))
]
TALKS = [
    {"turns": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n} it is"}]}
    for n in range(10)
]
LONG = {"turns": [{"role": "user", "content": "and so on " * 30}, {"role": "assistant", "content": "no"}]}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def words(name: str, source: Path, output: Path, *flags: object) -> list[str]:
    architecture = {"instruction": "decoder"}.get(name, "encoder")
    given = ["--data.source", source, "--training.output_dir", output, "--model.architecture", architecture, *flags]
    return ["finetune", "--task.name", name, *TINY.split(), *SHORT.split(), *map(str, given)]


def strict(path: Path) -> Any:
    """The value of a JSON file, which no NaN is in."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{path} has {constant}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on its `rows.jsonl`, of which a quarter is held out, and a finished grid on the same."""
    folder = tmp_path_factory.mktemp("reviews")
    source = write(folder / "rows.jsonl", REVIEWS)
    flags = ("--data.held_out_fraction", 0.25, "--data.test_source", write(folder / "test.jsonl", REVIEWS[:4]))
    assert main(words("classification", source, folder / "run", *flags)) == 0
    assert main(words("classification", source, folder / "grid", *flags, "--grid.seeds", "[1, 2]")) == 0
    return folder


@pytest.fixture
def again(reviews: Path, tmp_path: Path) -> Callable[..., int]:
    """Goes on, in a copy, with the run or the grid."""
    shutil.copytree(reviews, tmp_path, dirs_exist_ok=True)
    for path in (*tmp_path.rglob("config.yaml"), *tmp_path.rglob("data_manifest.json")):  # they have absolute paths
        path.write_text(path.read_text(encoding="utf-8").replace(str(reviews), str(tmp_path)), encoding="utf-8")

    def go_on(name: str, *flags: object) -> int:
        given = ("--data.held_out_fraction", 0.25, "--data.test_source", tmp_path / "test.jsonl", *flags, "--resume")
        grid = ("--grid.seeds", "[1, 2]") if name == "grid" else ()
        return main(words("classification", tmp_path / "rows.jsonl", tmp_path / name, *given, *grid))

    return go_on


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What is in a folder and since when, by path."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


def damage(name: str) -> Callable[[Path], object]:
    """What writes over the beginning of a file of the run."""
    return lambda folder: (folder / name).write_bytes(b"{" * 40 + (folder / name).read_bytes()[40:])


REFUSALS: dict[str, tuple[list[object], Callable[[Path], object] | None]] = {
    "seed": (["--training.seed", 5], None),
    "fewer steps": (["--training.max_steps", 1], None),
    "grouping": (["--training.group_by_length", "true"], None),
    "optimizer": (["--training.optimizer", "adafactor"], None),
    "frozen": (["--training.frozen_layers", 1], None),
    "model": (["--model.hidden_size", 32], None),
    "data": (["--data.seed", 9], None),
    "overwriting": (["--overwrite"], None),
    "impossible": (["--training.learning_rate", -1], None),
    "processes": (["--training.num_processes", 3], None),
    "metric": (["--training.best_metric", "nothing"], None),
    "another metric": (["--training.best_metric", "accuracy", "--training.best_mode", "max"], None),
    "tracker": (["--tracking.trackers", "[nothing]"], None),
    "compiler": (["--training.compile_backend", "nothing"], None),
    "damaged weights": ([], damage("checkpoints/step-000002/model.safetensors")),
    "damaged state": ([], damage("checkpoints/step-000002/state.json")),
    "damaged log": ([], damage("log.jsonl")),
    "damaged config": ([], damage("config.yaml")),
    "damaged manifest": ([], damage("data_manifest.json")),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_to_go_on_leaves_the_folder_as_it_was(
    kind: str, again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, change = REFUSALS[kind]
    if change is not None:
        change(tmp_path / "run")
    before = contents(tmp_path / "run")
    assert "summary.json" in before
    assert again("run", *flags) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(tmp_path / "run") == before


def test_a_run_goes_on_after_a_refusal(again: Callable[..., int], tmp_path: Path) -> None:
    assert again("run", "--training.seed", 5) == 2
    assert main(["finetune", "--config", str(tmp_path / "run" / "config.yaml"), "--resume"]) == 0
    assert again("run", "--training.max_steps", 3) == 0
    assert strict(tmp_path / "run" / "summary.json")["steps"] == 3


OTHERS = {
    "task.metrics": "[accuracy]",
    "model.hidden_size": 32,
    "data.seed": 3,
    "training.weight_decay": 0.5,
}


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("key", [*OTHERS, "rows.jsonl"])
def test_a_grid_reports_no_figures_of_another_run(
    key: str, is_finished: bool, again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_finished:
        for path in (tmp_path / "grid").glob("*/summary.json"):
            path.unlink()
        (tmp_path / "grid" / "grid.json").unlink()
    before = contents(tmp_path / "grid")
    if key == "rows.jsonl":
        write(tmp_path / key, [*REVIEWS, {"text": "one more", "label": "pos"}])
        assert again("grid") == 2
        assert f"training.resume: {tmp_path / key} has changed since" in capsys.readouterr().err
    else:
        assert again("grid", f"--{key}", OTHERS[key]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert "training.resume: " in error
        assert f"{key} was " in error
    assert contents(tmp_path / "grid") == before


def test_a_folder_in_the_place_of_the_report_of_a_grid_is_refused_first(
    again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid" / "grid.json").unlink()
    (tmp_path / "grid" / "grid.json").mkdir()
    before = contents(tmp_path / "grid")
    assert again("grid", "--training.max_steps", 3) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "grid.json is of no grid whose runs are there: choose another folder" in error
    assert contents(tmp_path / "grid") == before


def test_a_grid_does_not_report_the_figures_of_fewer_steps(again: Callable[..., int], tmp_path: Path) -> None:
    """Of a run that went on and has not come to its next checkpoint."""
    for config in (tmp_path / "grid").glob("*/config.yaml"):
        config.write_text(config.read_text(encoding="utf-8").replace("max_steps: 2\n", "max_steps: 3\n"))
    assert again("grid", "--training.max_steps", 3) == 0
    assert [strict(path)["steps"] for path in (tmp_path / "grid").glob("*/summary.json")] == [3, 3]


def test_a_grid_goes_on_to_more_steps_and_no_further(
    again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = list((tmp_path / "grid").glob("*/summary.json"))
    assert len(marks) == 2
    written = [path.stat().st_mtime_ns for path in marks]
    assert again("grid") == 0
    assert [path.stat().st_mtime_ns for path in marks] == written
    assert again("grid", "--training.max_steps", 3) == 0
    assert [strict(path)["steps"] for path in marks] == [3, 3]


def test_other_settings_of_training_are_said_by_a_run_that_goes_on(
    again: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert again("run", "--training.max_steps", 3, "--training.learning_rate", 0.5) == 0
    changed = "training.max_steps was 2 and is 3; training.learning_rate was 0.001 and is 0.5"
    assert f"going on otherwise than the run began: {changed}\n" in capsys.readouterr().out
    assert again("run", "--training.max_steps", 3, "--training.learning_rate", 0.5, "--training.log_steps", 1) == 0
    assert "otherwise" not in capsys.readouterr().out


def test_another_number_of_processes_is_said_by_a_run_that_goes_on(
    again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / "environment.json"
    path.write_text(json.dumps(strict(path) | {"processes": 2}), encoding="utf-8")
    assert again("run") == 0
    said = "going on otherwise than the run began: the number of processes was 2 and is 1\n"
    assert said in capsys.readouterr().out
    assert again("run") == 0
    assert "otherwise" not in capsys.readouterr().out
    path.write_text("{", encoding="utf-8")
    assert again("run") == 0


def test_predictions_are_of_a_source_that_is_given(
    again: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(tmp_path / "run")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "data.source: is not given: name the examples to predict for, --data.source FILE" in error
    assert not (tmp_path / "run" / "predictions" / "new.jsonl").exists()


def test_what_is_measured_of_a_runs_own_file_is_said(
    again: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(tmp_path / "run"), "--data.source", str(tmp_path / "rows.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "measured      what the run held out of its own examples, as it was trained on the others" in said
    assert "all " not in said


def test_a_kept_column_of_the_run_need_not_be_kept(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "id": number} for number, row in enumerate(REVIEWS)]
    kept = ("--data.kept_columns", "[id]")
    assert main(words("classification", write(tmp_path / "rows.jsonl", rows), tmp_path / "run", *kept)) == 0
    predict = ["predict", str(tmp_path / "run"), "--data.source", str(reviews / "test.jsonl")]
    assert main(predict) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "no column 'id'" in error
    assert error.endswith("data.kept_columns is that of the run: --data.kept_columns '[]' leaves it out")
    assert main([*predict, "--data.kept_columns", "[]"]) == 0


def test_what_marks_a_run_as_finished_is_written_last(
    reviews: Path, again: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = reviews / "run"
    assert max(it.stat().st_mtime_ns for it in run.rglob("*")) == (run / "summary.json").stat().st_mtime_ns
    (tmp_path / "run" / "predictions" / "held_out.jsonl").unlink()
    (tmp_path / "run" / "predictions" / "held_out.jsonl").mkdir()  # so that the rest is not written
    assert again("run", "--training.max_steps", 3) == 2
    assert "cannot write" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--data.held_out_fraction", 0.5),
            "data.held_out_fraction: 0.5 would split the run's own text in another way",
        ),
        (("--data.seed", 9), "data.seed: 9 would split the run's own text in another way than 0"),
        ((), "data.source: ROWS has changed since RUN was begun: put the old text back, or give another data.source"),
    ],
)
def test_what_was_trained_on_is_not_evaluated_as_held_out(
    flags: tuple, message: str, again: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not flags:
        write(tmp_path / "rows.jsonl", REVIEWS[::-1])
    assert main(["evaluate", str(tmp_path / "run"), *map(str, flags)]) == 2
    said = capsys.readouterr().err
    assert message.replace("ROWS", str(tmp_path / "rows.jsonl")).replace("RUN", str(tmp_path / "run")) in said


def test_a_run_with_a_file_held_out_is_not_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = ("--data.held_out_source", write(tmp_path / "held_out.jsonl", REVIEWS[:4]))
    assert main(words("classification", write(tmp_path / "rows.jsonl", REVIEWS[4:]), tmp_path / "run", *held_out)) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--data.held_out_source", "null"]) == 2
    assert "data.held_out_source: null would hold out examples that the run was trained on" in capsys.readouterr().err


def test_given_examples_that_were_trained_on_are_said(
    again: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (tmp_path / "run" / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = {json.loads(line)["text"] for line in lines}
    trained_on = [row for row in REVIEWS if row["text"] not in held_out]
    copy = write(tmp_path / "copy.jsonl", [*trained_on[:3], {"text": "another", "label": "pos"}])
    assert main(["evaluate", str(tmp_path / "run"), "--data.source", str(copy)]) == 0
    assert "3 of 4 given examples are trained on too" in capsys.readouterr().out
    (tmp_path / "rows.jsonl").unlink()
    assert main(["evaluate", str(tmp_path / "run"), "--data.source", str(copy)]) == 0
    assert "whether some of these were trained on is not known (" in capsys.readouterr().out


def test_predictions_are_not_written_over(again: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict = ["predict", str(tmp_path / "run"), "--data.source", str(tmp_path / "test.jsonl")]
    assert main(predict) == 0
    new = tmp_path / "run" / "predictions" / "new.jsonl"
    assert main(predict) == 2
    assert f"output: {new} is there already: choose another file by --output" in capsys.readouterr().err
    assert main([*predict, "--output", str(new / "more" / "said.jsonl")]) == 2
    assert f"output: {new} is a file, so that" in capsys.readouterr().err


@pytest.mark.parametrize(("split", "setting"), [("held_out", "data.held_out_source"), ("test", "data.test_source")])
def test_a_split_of_which_nothing_is_left_is_found_before_anything_is_written(
    split: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"held_out": TALKS[:2], "test": TALKS[2:4]} | {split: [LONG, LONG]}
    flags = [word for name, rows in files.items() for word in (f"--data.{name}_source", tmp_path / f"{name}.jsonl")]
    for name, rows in files.items():
        write(tmp_path / f"{name}.jsonl", rows)
    flags += ["--task.options.messages_column", "turns", "--data.sequence_length", 40]
    assert main(words("instruction", write(tmp_path / "rows.jsonl", TALKS[4:]), tmp_path / "run", *flags)) == 2
    said = f"{setting}: nothing that is to be predicted is left of its 2 rows in data.sequence_length 40: raise it"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_rows_that_count_for_nothing_leave_intervals_and_conversations_are_answered_in_any_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data.held_out_source", write(tmp_path / "held_out.jsonl", [LONG] * 5 + TALKS[:1])]
    flags += ["--task.options.messages_column", "turns", "--data.sequence_length", 40]
    assert main(words("instruction", write(tmp_path / "rows.jsonl", TALKS[1:]), tmp_path / "run", *flags)) == 0
    summary = strict(tmp_path / "run" / "summary.json")
    assert all(
        low <= summary["held_out"][name] <= high for name, (low, high) in summary["intervals"]["held_out"].items()
    )
    assert "5 of 6 rows have nothing left to predict, and no part in the loss" in summary["notes"]["held_out"]

    open_ended = [{"turns": row["turns"][:1]} for row in TALKS[:3]]
    new = write(tmp_path / "new.jsonl", [TALKS[0], open_ended[1], TALKS[2], open_ended[0]])
    assert main(["predict", str(tmp_path / "run"), "--data.source", str(new)]) == 0
    lines = (tmp_path / "run" / "predictions" / "new.jsonl").read_text(encoding="utf-8").splitlines()
    finished, _, _, same = [json.loads(line) for line in lines]
    assert all("prediction" in json.loads(line) for line in lines)
    assert finished["turns"] == TALKS[0]["turns"]
    assert (finished["prediction"], finished["probability"]) == (same["prediction"], same["probability"])


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("sequence_to_sequence", "max_target_tokens", 0, "0 must be 1 or more"),
        ("instruction", "max_new_tokens", 0, "0 must be 1 or more"),
        *((name, "num_beams", 100_000, "100000 must be from 1 to") for name in ("sequence_to_sequence", "instruction")),
        *(
            (name, "length_penalty", 1e3, "1000.0 must be from -10 to 10")
            for name in ("sequence_to_sequence", "instruction")
        ),
        ("question_answering", "max_answer_tokens", 0, "0 must be 1 or more"),
        ("question_answering", "num_best", 0, "0 must be 1 or more"),
        ("question_answering", "stride", -1, "-1 must be 0 or more"),
    ],
)
def test_an_option_that_cannot_be_is_named_alone(name: str, option: str, value: float, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make_task(TaskConfig(name=name, options={option: value}), ExamplesConfig())
    assert str(error.value).startswith(f"task.options.{option}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["nowhere/at.jsonl", "org/name", "*.nothing"])
@pytest.mark.parametrize("setting", ["data.source", "data.held_out_source", "data.test_source"])
def test_a_source_that_cannot_be_read_names_its_setting(
    setting: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    source = write(tmp_path / "rows.jsonl", REVIEWS)
    assert main(words("classification", source, tmp_path / "run", f"--{setting}", missing)) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"error: {setting}: " in error
    assert missing in error
    assert (f"or do without by --{setting} null" in error) == (setting != "data.source")


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    value = {"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf, "d": "ü"}, "e": None}
    assert json_text(value) == '{"a": [null, 1.5, [null]], "b": {"c": null, "d": "ü"}, "e": null}'
