"""What other tools answer, and what this machine does."""

import pytest

from attnkit import AttnKitConfig
from attnkit.errors import UsageError
from attnkit.scaling import count_flops
from attnkit.scaling.audit import SMALLEST_GPT_2, audit
from attnkit.scaling.calibrate import calibrate, unsure
from attnkit.scaling.cli import answer


def test_the_known_faults_have_their_known_size() -> None:
    findings = audit(AttnKitConfig(**SMALLEST_GPT_2))
    ratios = {(it.tool, it.question): it.ratio for it in findings}
    training = "training FLOPs of a batch"
    assert ratios["EleutherAI/cookbook calc_transformer_flops", training] == pytest.approx(0.82, abs=0.005)
    assert ratios["transformers floating_point_ops", training] == pytest.approx(0.60, abs=0.005)
    states = "bytes of states, mixed precision with Adam"
    assert ratios["accelerate estimate-memory (bf16)", states] == 0.5
    assert ratios["DeepSpeed estimate_zero*_model_states", states] is None
    assert all(finding.why for finding in findings)


def test_steps_of_unlike_times_predict_less_surely() -> None:
    assert unsure([1.0, 1.0, 1.0], longer_steps=20) == 0
    assert unsure([0.9, 1.0, 1.1], longer_steps=20) < unsure([0.5, 1.0, 1.5], longer_steps=20)
    assert unsure([0.9, 1.0, 1.1] * 4, longer_steps=20) < unsure([0.9, 1.0, 1.1], longer_steps=20)


def test_the_audit_is_for_decoders() -> None:
    with pytest.raises(UsageError, match="the audit compares decoders"):
        audit(AttnKitConfig(architecture="encoder"))


def test_a_short_run_predicts_a_longer_one(tmp_path) -> None:
    config = AttnKitConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=2, vocab_size=64)
    found = calibrate(config, seq_len=16, batch_size=4, steps=3, longer_steps=4)
    assert found.flops_per_step == count_flops(config, seq_len=16, batch_size=4).total
    assert found.predicted_seconds == pytest.approx(4 * found.seconds_per_step)
    assert found.error is not None
    config.save_pretrained(tmp_path)
    said = answer(["calibrate", str(tmp_path), "--seq_len", "16", "--steps", "3", "--longer_steps", "2"])
    assert "the prediction is off by" in said
    assert " steps, within " in said
    assert "accelerate estimate-memory" in answer(["audit", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"steps": 2}, "steps must be at least 3, not 2"),
        ({"longer_steps": 0}, "longer_steps must be at least 1, not 0"),
        ({"head": "none"}, "has no loss over tokens"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        calibrate(AttnKitConfig(), seq_len=8, **arguments)
