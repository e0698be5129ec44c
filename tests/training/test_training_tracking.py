"""What a run says: log, lines, bar, trackers, plot."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from samples import Bigram, held_out, own_model, run, settings, text_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnkit.errors import UsageError
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import device_called
from attnkit.training.environment import git_state
from attnkit.training.launch import make_accelerator
from attnkit.training.plot import plot_loss
from attnkit.training.tracking import Tracker, TrackingConfig, read_log, said_of

FIGURES = {"loss": 2.5, "learning_rate": 1e-3, "tokens_per_second": 1234.5, "grad_norm": 0.5, "memory": 2**30}


def test_a_resumed_log_has_each_record_once(tmp_path: Path, accelerator: Accelerator) -> None:
    with Tracker(tmp_path, tracking=TrackingConfig(progress=False), accelerator=accelerator) as tracker:
        tracker.start(step=0, max_steps=9)
        for step in (1, 2, 3):
            tracker.train(step, FIGURES)
        tracker.evaluation(2, {"loss": math.nan})
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"kind": "tra')  # a crash
    with Tracker(tmp_path, tracking=TrackingConfig(progress=False), accelerator=accelerator) as tracker:
        tracker.start(step=2, max_steps=9)
        tracker.train(3, {**FIGURES, "loss": 2.0})
    records = read_log(tmp_path / "log.jsonl")
    assert [(record["kind"], record["step"], record["loss"]) for record in records] == [
        ("train", 1, 2.5),
        ("train", 2, 2.5),
        ("eval", 2, None),
        ("train", 3, 2.0),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl"]


def test_a_line_per_log_step_where_there_is_no_terminal(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = text_rows(8)
    training = settings(tmp_path, max_steps=4, log_steps=2)
    evaluate = held_out(rows, accelerator)
    run(Bigram(), rows, training, accelerator=accelerator, evaluate=evaluate, tracking=TrackingConfig())
    plan, *lines = capsys.readouterr().out.splitlines()
    assert plan.startswith("Bigram, ")
    assert len(lines) == 3
    assert lines[0].startswith("step 2/4  loss 4.")
    assert all(word in lines[0] for word in ("lr 5.00e-04", "|g| ", "tokens/s", "GiB", "ETA 0:00"))
    assert lines[2].startswith("step 4/4  held-out loss 4.")


def test_a_bar_where_there_is_a_terminal(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment by which rich is told that it has a terminal; what it draws goes to standard output.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    assert Console().is_terminal
    run(Bigram(), text_rows(8), settings(tmp_path, max_steps=4), accelerator=accelerator, tracking=TrackingConfig())
    for text in ("4/4", "loss 4.", "lr ", "|g| ", "tokens/s", "GiB", "ETA"):
        assert text in shown.getvalue()


def test_a_silent_run_is_silent(tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]) -> None:
    run(Bigram(), text_rows(8), settings(tmp_path, max_steps=2), accelerator=accelerator)
    assert capsys.readouterr().out == ""


# TensorBoard's writer parses its own protocol buffers with calls that protobuf is about to drop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trackers_get_what_the_log_gets(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = make_accelerator(trackers=["tensorboard"], output_dir=tmp_path)
    training = settings(tmp_path, max_steps=2)
    tracking = TrackingConfig(trackers=["tensorboard"], project="mine", progress=False)
    run(Bigram(), text_rows(8), training, accelerator=accelerator, tracking=tracking)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "mine")).Reload()
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses == pytest.approx([record["loss"] for record in read_log(tmp_path / "log.jsonl")])


def test_a_tracker_that_is_unknown_or_not_installed_is_named(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed, should it be
    names = ["tensorbord", "wandb"]
    message = r"'tensorbord': did you mean 'tensorboard'.*wandb.*pip install 'attnkit\[tracking\]'"
    with pytest.raises(UsageError, match=message):
        Tracker(tmp_path, tracking=TrackingConfig(trackers=names), accelerator=accelerator)
    with pytest.raises(UsageError, match=message):
        make_accelerator(trackers=names, output_dir=tmp_path)


def test_the_plot_shows_both_curves_and_the_reference(tmp_path: Path) -> None:
    records = [{"kind": "train", "step": step, "loss": 6 - step / 10} for step in range(1, 20)]
    records += [{"kind": "eval", "step": step, "loss": None if step == 5 else 5.5} for step in (5, 10, 20)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    plot_loss(log, tmp_path / "plain.png")
    plot_loss(log, tmp_path / "loss.png", reference=6.38, reference_label=r"$\foo$", unit="$x^$")
    plain, with_reference = (matplotlib.image.imread(tmp_path / name) for name in ("plain.png", "loss.png"))
    assert plain.shape == with_reference.shape
    assert not np.array_equal(plain, with_reference)


def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*loss\.png"):
        plot_loss(tmp_path / "log.jsonl", tmp_path / "missing" / "loss.png")


def test_a_run_says_on_what_it_was_made(tmp_path: Path, accelerator: Accelerator) -> None:
    run(Bigram(), text_rows(4), settings(tmp_path, max_steps=1), accelerator=accelerator)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert (environment["processes"], environment["device"], environment["mixed_precision"]) == (1, "cpu", "no")
    assert read_log(tmp_path / "log.jsonl")[0]["memory"] > 2**20


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_log_says_what_part_of_the_peak_is_used(
    tmp_path: Path, accelerator: Accelerator, accumulation: int
) -> None:
    """MFU · peak · seconds are the FLOPs of the step, as scaling counts them for rows of that length."""
    rows, changes = [{"input_ids": list(range(1, 33))}] * 8, {"gradient_accumulation_steps": accumulation}
    model, peak = own_model(), 1e12
    run(model, rows, settings(tmp_path, max_steps=3, peak_flops=peak, **changes), accelerator=accelerator)
    work = count_flops(model.config, head="causal_lm", seq_len=32, batch_size=4, predicted=31).total * accumulation
    seconds = 0.0
    for record in read_log(tmp_path / "log.jsonl"):
        assert record["mfu"] * peak * (record["seconds"] - seconds) == pytest.approx(work, rel=1e-6)
        assert record["eta"] >= 0
        seconds = record["seconds"]
    assert "MFU 20.0%" in said_of({**FIGURES, "mfu": 0.2})


def test_no_part_of_a_peak_that_is_not_known_is_said(tmp_path: Path, accelerator: Accelerator) -> None:
    frozen = own_model()
    frozen.get_input_embeddings().requires_grad_(False)
    for name, model, peak in (("cpu", own_model(), None), ("bare", Bigram(), 1e12), ("frozen", frozen, 1e12)):
        run(model, text_rows(4), settings(tmp_path / name, max_steps=1, peak_flops=peak), accelerator=accelerator)
        assert "mfu" not in read_log(tmp_path / name / "log.jsonl")[0]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA RTX A1000", None),
    ],
)
def test_a_gpu_is_found_by_what_its_driver_calls_it(name: str, found: str | None) -> None:
    device = device_called(name)
    assert (device and device.name) == found


def test_the_state_of_the_code_is_that_of_git(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    for words in (
        ["init", "--quiet"],
        ["add", "file"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"],
    ):
        (tmp_path / "file").touch()
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "file").write_text("changed")
    state = git_state(tmp_path)
    assert state is not None
    assert (len(state["commit"]), state["changed"]) == (40, ["file"])
