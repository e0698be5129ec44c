"""Rules of transfer: the size of what is learned stays the same over width and depth; what a run makes of them."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.errors import UsageError
from attnkit.scaling.choices import Rule
from attnkit.scaling.cli import answer
from attnkit.scaling.transfer import Coordinate, Transfer, coordinate_check, transfer
from attnkit.training import settings
from attnkit.training.optimizer import parameter_groups
from attnkit.training.settings import TrainingConfig

BASE = {"base_hidden_size": 32, "base_num_hidden_layers": 2}


def sized(width: int, layers: int, **fields: Any) -> AttnKitConfig:
    return AttnKitConfig(
        hidden_size=width, num_attention_heads=width // 16, num_hidden_layers=layers, vocab_size=64,
        max_position_embeddings=16, **fields,
    )  # fmt: skip


def growth(coordinates: list[Coordinate], place: str) -> float:
    """The largest size after the last step over the smallest."""
    last = max(it.step for it in coordinates)
    sizes = [it.size for it in coordinates if it.step == last and it.place == place]
    return max(sizes) / min(sizes)


def test_logits_change_alike_at_every_width() -> None:
    sizes = [sized(width, 2) for width in (32, 64, 128, 256)]
    mup = coordinate_check(sizes, rule="mup", **BASE)
    assert growth(mup, "logits") < 1.3
    assert growth(mup, "last block") < 1.3
    assert growth(coordinate_check(sizes, rule=None, **BASE), "logits") > 4


@pytest.mark.parametrize("rule", ["depth-mup", "completep"])
def test_logits_change_alike_at_every_depth(rule: Rule) -> None:
    sizes = [sized(32, layers) for layers in (2, 4, 16)]
    assert growth(coordinate_check(sizes, rule=rule, **BASE), "logits") < 1.2


@pytest.mark.parametrize("rule", get_args(Rule))
def test_the_base_is_left_as_it_is(rule: str) -> None:
    assert transfer(sized(32, 2), rule=rule, **BASE) == Transfer()


def test_the_factors() -> None:
    mup = transfer(sized(128, 8), rule="mup", **BASE)
    assert mup == Transfer(init_std=0.5, hidden_rate=0.25, hidden_decay=4, output_scale=0.25)
    depth = transfer(sized(128, 8), rule="depth-mup", **BASE)
    assert (depth.hidden_rate, depth.vector_rate, depth.residual_scale) == (0.125, 0.5, 0.5)
    complete = transfer(sized(128, 8), rule="completep", **BASE)
    assert (complete.hidden_rate, complete.vector_rate, complete.residual_scale) == (0.25, 1, 0.25)


def test_the_rules_of_a_run_are_these() -> None:
    assert get_args(settings.Transfer) == get_args(Rule)


def test_every_parameter_is_in_one_group_of_a_run() -> None:
    training = TrainingConfig(transfer="depth-mup", weight_decay=0.1, **BASE)
    model = AttnKitForCausalLM(sized(64, 8))
    groups = parameter_groups(model, training)
    named = {name: group for group in groups for name, _ in group["params"]}
    assert named.keys() == dict(model.named_parameters()).keys()
    hidden = named["model.decoder.layers.0.attention.q_proj.weight"]
    assert (hidden["rate_factor"], hidden["weight_decay"]) == (0.25, pytest.approx(0.2))
    norm = named["model.decoder.layers.0.attention.q_proj.bias"]
    assert (norm["rate_factor"], norm["weight_decay"]) == (0.5, 0)
    assert named["model.decoder.embeddings.tokens.weight"]["rate_factor"] == 1
    assert sum(len(group["params"]) for group in groups) == len(named)


def test_what_a_run_starts_from() -> None:
    config = sized(128, 2)
    factors = transfer(config, rule="mup", **BASE)
    scaled = factors.scaled(config)
    assert scaled.output_scale == 0.25
    assert factors.scaled(scaled).output_scale == 0.25  # a run's saved config gives the same run
    torch.manual_seed(0)
    plain = AttnKitForCausalLM(scaled)
    torch.manual_seed(0)
    started = AttnKitForCausalLM(scaled)
    factors.start(started)
    before, after = (
        {name: float(it.detach().norm()) for name, it in model.named_parameters()} for model in (plain, started)
    )
    ratio = {name: after[name] / before[name] for name in before if before[name] > 0}
    assert ratio["model.decoder.layers.1.feed_forward.up_proj.weight"] == pytest.approx(0.5)
    assert ratio["model.decoder.embeddings.tokens.weight"] == 1
    with pytest.raises(UsageError, match=r"model.output_scale: 0.5 is not 0.25, which the rule of transfer asks for"):
        factors.scaled(sized(128, 2, output_scale=0.5))


def test_the_job(tmp_path: Path) -> None:
    sized(64, 4).save_pretrained(tmp_path)
    base = ["--base_hidden_size", "16", "--base_num_hidden_layers", "1"]
    said = answer(["transfer", str(tmp_path), *base, "--rule", "mup", "--png", str(tmp_path / "it.png")])
    assert "0.00025" in said
    assert "--training.transfer mup --training.base_hidden_size 16" in said
    assert "change after 4 steps" in said
    assert (tmp_path / "it.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rule": "mupp"}, "unknown rule 'mupp': did you mean 'mup'"),
        ({"base_hidden_size": 2.5}, "base_hidden_size must be a whole number, not 2.5"),
        ({"base_hidden_size": 0}, "base_hidden_size and base_num_hidden_layers must be given, and at least 1"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        transfer(sized(32, 2), **{"rule": "mup", **BASE, **arguments})


@pytest.mark.parametrize("architecture", ["encoder", "encoder-decoder"])
def test_the_rules_are_for_decoders(architecture: str) -> None:
    with pytest.raises(UsageError, match="rule 'mup' is for a decoder of attnkit, and this is none: its papers"):
        transfer(AttnKitConfig(architecture=architecture), rule="mup", **BASE)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"transfer": "mupp", **BASE}, "training.transfer: unknown transfer 'mupp': did you mean 'mup'"),
        ({"transfer": "mup"}, "go together: give all or none"),
        ({"transfer": "mup", **BASE, "base_hidden_size": 0}, "training.base_hidden_size: 0 must be 1 or more"),
        ({"transfer": "mup", **BASE, "optimizer": "muon"}, "its rules are those of optimizer 'adamw', not 'muon'"),
    ],
)
def test_nonsense_in_a_run(fields: dict, problem: str) -> None:
    assert any(problem in line for line in TrainingConfig(**fields).problems())
