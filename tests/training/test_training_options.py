"""What a run may be asked for beside the plain loop: guard, average, ramp, precision, compiling, recomputing."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from samples import (
    VOCAB_SIZE,
    Bigram,
    Output,
    causal_model,
    collate_text,
    held_out,
    own_model,
    run,
    settings,
    text_rows,
)
from torch import nn

from attnkit.errors import UsageError
from attnkit.training.batches import num_micro_batches
from attnkit.training.checkpoint import complete_steps, is_complete, load_weights, newest_complete
from attnkit.training.launch import make_accelerator
from attnkit.training.tracking import read_log


class Exploding(nn.Module):
    """A model whose loss is no number from the third batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.calls = 0

    def forward(self, **batch: torch.Tensor) -> Output:
        self.calls += 1
        return Output(self.weight.sum() * (math.nan if self.calls > 2 else 1.0))


def test_a_loss_that_is_no_number_names_the_step(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, save_steps=1, max_skipped_steps=0)
    with pytest.raises(UsageError, match=r"step 3: the loss is nan.*training\.learning_rate"):
        run(Exploding(), text_rows(4), training, accelerator=accelerator)
    newest = newest_complete(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-000002"


class Hiccup(Bigram):
    """A model whose loss is no number in some of its batches, and very steep in another."""

    def __init__(self, *bad: int, steep: int = 0) -> None:
        super().__init__()
        self.calls, self.bad, self.steep = 0, bad, steep

    def forward(self, *args: Any, **batch: torch.Tensor) -> Output:
        output = super().forward(*args, **batch)
        self.calls += self.training
        output.loss = output.loss * (math.nan if self.calls in self.bad else 1e4 if self.calls == self.steep else 1)
        return output


def test_steps_without_a_finite_loss_are_skipped_and_counted(
    tmp_path: Path, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    training = settings(tmp_path, max_steps=8, save_steps=1, keep_last=1, max_skipped_steps=2)
    model = Hiccup(3, 5, 6)
    result = run(model, text_rows(4), training, accelerator=accelerator)
    records = read_log(tmp_path / "log.jsonl")
    assert [record["skipped_steps"] for record in records] == [0, 0, 1, 1, 2, 3, 3, 3]
    assert [record["loss"] is None for record in records] == [step in (3, 5, 6) for step in range(1, 9)]
    assert "step 3: the loss is nan and the norm of the gradient nan: skipped" in capsys.readouterr().out
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert result.steps == 8


def test_a_spike_is_skipped(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, max_steps=62, spike_factor=20.0, learning_rate=1e-4)
    run(Hiccup(steep=61), text_rows(4), training, accelerator=accelerator)
    assert [record["skipped_steps"] for record in read_log(tmp_path / "log.jsonl")] == [0] * 60 + [1, 1]


def test_a_run_whose_best_step_was_skipped_ends_with_its_weights(tmp_path: Path, accelerator: Accelerator) -> None:
    values = iter([2.0, 1.0, 3.0, 3.0])
    training = settings(tmp_path, max_steps=20, eval_steps=1, save_steps=50, patience=2, max_skipped_steps=9)
    evaluate = lambda model: {"loss": next(values)}  # noqa: E731
    result = run(Hiccup(2, 3, 4), text_rows(4), training, accelerator=accelerator, evaluate=evaluate)
    assert (result.steps, result.stopped_early, result.best_step) == (4, True, 2)
    assert complete_steps(tmp_path / "checkpoints") == [2, 4]
    assert result.best_checkpoint is not None
    assert is_complete(result.best_checkpoint)


@pytest.mark.parametrize("max_steps", [4, 60])
def test_an_absurd_learning_rate_stops_the_run_and_keeps_the_good_checkpoints(
    tmp_path: Path, accelerator: Accelerator, max_steps: int
) -> None:
    rows, plain = text_rows(8), {"per_device_batch_size": 8, "save_steps": 1, "keep_last": 1, "schedule": "constant"}
    evaluate = held_out(rows, accelerator)
    good = settings(tmp_path, max_steps=2, **plain)
    run(own_model(norm="rmsnorm"), rows, good, accelerator=accelerator, evaluate=evaluate)
    absurd = settings(tmp_path, max_steps=max_steps, learning_rate=1e30, resume=True, **plain)
    with pytest.raises(UsageError, match=r"step \d+: .*training\.learning_rate.*last good checkpoint is .*step-00000"):
        run(own_model(norm="rmsnorm"), rows, absurd, accelerator=accelerator, evaluate=evaluate)
    assert 2 in complete_steps(tmp_path / "checkpoints")


def test_patience_saves_no_model_that_came_to_nothing(tmp_path: Path, accelerator: Accelerator) -> None:
    rows = text_rows(8)
    absurd = settings(tmp_path, max_steps=40, learning_rate=1e30, warmup_steps=1, eval_steps=2, patience=2)

    def evaluate(model: Any) -> dict[str, float]:
        return {"loss": math.nan, "accuracy": 1.0}

    for best in ({}, {"best_metric": "accuracy", "best_mode": "max"}):
        with pytest.raises(UsageError, match=r"step 4: the held-out loss is nan; lower training\.learning_rate"):
            run(own_model(), rows, replace(absurd, overwrite=True, **best), accelerator=accelerator, evaluate=evaluate)


@pytest.mark.parametrize("name", ["label_smoothing", "z_loss"])
def test_a_model_with_a_loss_of_its_own_is_refused_more(tmp_path: Path, accelerator: Accelerator, name: str) -> None:
    with pytest.raises(UsageError, match=rf"training\.{name}: GPT2LMHeadModel computes its own loss; set it to 0"):
        run(causal_model(), text_rows(4), settings(tmp_path, **{name: 0.1}), accelerator=accelerator)
    assert not list(tmp_path.iterdir())


def test_smoothing_and_z_loss_are_for_training_alone(tmp_path: Path, accelerator: Accelerator) -> None:
    rows = text_rows(4)
    changes = {"max_steps": 1, "label_smoothing": 0.1, "z_loss": 0.5, "learning_rate": 1e-9}
    model = own_model()
    result = run(
        model, rows, settings(tmp_path, **changes), accelerator=accelerator, evaluate=held_out(rows, accelerator)
    )
    with torch.no_grad():
        plain = model(**collate_text(rows)).loss.item()
    assert result.metrics["loss"] == pytest.approx(plain, rel=1e-5)
    assert result.losses[0][1] > plain + 0.5 * math.log(VOCAB_SIZE)  # log Z is near the logarithm of the vocabulary


def test_the_delivered_and_evaluated_weights_are_the_average(tmp_path: Path, accelerator: Accelerator) -> None:
    rows, seen = text_rows(8), []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(model.head.weight.clone())
        return {"loss": 1.0}

    model = Bigram()
    before = model.head.weight.detach().clone()
    training = settings(tmp_path / "two", max_steps=2, ema_decay=0.9, eval_steps=2, warmup_steps=0, learning_rate=1e-2)
    path = run(model, rows, training, accelerator=accelerator, evaluate=evaluate).last_checkpoint
    one = load_file(
        run(
            Bigram(),
            rows,
            settings(
                tmp_path / "one", max_steps=1, warmup_steps=0, learning_rate=1e-2, save_steps=1, schedule="constant"
            ),
            accelerator=accelerator,
        ).last_checkpoint
        / "model.safetensors"
    )["head.weight"]
    two = load_file(path / "model.safetensors")["head.weight"]
    first = 0.1 * before + 0.9 * one  # (1 + 0) / (10 + 0)
    expected = 2 / 11 * first + 9 / 11 * two
    torch.testing.assert_close(model.head.weight.detach(), expected)
    assert torch.equal(seen[0], model.head.weight)
    fresh = Bigram()
    load_weights(fresh, path, averaged=True)
    assert torch.equal(fresh.head.weight, model.head.weight)
    assert not torch.equal(two, model.head.weight)


def test_mixed_precision_keeps_the_weights_whole_and_the_model_plain(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = causal_model()
    run(model, text_rows(4), settings(tmp_path, max_steps=2), accelerator=accelerator)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(**collate_text(text_rows(4))).logits.dtype == torch.float32


@pytest.mark.parametrize("name", ["activation_checkpointing", "compile_backend"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at itself while it traces
def test_a_switch_of_computation_changes_no_weight(tmp_path: Path, accelerator: Accelerator, name: str) -> None:
    value = {"activation_checkpointing": True, "compile_backend": "eager"}[name]
    models = own_model().double(), own_model().double()  # as AdamW makes large steps of small differences
    for model, changes in zip(models, ({}, {name: value}), strict=True):
        training = settings(tmp_path / str(len(changes)), max_steps=3, **changes)
        path = run(model, text_rows(4), training, accelerator=accelerator).last_checkpoint
    plain, changed = (model.state_dict() for model in models)
    assert plain.keys() == changed.keys()
    assert all(torch.allclose(changed[key], tensor, atol=1e-6) for key, tensor in plain.items())
    assert (
        load_file(path / "model.safetensors").keys()
        == load_file(tmp_path / "0" / "checkpoints" / "step-000003" / "model.safetensors").keys()
    )
    assert (models[1]._compiled_call_impl, models[1].is_activation_checkpointing) == (None, False)


def test_what_a_model_or_device_cannot_do_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    for changes, message in (
        ({"activation_checkpointing": True}, r"training\.activation_checkpointing: Bigram cannot"),
        (
            {"compile_backend": "inducter"},
            r"training\.compile_backend: unknown backend 'inducter': did you mean 'inductor'",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            run(Bigram(), text_rows(4), settings(tmp_path, **changes), accelerator=accelerator)
    assert not list(tmp_path.iterdir())
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(UsageError, match=r"training\.mixed_precision: fp16 needs a GPU: set it to bf16 or no"):
        make_accelerator(mixed_precision="fp16")


def test_half_weights_become_whole_where_passes_are_in_half_precision(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = make_accelerator(mixed_precision="bf16")
    model = causal_model().bfloat16()
    run(model, text_rows(4), settings(tmp_path, max_steps=1), accelerator=accelerator)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_batch_grows_along_the_ramp(tmp_path: Path, accelerator: Accelerator) -> None:
    ramp = {"gradient_accumulation_steps": 8, "initial_accumulation_steps": 2, "ramp_steps": 6, "max_steps": 8}
    sizes = [num_micro_batches(settings(tmp_path, **ramp), step) for step in range(8)]
    assert sizes == [2, 2, 4, 4, 6, 6, 8, 8]
    # Twice the processes with half of both settings have the same global batches.
    half = settings(tmp_path, **ramp | {"gradient_accumulation_steps": 4, "initial_accumulation_steps": 1})
    assert [2 * num_micro_batches(half, step) for step in range(8)] == sizes
    training = settings(tmp_path, per_device_batch_size=1, **ramp)
    run(Bigram(), text_rows(8), training, accelerator=accelerator)
    epochs = [record["epoch"] for record in read_log(tmp_path / "log.jsonl")]
    assert epochs == [sum(sizes[: step + 1]) / 8 for step in range(8)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at itself while it traces
def test_compiled_model_is_saved_under_its_own_names(tmp_path: Path, accelerator: Accelerator) -> None:
    model = Bigram()
    compiled = torch.compile(model, backend="eager")
    path = run(compiled, text_rows(4), settings(tmp_path, max_steps=2), accelerator=accelerator).last_checkpoint
    fresh = Bigram()
    load_weights(fresh, path)
    assert all(torch.equal(fresh.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert not torch.equal(Bigram().head.weight, fresh.head.weight)  # the compiled model trained these very weights
