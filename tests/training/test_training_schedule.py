"""The learning rate, the optimizer's groups, and the random numbers: functions, checked as such."""

import gc
import math
import random
import re
import sys
import weakref
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from samples import causal_model, classifier, collate_text, run, settings, text_rows
from torch import nn

from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.attention import scorers
from attnkit.errors import UsageError
from attnkit.training.optimizer import (
    OPTIMIZERS,
    build_optimizer,
    clip_gradients,
    parameter_groups,
    set_learning_rate,
)
from attnkit.training.randomness import reseed
from attnkit.training.schedule import SCHEDULES, learning_rate
from attnkit.training.settings import Optimizer, Schedule, TrainingConfig
from attnkit.training.tracking import read_log


def rates(**changes: Any) -> list[float]:
    shape: dict[str, Any] = {"max_steps": 10, "warmup_steps": 2, "learning_rate": 1.0, "min_learning_rate": 0.2}
    training = TrainingConfig(**{**shape, **changes})
    rate_at = learning_rate(training)
    return [rate_at(step) for step in range(training.max_steps + 1)]


def test_the_settings_name_every_schedule_and_optimizer() -> None:
    assert list(get_args(Schedule)) == list(SCHEDULES)
    assert list(get_args(Optimizer)) == list(OPTIMIZERS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_warms_up_and_respects_the_minimum(schedule: str) -> None:
    curve = rates(schedule=schedule, warmup_steps=4, decay_steps=3)
    assert curve[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert max(curve) == 1.0
    assert curve[4:] == sorted(curve[4:], reverse=True)
    assert min(curve[4:]) >= 0.2
    ends = {"constant": 1.0, "inverse_sqrt": 0.4**0.5}  # that have no end
    assert curve[-1] == pytest.approx(ends.get(schedule, 0.2))
    assert rates(schedule=schedule, warmup_steps=0)[0] == 1.0


def test_the_curves() -> None:
    assert rates(schedule="linear") == pytest.approx([0, 0.5, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    assert rates(schedule="cosine")[6] == pytest.approx(0.6)  # halfway
    # Vaswani 2017: d^-½ · min(step^-½, step · w^-1.5), which is at its peak d^-½ · w^-½ at step w.
    paper = [min(max(step, 1) ** -0.5, step * 2**-1.5) * 2**0.5 for step in range(11)]
    assert rates(schedule="inverse_sqrt", min_learning_rate=0.0) == pytest.approx(paper)
    assert rates(schedule="inverse_sqrt", min_learning_rate=0.5)[10] == 0.5
    decay = rates(schedule="warmup_stable_decay", decay_steps=4)
    assert decay[2:7] == [1.0] * 5
    assert decay[7] == pytest.approx(0.2 + 0.8 * (1 - 0.25**0.5))
    assert rates(schedule="warmup_stable_decay")[8:10] == pytest.approx([1, 0.2 + 0.8 * (1 - 0.5**0.5)])


def test_the_loop_follows_the_schedule(tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, gradient_accumulation_steps=2)
    run(causal_model(), text_rows(8), training, accelerator=accelerator)
    logged = [record["learning_rate"] for record in read_log(tmp_path / "log.jsonl")]
    assert logged == [learning_rate(training)(step) for step in range(20)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_matrices_decay(name: str) -> None:
    model = causal_model()
    model.transformer.wpe.weight.requires_grad_(False)
    optimizer = build_optimizer(model, TrainingConfig(weight_decay=0.3, optimizer=name))
    decays = {
        name: group["weight_decay"] for group in optimizer.state_dict()["param_groups"] for name in group["param_names"]
    }
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert decays == {name: 0.3 if parameter.ndim >= 2 else 0.0 for name, parameter in trained.items()}


def test_groups_tell_hidden_matrices_from_embeddings_and_heads() -> None:
    groups = {group["kind"]: group["params"] for group in parameter_groups(classifier(), TrainingConfig())}
    names = {kind: {name for name, _ in members} for kind, members in groups.items()}
    assert "bert.encoder.layer.0.attention.self.query.weight" in names["hidden"]
    assert {"bert.embeddings.word_embeddings.weight", "classifier.weight"} <= names["matrix"]
    assert {"classifier.bias", "bert.embeddings.LayerNorm.weight"} <= names["vector"]


PART = r"\.(scorer|pattern|position|normalizer)\."


@pytest.mark.parametrize("scorer", scorers)
def test_vectors_of_heads_are_no_matrices(scorer: str) -> None:
    """Each part has matrices of its own, of which a head's are stacked, and vectors, of which a head's are too."""
    fields = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for pattern, position in (("local_p", "none"), ("full", "transformer_xl")):
        try:
            model = AttnKitForCausalLM(AttnKitConfig(scorer=scorer, pattern=pattern, position=position, **fields))
        except UsageError:
            continue
        groups = parameter_groups(model, TrainingConfig(optimizer="muon"))
        kinds = {name: group["kind"] for group in groups for name, _ in group["params"]}
        of_parts = {name: parameter for name, parameter in model.named_parameters() if re.search(PART, name)}
        for name, parameter in of_parts.items():
            assert kinds[name] == ("matrix" if parameter.ndim == 3 else "vector"), name
        assert kinds["model.decoder.layers.0.attention.q_proj.weight"] == "hidden"


def test_adamw_is_fused() -> None:
    assert all(group["fused"] for group in build_optimizer(causal_model(), TrainingConfig()).param_groups)


def test_muon_is_for_hidden_matrices_and_adamw_for_the_rest() -> None:
    optimizer = build_optimizer(causal_model(), TrainingConfig(optimizer="muon", momentum=0.9, adam_beta1=0.8))
    assert {group["kind"]: group.get("momentum") for group in optimizer.param_groups} == {
        "hidden": 0.9,
        "matrix": None,
        "vector": None,
    }
    assert {group["betas"][0] for group in optimizer.param_groups if "betas" in group} == {0.8}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_and_resumes_to_the_bit(name: str, tmp_path: Path, accelerator: Accelerator) -> None:
    rows, changes = text_rows(8), {"optimizer": name, "learning_rate": 1e-2, "max_steps": 30}
    whole = run(causal_model(), rows, settings(tmp_path / "whole", **changes), accelerator=accelerator)
    assert whole.losses[-1][1] < whole.losses[0][1] - 0.03
    parts = {**changes, "schedule": "constant"}
    expected = run(causal_model(), rows, settings(tmp_path / "constant", **parts), accelerator=accelerator)
    run(causal_model(), rows, settings(tmp_path / "parts", **{**parts, "max_steps": 7}), accelerator=accelerator)
    resumed = run(causal_model(), rows, settings(tmp_path / "parts", **parts, resume=True), accelerator=accelerator)
    assert resumed.losses == expected.losses[7:]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_learns_at_its_factor_of_the_rate(name: str) -> None:
    optimizer = build_optimizer(causal_model(), TrainingConfig(optimizer=name))
    optimizer.param_groups[0]["rate_factor"] = 0.25
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.5, 0.5]


def test_an_optimizer_of_an_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lion_pytorch", None)  # as if it were not installed
    [said] = TrainingConfig(optimizer="lion").problems()
    assert said.endswith("'lion' needs the package 'lion-pytorch'; install the extra: pip install 'attnkit[lion]'")


def test_numbers_that_have_no_fused_kernel_are_optimized_all_the_same() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])
    optimizer = build_optimizer(model, TrainingConfig())
    assert not any(group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize("limit", [None, 1e-3, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(limit: float | None) -> None:
    mine, torchs = causal_model(), causal_model()
    for model in (mine, torchs):
        model(**collate_text(text_rows(4))).loss.backward()
    norm = clip_gradients(mine.parameters(), limit=limit)
    assert norm == nn.utils.clip_grad_norm_(torchs.parameters(), limit or math.inf).item()
    for ours, theirs in zip(mine.parameters(), torchs.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_run_that_is_over_holds_no_memory(tmp_path: Path, accelerator: Accelerator) -> None:
    model = causal_model()
    seen = weakref.ref(model)
    gc.disable()  # nothing waits for it
    try:
        run(model, text_rows(4), settings(tmp_path, max_steps=2), accelerator=accelerator)
        del model
        assert seen() is None
    finally:
        gc.enable()


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        build_optimizer(causal_model().requires_grad_(False), TrainingConfig())


def test_random_numbers_are_a_function_of_their_key() -> None:
    def draw(*key: int) -> tuple[float, float, float]:
        reseed(*key)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert draw(0, 1, 2) == draw(0, 1, 2)
    numbers = {number for key in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (0, 1, 3)] for number in draw(*key)}
    assert len(numbers) == 12
