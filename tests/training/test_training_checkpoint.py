"""Checkpoints: whole or absent, exact to the bit, kept and deleted as promised; and the folder they live in."""

import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from samples import Bigram, causal_model, fresh_accelerator, held_out, run, settings, streamed, text_rows
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, set_seed

from attnkit.errors import UsageError
from attnkit.files.disk import seal
from attnkit.training.checkpoint import complete_steps, newest_complete
from attnkit.training.loop import TrainResult
from attnkit.training.run_folder import check_output_folder, holds_run, open_output_folder
from attnkit.training.tracking import read_log

ROWS = text_rows(18)  # batches of four: epochs end within batches, and step 9 is the end of one


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    return load_file(result.last_checkpoint / "model.safetensors")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second", "memory", "eta")}


def run_to_the_end(
    folder: Path, accelerator: Accelerator, *, model: nn.Module | None = None, **changes: Any
) -> TrainResult:
    """Twenty steps with dropout, accumulation, evaluation and a log line every third step."""
    changes = {"gradient_accumulation_steps": 2, "save_steps": 7, "eval_steps": 5, "log_steps": 3, **changes}
    training = settings(folder, per_device_batch_size=2, **changes)
    evaluate = held_out(text_rows(5), accelerator)
    model = model or causal_model(dropout=0.3)
    return run(model, ROWS, training, accelerator=accelerator, evaluate=evaluate)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return run_to_the_end(tmp_path_factory.mktemp("uninterrupted"), fresh_accelerator())


def assert_same_run(result: TrainResult, expected: TrainResult) -> None:
    """Weights to the bit, and every record of the log but for the times."""
    actual_weights, expected_weights = weights(result), weights(expected)
    assert actual_weights.keys() == expected_weights.keys()
    assert all(torch.equal(actual_weights[name], expected_weights[name]) for name in expected_weights)
    logs = [read_log(r.last_checkpoint.parents[1] / "log.jsonl") for r in (result, expected)]
    assert [without_times(record) for record in logs[0]] == [without_times(record) for record in logs[1]]
    assert (result.tokens_seen, result.metrics, result.best_step) == (
        expected.tokens_seen,
        expected.metrics,
        expected.best_step,
    )


@pytest.mark.parametrize("stop_at", [1, 9, 10])
def test_resume_after_a_signal_is_exact(
    tmp_path: Path, accelerator: Accelerator, uninterrupted: TrainResult, stop_at: int
) -> None:
    num_forwards = 0

    def interrupt(model: nn.Module, _: Any) -> None:
        nonlocal num_forwards
        num_forwards += model.training
        if num_forwards == 2 * stop_at:  # in the middle of a step, which is two micro batches
            os.kill(os.getpid(), signal.SIGINT)

    model = causal_model(dropout=0.3)
    model.register_forward_pre_hook(interrupt)
    first = run_to_the_end(tmp_path, accelerator, model=model)
    assert (first.interrupted, first.steps) == (True, stop_at)
    set_seed(99)  # nothing may depend on the generators of the new process
    second = run_to_the_end(tmp_path, accelerator, resume=True)
    assert second.resumed_from == first.last_checkpoint
    assert_same_run(second, uninterrupted)


def stream(output_dir: Path, accelerator: Accelerator, *, stop_at: int = 0, **changes: Any) -> TrainResult:
    """Twenty steps over a stream of several sources, of which each epoch has several portions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnkit.data.rows.PORTION", 60)  # characters
        rows, model, objective = streamed(Path(tempfile.mkdtemp(dir=output_dir.parent)) / "text")

        def interrupt(*_: Any) -> None:
            if rows.position == 4 * stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        model.register_forward_pre_hook(interrupt)
        training = settings(output_dir, save_steps=3, **changes)
        return run(model, rows, training, accelerator=accelerator, collate=objective)


@pytest.fixture(scope="module")
def whole_stream(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return stream(tmp_path_factory.mktemp("stream") / "whole", fresh_accelerator())


def test_a_stream_goes_on_from_its_buffers(tmp_path: Path, accelerator: Accelerator, whole_stream: TrainResult) -> None:
    stopped = stream(tmp_path / "cut", accelerator, stop_at=8)
    assert (stopped.interrupted, stopped.steps) == (True, 8)
    again, _, _ = streamed(tmp_path / "again")
    again.go_to(stopped.last_checkpoint / "stream.arrow")
    assert 7 * 4 <= again.position <= 8 * 4  # rows of a step: no more than those has to be passed over
    resumed = stream(tmp_path / "cut", accelerator, resume=True)
    assert resumed.resumed_from == stopped.last_checkpoint
    assert_same_run(resumed, whole_stream)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The folder of the runs of `interrupted_run.py`, and how each ended."""
    folder = tmp_path_factory.mktemp("ended")
    script = Path(__file__).with_name("interrupted_run.py")
    process = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return folder, json.loads(process.stdout)


@pytest.mark.parametrize(("moment", "newest"), [("in-step-9", 7), ("in-save-14", 10)])
def test_resume_after_sigkill_is_exact(
    ended: tuple[Path, dict[str, int]],
    accelerator: Accelerator,
    uninterrupted: TrainResult,
    moment: str,
    newest: int,
) -> None:
    folder, endings = ended
    assert endings[moment] == -signal.SIGKILL
    checkpoints = folder / moment / "checkpoints"
    assert bool(list(checkpoints.glob(".unfinished-*"))) == (moment == "in-save-14")
    result = run_to_the_end(folder / moment, accelerator, resume=True)
    assert result.resumed_from == checkpoints / f"step-{newest:06d}"
    assert_same_run(result, uninterrupted)
    assert not list(checkpoints.glob(".unfinished-*"))


def test_a_stream_that_was_killed_goes_on_from_its_buffers(
    ended: tuple[Path, dict[str, int]], accelerator: Accelerator, whole_stream: TrainResult
) -> None:
    folder, endings = ended
    assert endings["in-stream"] == -signal.SIGKILL
    resumed = stream(folder / "in-stream", accelerator, resume=True)
    assert resumed.resumed_from == folder / "in-stream" / "checkpoints" / "step-000006"
    assert_same_run(resumed, whole_stream)


def test_resume_is_exact_whenever_a_run_was_killed(
    ended: tuple[Path, dict[str, int]], accelerator: Accelerator, uninterrupted: TrainResult
) -> None:
    folder, endings = ended
    assert endings["again"] > 3
    result = run_to_the_end(folder / "again", accelerator, resume=True)
    assert result.resumed_from == result.last_checkpoint
    assert_same_run(result, uninterrupted)
    left = {path.name for path in (folder / "again" / "checkpoints").iterdir()}
    assert left == {
        "best",
        "last",
        f"step-{result.best_step:06d}",
        "step-000020",
    }  # nothing half written or half deleted


def test_what_a_crash_left_is_swept_away(tmp_path: Path, accelerator: Accelerator) -> None:
    run(Bigram(), ROWS, settings(tmp_path, max_steps=3, save_steps=1, keep_last=3), accelerator=accelerator)
    folder = tmp_path / "checkpoints"
    (folder / "step-000001" / "COMPLETE").unlink()  # as deleting begins
    (folder / ".unfinished-step-000004").mkdir()
    (folder / "step-mine").mkdir()
    run(Bigram(), ROWS, settings(tmp_path, max_steps=4, resume=True, keep_last=3), accelerator=accelerator)
    names = {path.name for path in folder.iterdir()}
    assert names == {"last", "step-mine", "step-000002", "step-000003", "step-000004"}


def test_milestones_are_kept(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, max_steps=7, save_steps=1, keep_last=1, keep_every=3)
    run(Bigram(), ROWS, training, accelerator=accelerator)
    assert complete_steps(tmp_path / "checkpoints") == [3, 6, 7]


def test_a_run_decays_from_a_checkpoint_of_another(tmp_path: Path, accelerator: Accelerator) -> None:
    shape = {"schedule": "warmup_stable_decay", "learning_rate": 1e-2, "log_steps": 1}
    stable = settings(tmp_path / "stable", **shape, max_steps=30, decay_steps=1, save_steps=5, keep_last=9)
    whole = run(causal_model(), ROWS, stable, accelerator=accelerator)
    start = tmp_path / "stable" / "checkpoints" / "step-000010"
    before = files(tmp_path / "stable")
    decay = settings(tmp_path / "decay", **shape, max_steps=14, decay_steps=4, from_checkpoint=str(start))
    result = run(causal_model(), ROWS, decay, accelerator=accelerator)
    assert (result.resumed_from, result.steps) == (start, 14)
    rates = [record["learning_rate"] for record in read_log(tmp_path / "decay" / "log.jsonl")]
    assert rates == pytest.approx([1e-2 * (1 - (done / 4) ** 0.5) for done in range(4)])
    assert result.losses[0] == whole.losses[10]  # the same batch, and the same weights
    assert files(tmp_path / "stable") == before
    nothing = settings(tmp_path / "new", from_checkpoint=str(tmp_path))
    with pytest.raises(UsageError, match=r"training\.from_checkpoint: .* is no complete checkpoint"):
        run(causal_model(), ROWS, nothing, accelerator=accelerator)
    assert not (tmp_path / "new").exists()


def test_a_run_from_a_checkpoint_begins_its_patience_anew(tmp_path: Path, accelerator: Accelerator) -> None:
    shape = {"max_steps": 9, "eval_steps": 1, "patience": 2}
    values = iter([1.0, 2.0, 2.0, 5.0, 6.0, 6.0])
    evaluate = lambda model: {"loss": next(values)}  # noqa: E731
    first = settings(tmp_path / "first", **shape)
    ended = run(Bigram(), ROWS, first, accelerator=accelerator, evaluate=evaluate)
    assert (ended.steps, ended.stopped_early) == (3, True)
    second = settings(tmp_path / "second", **shape, from_checkpoint=str(ended.last_checkpoint))
    for resume in (False, True):  # which goes on with it as it is
        training = replace(second, resume=resume)
        result = run(Bigram(), ROWS, training, accelerator=accelerator, evaluate=evaluate)
        assert (result.steps, result.stopped_early, result.best_step, result.best_value) == (6, True, 4, 5.0)


def test_a_run_from_a_checkpoint_has_a_step_to_make(tmp_path: Path, accelerator: Accelerator) -> None:
    start = run(Bigram(), ROWS, settings(tmp_path / "first", max_steps=2), accelerator=accelerator).last_checkpoint
    none = settings(tmp_path / "new", max_steps=2, from_checkpoint=str(start))
    with pytest.raises(UsageError, match=r"training\.max_steps: 2 is no more than the step of .*step-000002"):
        run(Bigram(), ROWS, none, accelerator=accelerator)
    assert not (tmp_path / "new").exists()


def test_the_average_goes_on_to_the_bit(tmp_path: Path, accelerator: Accelerator) -> None:
    changes = {"ema_decay": 0.9, "schedule": "constant", "max_steps": 6}
    run(Bigram(), ROWS, settings(tmp_path / "whole", **changes), accelerator=accelerator)
    run(Bigram(), ROWS, settings(tmp_path / "parts", **{**changes, "max_steps": 3}), accelerator=accelerator)
    run(Bigram(), ROWS, settings(tmp_path / "parts", **changes, resume=True), accelerator=accelerator)
    averages = [tmp_path / name / "checkpoints" / "step-000006" / "average.safetensors" for name in ("whole", "parts")]
    assert averages[0].read_bytes() == averages[1].read_bytes()


def test_a_checkpoint_carries_the_tokenizer(tmp_path: Path, accelerator: Accelerator) -> None:
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(64)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    training = settings(tmp_path, max_steps=1)
    result = run(causal_model(), ROWS, training, accelerator=accelerator, tokenizer=tokenizer)
    loaded = AutoTokenizer.from_pretrained(result.last_checkpoint)
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_a_checkpoint_runs_no_code(tmp_path: Path, accelerator: Accelerator) -> None:
    path = run(Bigram(), ROWS, settings(tmp_path, max_steps=1), accelerator=accelerator).last_checkpoint
    torch.save({"optimizer": Touch(tmp_path / "touched"), "scaler": None}, path / "optimizer.pt")
    seal(path)
    with pytest.raises(UsageError, match=r"cannot go on from .*step-000001: it is damaged \(UnpicklingError"):
        run(Bigram(), ROWS, settings(tmp_path, max_steps=2, resume=True), accelerator=accelerator)
    assert not (tmp_path / "touched").exists()


class Touch:
    """What would make a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_sigterm_ends_a_run_with_exit_code_0(ended: tuple[Path, dict[str, int]]) -> None:
    folder, endings = ended
    assert endings["told-to-stop"] == 0
    assert newest_complete(folder / "told-to-stop" / "checkpoints") is not None


def test_a_checkpoint_is_a_model_that_transformers_loads(uninterrupted: TrainResult) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(uninterrupted.last_checkpoint, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in weights(uninterrupted)  # tied, so saved once


def test_an_incomplete_checkpoint_does_not_count(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    training = settings(tmp_path, max_steps=4, save_steps=2)
    run(Bigram(), ROWS, training, accelerator=accelerator)
    folder = tmp_path / "checkpoints"
    (folder / "step-000004" / "COMPLETE").unlink()
    (folder / "step-12").mkdir()
    assert complete_steps(folder) == [2]
    training.resume = True
    result = run(Bigram(), ROWS, training, accelerator=accelerator)
    assert f"going on from {folder / 'step-000002'}" in capsys.readouterr().out
    assert result.steps == 4
    assert complete_steps(folder) == [2, 4]


def test_resume_without_a_checkpoint_starts_and_says_so(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(Bigram(), ROWS, settings(tmp_path, max_steps=1, resume=True), accelerator=accelerator)
    assert "no complete checkpoint in" in capsys.readouterr().out
    assert (result.steps, result.resumed_from) == (1, None)


def test_a_finished_run_resumes_to_its_result(accelerator: Accelerator, tmp_path: Path) -> None:
    first = run_to_the_end(tmp_path, accelerator)
    before = files(first.last_checkpoint)
    again = run_to_the_end(tmp_path, accelerator, resume=True)
    assert files(again.last_checkpoint) == before
    assert_same_run(again, first)


def test_pruning_spares_the_best_and_the_last(tmp_path: Path, accelerator: Accelerator) -> None:
    values = iter([2.0, 1.0, 3.0, 4.0, 5.0, 6.0])
    training = settings(tmp_path, max_steps=6, save_steps=1, eval_steps=1, keep_last=1)
    result = run(Bigram(), ROWS, training, accelerator=accelerator, evaluate=lambda model: {"loss": next(values)})
    folder = tmp_path / "checkpoints"
    assert complete_steps(folder) == [2, 6]
    assert (result.best_checkpoint, result.last_checkpoint) == (folder / "step-000002", folder / "step-000006")
    assert (folder / "best").resolve() == result.best_checkpoint.resolve()
    assert (folder / "last").resolve() == result.last_checkpoint.resolve()


@pytest.mark.parametrize(
    ("changes", "rows", "make_model", "message"),
    [
        ({"seed": 1}, ROWS, Bigram, r"training\.seed was 0 and is 1"),
        ({}, ROWS[:5], Bigram, "the number of training rows was 18 and is 5"),
        ({"max_steps": 1}, ROWS, Bigram, r"training\.max_steps: 1 is less than the step of .*step-000002"),
        ({}, ROWS, causal_model, "holds another model: embed.weight, head.bias"),
        ({}, ROWS, lambda: Bigram().train_head(), "it trained other parameters"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path,
    accelerator: Accelerator,
    changes: dict[str, Any],
    rows: list[dict[str, Any]],
    make_model: Callable[[], nn.Module],
    message: str,
) -> None:
    run(Bigram(), ROWS, settings(tmp_path, max_steps=2), accelerator=accelerator)
    before = files(tmp_path)
    training = settings(tmp_path, **{"max_steps": 4, "resume": True, **changes})
    with pytest.raises(UsageError, match=message):
        run(make_model(), rows, training, accelerator=accelerator, begin=(tmp_path / "begun").touch)
    assert files(tmp_path) == before


def test_settings_of_the_optimizer_may_change_on_resume(tmp_path: Path, accelerator: Accelerator) -> None:
    run(Bigram(), ROWS, settings(tmp_path, max_steps=2), accelerator=accelerator)
    changed = settings(tmp_path, max_steps=3, resume=True, weight_decay=0.7)
    path = run(Bigram(), ROWS, changed, accelerator=accelerator).last_checkpoint
    groups = torch.load(path / "optimizer.pt", weights_only=True)["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.7, 0.7, 0.0]


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """A function that lets this process write files of at most so many bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The weights of the model take 5 kB, its optimizer twice that: one limit stops the first file, one the second.
@pytest.mark.parametrize("size", [2_000, 8_000])
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, accelerator: Accelerator, small_disk: Callable[[int], None], size: int
) -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        small_disk(size)
        return {"loss": 1.0}

    training = settings(tmp_path, max_steps=4, save_steps=2, eval_steps=3, log_steps=100)
    with pytest.raises(UsageError, match=r"cannot write .*step-000003: .*training\.output_dir"):
        run(Bigram(), ROWS, training, accelerator=accelerator, evaluate=evaluate)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["last", "step-000002"]
    assert complete_steps(folder) == [2]


def stopped_in_step_3(then: Callable[[], None] = lambda: None) -> Bigram:
    """A model that a signal stops, where each step is one pass."""
    model, passes = Bigram(), itertools.count(1)

    def stop(model: nn.Module, _: Any) -> None:
        if model.training and next(passes) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            then()

    model.register_forward_pre_hook(stop)
    return model


def test_a_run_that_is_stopped_keeps_what_was_good(tmp_path: Path, accelerator: Accelerator) -> None:
    """Its newest checkpoint may be of weights that come to nothing; the next step tells."""
    training = settings(tmp_path, max_steps=9, save_steps=2, keep_last=1)
    result = run(stopped_in_step_3(), ROWS, training, accelerator=accelerator)
    assert (result.interrupted, result.steps) == (True, 3)
    assert complete_steps(tmp_path / "checkpoints") == [2, 3]
    run(Bigram(), ROWS, replace(training, resume=True), accelerator=accelerator)
    assert complete_steps(tmp_path / "checkpoints") == [9]


def test_a_run_whose_loss_is_no_number_at_its_end_keeps_what_was_good(tmp_path: Path, accelerator: Accelerator) -> None:
    values = iter([3.0, 4.0, math.nan])
    training = settings(tmp_path, max_steps=9, eval_steps=1, save_steps=1, keep_last=1, patience=2)
    evaluate = lambda model: {"loss": next(values)}  # noqa: E731
    result = run(Bigram(), ROWS, training, accelerator=accelerator, evaluate=evaluate)
    assert (result.steps, result.best_step) == (3, 1)
    assert complete_steps(tmp_path / "checkpoints") == [1, 2, 3]


@pytest.mark.parametrize("size", [2_000, 8_000])
def test_a_full_disk_leaves_the_checkpoints_of_a_run_that_is_stopped(
    tmp_path: Path, accelerator: Accelerator, small_disk: Callable[[int], None], size: int
) -> None:
    model = stopped_in_step_3(lambda: small_disk(size))
    values = iter([1.0, 2.0])
    training = settings(tmp_path, max_steps=9, eval_steps=1, save_steps=2, keep_last=1, log_steps=100)
    with pytest.raises(UsageError, match=r"cannot write .*step-000003"):
        run(model, ROWS, training, accelerator=accelerator, evaluate=lambda model: {"loss": next(values, 3.0)})
    assert complete_steps(tmp_path / "checkpoints") == [1, 2]


def test_state_is_plain_json(uninterrupted: TrainResult) -> None:
    state = json.loads((uninterrupted.last_checkpoint / "state.json").read_text())
    assert state["progress"]["step"] == 20
    assert state["progress"]["rows_seen"] == 80
    assert state["facts"] == {"seed": 0, "num_rows": 18, "grouped_rows": None}


def test_a_folder_with_a_run_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, max_steps=1)
    run(Bigram(), ROWS, training, accelerator=accelerator)
    before = files(tmp_path)
    with pytest.raises(UsageError, match=r"already holds a run; go on with it by --resume, delete it by --overwrite"):
        run(Bigram(), ROWS, training, accelerator=accelerator)
    assert files(tmp_path) == before


def test_overwriting_deletes_the_run_and_nothing_else(tmp_path: Path, accelerator: Accelerator) -> None:
    run(Bigram(), ROWS, settings(tmp_path, max_steps=3, save_steps=1), accelerator=accelerator)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model").mkdir()
    run(Bigram(), ROWS, settings(tmp_path, max_steps=1, overwrite=True), accelerator=accelerator)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "environment.json",
        "log.jsonl",
        "notes.txt",
    ]
    assert complete_steps(tmp_path / "checkpoints") == [1]


def test_overwriting_spares_a_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()  # somebody's, as there is neither a log nor a checkpoint
    assert not holds_run(tmp_path)
    open_output_folder(tmp_path, overwrite=True)
    assert (tmp_path / "model").exists()


def test_an_impossible_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(UsageError, match="file is a file; choose a folder"):
        check_output_folder(file / "below", resume=False, overwrite=False)
    with pytest.raises(UsageError, match="exclude each other"):
        check_output_folder(tmp_path, resume=True, overwrite=True)
    check_output_folder(tmp_path / "new" / "deep", resume=False, overwrite=False)
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match=r"cannot write .*below"):
        open_output_folder(file / "below", overwrite=False)


@pytest.fixture
def nobody() -> Iterator[Path]:
    """An open folder of ours, and the rights of somebody else; root may write anywhere."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, mode in (("locked", 0o555), ("hidden", 0o000)):
            (Path(folder) / name).mkdir()
            (Path(folder) / name).chmod(mode)
        if user == 0:
            os.seteuid(65534)
        yield Path(folder)
        os.seteuid(user)


def test_a_folder_without_permission_is_refused(nobody: Path) -> None:
    with pytest.raises(UsageError, match=r"locked is not writable; choose a folder that is"):
        check_output_folder(nobody / "locked" / "run", resume=False, overwrite=False)
    with pytest.raises(UsageError, match=r"cannot write .*hidden.*Permission denied"):
        check_output_folder(nobody / "hidden" / "run", resume=False, overwrite=False)
