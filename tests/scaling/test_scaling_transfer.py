"""Rules of transfer: the size of what is learned stays the same over width and depth."""

from pathlib import Path

import pytest
import torch

from attnkit import AttnKitConfig
from attnkit.errors import UsageError
from attnkit.scaling.transfer import Coordinate, coordinate_check, draw_coordinates, transfer


def sized(width: int, layers: int) -> AttnKitConfig:
    return AttnKitConfig(
        hidden_size=width, num_attention_heads=width // 16, num_hidden_layers=layers, vocab_size=64,
        max_position_embeddings=16,
    )  # fmt: skip


def growth(coordinates: list[Coordinate], place: str) -> float:
    """The largest size after the last step over the smallest."""
    last = max(it.step for it in coordinates)
    sizes = [it.size for it in coordinates if it.step == last and it.place == place]
    return max(sizes) / min(sizes)


def check(sizes: list[AttnKitConfig], rule: str) -> list[Coordinate]:
    return coordinate_check(sizes, rule=rule, base_width=32, base_layers=2)


def test_logits_change_alike_at_every_width(tmp_path: Path) -> None:
    sizes = [sized(width, 2) for width in (32, 64, 128, 256)]
    mup = check(sizes, "mup")
    assert growth(mup, "logits") < 1.3
    assert growth(mup, "last block") < 1.3
    assert growth(check(sizes, "standard"), "logits") > 4
    draw_coordinates(mup, tmp_path / "width.png", over="width")
    assert (tmp_path / "width.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("rule", ["depth_mup", "complete_p"])
def test_logits_change_alike_at_every_depth(rule: str) -> None:
    sizes = [sized(32, layers) for layers in (2, 4, 16)]
    assert growth(check(sizes, rule), "logits") < 1.2


def test_the_base_is_left_as_it_is() -> None:
    scaled = transfer(sized(32, 2), base_width=32, base_layers=2)
    assert (scaled.init_std, scaled.hidden_rate, scaled.vector_rate, scaled.hidden_decay) == (1, 1, 1, 1)
    assert (scaled.config.output_scale, scaled.config.residual_scale) == (1, 1)


def test_the_factors() -> None:
    four = transfer(sized(128, 8), base_width=32, base_layers=2, rule="depth_mup")
    assert (four.init_std, four.hidden_rate, four.vector_rate, four.hidden_decay) == (0.5, 0.125, 0.5, 4)
    assert (four.config.output_scale, four.config.residual_scale) == (0.25, 0.5)
    complete = transfer(sized(128, 8), base_width=32, base_layers=2, rule="complete_p")
    assert (complete.hidden_rate, complete.vector_rate, complete.config.residual_scale) == (0.25, 1, 0.25)


def test_every_parameter_is_in_one_group() -> None:
    scaled = transfer(sized(64, 2), base_width=32, base_layers=2)
    model = scaled.build()
    groups = scaled.groups(model, learning_rate=1.0, weight_decay=0.1)
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in model.parameters())
    assert [group["lr"] for group in groups] == [0.5, 1.0, 1.0]
    assert groups[0]["weight_decay"] == pytest.approx(0.2)
    torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rule": "mupp"}, "unknown rule 'mupp': did you mean 'mup'"),
        ({"base_width": 0}, "base_width and base_layers must be at least 1"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        transfer(sized(32, 2), **{"base_width": 32, "base_layers": 2, **arguments})


def test_the_rules_are_for_decoders() -> None:
    with pytest.raises(UsageError, match="the rules are for architecture 'decoder'"):
        transfer(AttnKitConfig(architecture="encoder"), base_width=32, base_layers=2)
