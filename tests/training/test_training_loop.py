"""The loop on one process: what is minimised, in which order, what is said, and when it stops."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from samples import (
    Bigram,
    Row,
    causal_model,
    classifier,
    collate_labelled,
    collate_sentences,
    collate_text,
    gradients,
    held_out,
    labelled_rows,
    own_model,
    run,
    sentence_model,
    settings,
    text_rows,
)
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from attnkit.errors import UsageError
from attnkit.training.batches import count_tokens
from attnkit.training.checkpoint import complete_steps, newest_complete
from attnkit.training.evaluation import evaluate_loss, read_rows
from attnkit.training.order import RowOrder
from attnkit.training.tracking import TrackingConfig, read_log

Collate = Callable[[list[Row]], dict[str, torch.Tensor]]


def one_step(
    model: nn.Module, folder: Path, accelerator: Accelerator, *, collate: Collate = collate_text, **changes: Any
) -> Path:
    """Make one step without clipping and return its checkpoint, which holds the gradient."""
    training = settings(folder, max_steps=1, adam_beta1=0.0, max_grad_norm=None, **changes)
    return run(model, text_rows(12), training, accelerator=accelerator, collate=collate).last_checkpoint


@pytest.mark.parametrize(
    ("make_model", "collate", "tolerance"),
    [
        (causal_model, collate_text, 1e-6),
        (own_model, collate_text, 1e-6),
        (lambda: own_model().double(), collate_text, 1e-10),
        (lambda: Bigram().double(), collate_text, 1e-10),
        (lambda: sentence_model().double(), collate_sentences, 1e-10),
    ],
)
def test_gradient_does_not_depend_on_accumulation(
    tmp_path: Path, accelerator: Accelerator, make_model: Callable[[], nn.Module], collate: Collate, tolerance: float
) -> None:
    paths = [
        one_step(
            make_model(),
            tmp_path / str(size),
            accelerator,
            collate=collate,
            per_device_batch_size=size,
            gradient_accumulation_steps=8 // size,
        )
        for size in (8, 2, 1)
    ]
    whole, *split = [gradients(path) for path in paths]
    for parts in split:
        for expected, actual in zip(whole, parts, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)  # gradients here are below 1
    losses = [read_log(path.parents[1] / "log.jsonl")[0]["loss"] for path in paths]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_each_term_of_a_loss_is_the_mean_over_its_own_labels(accelerator: Accelerator) -> None:
    """Σ over tokens / tokens + Σ over sentences / sentences, whatever the batches of an evaluation are."""
    model, rows = sentence_model().double().eval(), text_rows(8)
    with torch.no_grad():
        expected = model(**collate_sentences(rows)).loss.item()
    found = [
        evaluate_loss(model, rows, collate=collate_sentences, batch_size=size, accelerator=accelerator)["loss"]
        for size in (8, 3, 1)
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-12)
    assert found[0] == pytest.approx(expected, rel=1e-6)  # which is made in single precision


def test_gradient_is_that_of_the_mean_over_all_tokens(tmp_path: Path, accelerator: Accelerator) -> None:
    path = one_step(causal_model(), tmp_path, accelerator, per_device_batch_size=3, gradient_accumulation_steps=4)
    model = causal_model()
    model(**collate_text(text_rows(12))).loss.backward()  # twelve rows are one epoch, in whatever order
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    state = torch.load(path / "optimizer.pt", weights_only=True)["optimizer"]
    assert state["state"].keys() == expected.keys()
    for name, moments in state["state"].items():
        torch.testing.assert_close(moments["exp_avg"], expected[name], rtol=0, atol=1e-6)


def test_logged_loss_does_not_depend_on_log_steps(tmp_path: Path, accelerator: Accelerator) -> None:
    often = run(causal_model(), text_rows(12), settings(tmp_path / "1"), accelerator=accelerator)
    seldom = run(causal_model(), text_rows(12), settings(tmp_path / "2", log_steps=10), accelerator=accelerator)
    assert [step for step, _ in seldom.losses] == [10, 20]
    # Weighted by tokens: a log line is the loss per token of all its steps together.
    order = iter(RowOrder(12, seed=0, batch_size=4))
    num_labels = [sum(len(text_rows(12)[index]["input_ids"]) - 1 for index in next(order)[1]) for _ in range(10)]
    losses = [loss for _, loss in often.losses[:10]]
    expected = sum(loss * n for loss, n in zip(losses, num_labels, strict=True)) / sum(num_labels)
    assert seldom.losses[0][1] == pytest.approx(expected, rel=1e-6)


def test_any_model_learns(tmp_path: Path, accelerator: Accelerator) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, pad_token_id=0, **shape))
    rows = text_rows(8)
    training = settings(tmp_path, max_steps=60, learning_rate=1e-2)
    result = run(model, rows, training, accelerator=accelerator, evaluate=held_out(rows, accelerator))
    assert result.losses[0][1] == pytest.approx(math.log(64), abs=0.1)
    assert result.metrics["loss"] is not None
    assert result.metrics["loss"] < 3.0  # it has seen these rows thirty times
    assert model.training
    assert result.tokens_seen == sum(len(row["input_ids"]) for row in rows) * 30


def test_classifier_reports_accuracy_and_keeps_the_best(tmp_path: Path, accelerator: Accelerator) -> None:
    rows = labelled_rows(24)

    def right(rows: list[Row], *, batch: dict[str, torch.Tensor], output: Any, model: nn.Module) -> list[bool]:
        return (output.logits.argmax(-1) == batch["labels"]).tolist()

    def evaluate(model: nn.Module) -> dict[str, float]:
        loss, labels, found = read_rows(
            model, rows, collate=collate_labelled, batch_size=5, accelerator=accelerator, outcomes=right
        )
        return {"loss": loss / labels, "accuracy": sum(found) / len(found)}

    training = settings(
        tmp_path,
        max_steps=80,
        learning_rate=1e-2,
        eval_steps=10,
        save_steps=1000,
        keep_last=1,
        best_metric="accuracy",
        best_mode="max",
    )
    result = run(classifier(), rows, training, accelerator=accelerator, collate=collate_labelled, evaluate=evaluate)
    records = [record for record in read_log(tmp_path / "log.jsonl") if record["kind"] == "eval"]
    accuracies = {record["step"]: record["accuracy"] for record in records}
    assert result.best_value == max(accuracies.values()) > 0.9
    assert result.best_step == min(step for step, value in accuracies.items() if value == result.best_value)
    assert complete_steps(tmp_path / "checkpoints") == sorted({result.best_step, 80})


def test_an_unknown_best_metric_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, eval_steps=1, best_metric="los")
    with pytest.raises(UsageError, match=r"training\.best_metric.*did you mean 'loss'"):
        run(causal_model(), text_rows(4), training, accelerator=accelerator, evaluate=lambda model: {"loss": 1.0})


def test_an_unknown_best_metric_is_found_before_anything_is_written(tmp_path: Path, accelerator: Accelerator) -> None:
    training, names = settings(tmp_path, best_metric="eval_x_loss"), ["loss", "accuracy"]
    with pytest.raises(UsageError, match=r"training\.best_metric: this run has no metric 'eval_x_loss'"):
        run(causal_model(), text_rows(4), training, accelerator=accelerator, metric_names=names)
    assert not list(tmp_path.iterdir())


def test_nan_is_never_the_best(tmp_path: Path, accelerator: Accelerator) -> None:
    values = iter([math.nan, 2.0, math.nan, 3.0])
    training = settings(tmp_path, max_steps=4, eval_steps=1)
    result = run(
        causal_model(), text_rows(4), training, accelerator=accelerator, evaluate=lambda model: {"loss": next(values)}
    )
    assert (result.best_step, result.best_value) == (2, 2.0)
    losses = [record["loss"] for record in read_log(tmp_path / "log.jsonl") if record["kind"] == "eval"]
    assert losses == [None, 2.0, None, 3.0]


def test_patience_survives_a_resume(tmp_path: Path, accelerator: Accelerator) -> None:
    values = iter([1.0, 2.0, 2.0, 2.0, 2.0])
    first = settings(tmp_path, max_steps=3, eval_steps=1, patience=3)
    evaluate = lambda model: {"loss": next(values)}  # noqa: E731
    assert not run(causal_model(), text_rows(4), first, accelerator=accelerator, evaluate=evaluate).stopped_early
    more = settings(tmp_path, max_steps=10, eval_steps=1, patience=3, resume=True)
    for _ in range(2):  # a run that has stopped stays stopped
        result = run(causal_model(), text_rows(4), more, accelerator=accelerator, evaluate=evaluate)
        assert (result.steps, result.stopped_early, result.best_step) == (4, True, 1)
        assert result.stop_reason == (
            "at step 4 of 10, as 3 evaluations in a row brought no better loss than that of step 1"
        )
        stops = [record for record in read_log(tmp_path / "log.jsonl") if record["kind"] == "stop"]
        assert stops == [{"kind": "stop", "step": 4, "loss": 2.0, "best_step": 1}]
    patient = settings(tmp_path, max_steps=10, eval_steps=1, patience=4, resume=True)
    result = run(causal_model(), text_rows(4), patient, accelerator=accelerator, evaluate=evaluate)
    assert (result.steps, result.stopped_early) == (5, True)


def test_a_batch_without_labels_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    rows = [{"input_ids": [5]}] * 4  # one token has nothing to predict
    with pytest.raises(UsageError, match="step 1: a batch has no label"):
        run(causal_model(), rows, settings(tmp_path), accelerator=accelerator)


def test_no_rows_are_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    with pytest.raises(UsageError, match="no row to train on"):
        run(causal_model(), [], settings(tmp_path), accelerator=accelerator)
    assert not list(tmp_path.iterdir())


def test_unused_parameters_are_named(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    model = causal_model()
    model.pooler = nn.Linear(3, 3)
    run(model, text_rows(4), settings(tmp_path, max_steps=1), accelerator=accelerator)
    assert "2 parameters take no part in the loss: pooler.weight, pooler.bias" in capsys.readouterr().out


def test_a_warm_up_that_does_not_end_is_said(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    for warmup_steps, is_said in ((2, True), (1, False)):
        training = settings(tmp_path / str(warmup_steps), max_steps=2, warmup_steps=warmup_steps)
        run(Bigram(), text_rows(4), training, accelerator=accelerator, tracking=TrackingConfig())
        said = "training.warmup_steps: 2 are not over after training.max_steps: 2: the learning rate never"
        assert (said in capsys.readouterr().out) == is_said


def test_a_signal_saves_and_stops_within_a_step(tmp_path: Path, accelerator: Accelerator) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def evaluate(model: nn.Module) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": 1.0}

    training = settings(tmp_path, eval_steps=3, save_steps=100)
    result = run(causal_model(), text_rows(4), training, accelerator=accelerator, evaluate=evaluate)
    assert result.interrupted
    assert result.steps == 3
    assert newest_complete(tmp_path / "checkpoints") == result.last_checkpoint
    assert signal.getsignal(signal.SIGTERM) == before


def test_tokens_are_counted_without_padding() -> None:
    batch = collate_text(text_rows(4))
    assert count_tokens(batch) == 3 + 40 + 5 + 60
    del batch["attention_mask"]  # then the model reads the padding too
    assert count_tokens(batch) == 4 * 60


def test_all_bad_settings_are_named_at_once(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(
        tmp_path,
        max_steps=0,
        learning_rate=-1.0,
        adam_beta2=1.0,
        schedule="cosin",
        resume=True,
        overwrite=True,
        optimizer="muan",
        mixed_precision="bf15",
    )
    with pytest.raises(UsageError) as caught:
        run(causal_model(), text_rows(4), training, accelerator=accelerator)
    for text in (
        "training.max_steps: 0 must be 1 or more",
        "training.learning_rate: -1.0 must be more than 0",
        "training.adam_beta2: 1.0 must be at least 0 and less than 1",
        "unknown schedule 'cosin': did you mean 'cosine'",
        "training.resume and training.overwrite exclude each other",
        "training.optimizer: unknown optimizer 'muan': did you mean 'muon'",
        "training.mixed_precision: unknown mixed precision 'bf15': did you mean 'bf16'",
    ):
        assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_settings_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    decay = settings(tmp_path, schedule="warmup_stable_decay", warmup_steps=10, decay_steps=11).problems()
    assert decay == [
        "training.warmup_steps: 10 and training.decay_steps: 11 are together more than training.max_steps: 20"
    ]
    minimum = settings(tmp_path, min_learning_rate=0.5).problems()
    assert minimum == ["training.min_learning_rate: 0.5 must be less than training.learning_rate: 0.001"]
    [floor] = settings(tmp_path, schedule="constant", min_learning_rate=1e-4).problems()
    assert floor.startswith("training.min_learning_rate: 0.0001 is never reached by schedule 'constant': leave it out")
    assert not settings(tmp_path, schedule="inverse_sqrt", min_learning_rate=1e-4).problems()
    ramp = settings(tmp_path, ramp_steps=1, initial_accumulation_steps=3).problems()
    assert ramp == ["training.initial_accumulation_steps: 3 is more than training.gradient_accumulation_steps: 1"]
    assert settings(tmp_path, best_mode="best").problems() == ["training.best_mode: 'best' must be 'min' or 'max'"]


def test_the_log_is_json(tmp_path: Path, accelerator: Accelerator) -> None:
    run(causal_model(), text_rows(8), settings(tmp_path, max_steps=4, log_steps=2), accelerator=accelerator)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(record["kind"], record["step"], record["epoch"]) for record in records] == [
        ("train", 2, 1.0),
        ("train", 4, 2.0),
    ]
    assert {"loss", "learning_rate", "grad_norm", "tokens_per_second", "tokens_seen", "seconds"} <= records[0].keys()
