"""Another scorer in a trained model."""

from typing import Any

import pytest
import torch
import transformers

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForSeq2SeqLM, from_hf
from attnkit.attention import scorers
from attnkit.errors import UsageError
from attnkit.models.surgery import replace_scorer

SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
IDS = torch.arange(3, 17).reshape(2, 7)


def train_a_little(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("old", ["dot", "scaled_dot"])
@pytest.mark.parametrize(
    ("new", "options"),
    [
        ("dot", {}),
        ("scaled_dot", {}),
        ("multiplicative", {"form": "full"}),
        ("multiplicative", {"form": "diagonal"}),
        ("biaffine", {}),
    ],
)
@torch.no_grad()
def test_what_contains_the_dot_product_starts_as_the_same_function(old: str, new: str, options: dict[str, Any]) -> None:
    model = train_a_little(AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer=old)))
    other, change = replace_scorer(model, new, scorer_options=options)
    assert other.config.scorer == new
    assert (model(IDS).logits - other(IDS).logits).abs().max() < 1e-5
    assert max(change.score_difference.values()) < 1e-6
    assert bool(change.rescaled) is (("dot" in (old, new)) and old != new)


@torch.no_grad()
def test_an_imported_model_gets_a_bilinear_score() -> None:
    config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=4, vocab_size=31, n_positions=16)
    model = from_hf(transformers.GPT2LMHeadModel(config).eval())
    other, change = replace_scorer(model, "multiplicative")
    assert (model(IDS).logits - other(IDS).logits).abs().max() < 1e-6
    assert change.new == [f"model.decoder.layers.{layer}.attention.scorer.weight" for layer in range(2)]
    assert not change.dropped


def test_heads_of_two_widths_start_as_near_as_each_can() -> None:
    own = {"architecture": "encoder-decoder", "num_decoder_attention_heads": 2, "position": "none"}
    model = train_a_little(AttnKitForSeq2SeqLM(AttnKitConfig(**SIZES, **own)))
    other, change = replace_scorer(model, "gaussian")
    options = [next(iter(entry.values())) for entry in other.config.layer_scorers]
    assert options == [scorers["gaussian"].nearest_to_scaled_dot(width) for width in (6, 6, 6, 12, 12, 12)]
    assert max(change.score_difference.values()) < 1


@torch.no_grad()
def test_a_layer_alone_is_changed_where_all_have_options() -> None:
    fields = {"position": "none", "scorer": "gaussian", "scorer_options": {"width": "fixed"}}
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES, **fields))
    other, _ = replace_scorer(model, "dot", layers=[0])
    assert other.config.scorer_options is None
    assert other.config.scorer_of_layer(1) == ("gaussian", {"width": "fixed"})


@pytest.mark.parametrize("name", sorted(scorers))
def test_every_scorer_takes_the_place_of_another(name: str) -> None:
    model = train_a_little(AttnKitForCausalLM(AttnKitConfig(**SIZES, position="none", scorer="scaled_dot")))
    other, change = replace_scorer(model, name)
    assert other(IDS).logits.isfinite().all()
    assert set(change.carried) | set(change.new) == set(other.state_dict())
    back, undone = replace_scorer(other, "scaled_dot")
    assert undone.dropped == change.new
    if not change.rescaled:
        assert torch.equal(back(IDS).logits, model(IDS).logits)


def test_a_gaussian_starts_nearer_than_by_its_own_defaults() -> None:
    model = train_a_little(AttnKitForCausalLM(AttnKitConfig(**SIZES)))
    _, near = replace_scorer(model, "gaussian")
    _, far = replace_scorer(model, "gaussian", scorer_options={"initial_width": 1.0})
    assert all(near.score_difference[depth] < far.score_difference[depth] for depth in range(3))
    assert all(0 < difference < 1 for difference in near.score_difference.values())


@torch.no_grad()
def test_some_layers_only() -> None:
    model = train_a_little(AttnKitForCausalLM(AttnKitConfig(**SIZES)))
    other, change = replace_scorer(model, "cosine", layers=[1])
    assert [type(layer.attention.scorer) for layer in other.model.decoder.layers] == [
        scorers[name] for name in ("scaled_dot", "cosine", "scaled_dot")
    ]
    assert list(change.score_difference) == [1]
    for layers, said in (([3], r"\[3\]"), (["0"], r"\['0'\]"), ([], r"\[\]"), (0, "0"), ([0.0], r"\[0.0\]")):
        with pytest.raises(UsageError, match=rf"layers {said} do not exist: the model has 3"):
            replace_scorer(model, "cosine", layers=layers)
    with pytest.raises(UsageError, match="GPT2Model is no model of attnkit: make one"):
        replace_scorer(transformers.GPT2Model(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2)), "cosine")


def test_what_is_no_scorer_stays() -> None:
    """How texts are generated, what learns, and the backend where it can compute the new score too."""
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES, attn_implementation="eager"))
    model.generation_config.num_beams = 3
    model.lm_head.requires_grad_(False)
    other, _ = replace_scorer(model, "additive")
    assert other.generation_config.to_dict() == model.generation_config.to_dict()
    assert not other.lm_head.weight.requires_grad
    assert other.model.decoder.layers[0].attention.scorer.weight.requires_grad
    assert other.config._attn_implementation == "eager"
    fused, _ = replace_scorer(AttnKitForCausalLM(AttnKitConfig(**SIZES, attn_implementation="sdpa")), "additive")
    assert fused.config._attn_implementation == "pairwise"


def test_cross_attention_keeps_its_scorer() -> None:
    config = AttnKitConfig(**SIZES, architecture="encoder-decoder", scorer="gaussian", pad_token_id=0)
    model = train_a_little(AttnKitForSeq2SeqLM(config))
    other, change = replace_scorer(model, "dot")
    assert other.config.cross_scorer == "gaussian"
    name = "model.decoder.layers.0.cross_attention.scorer.weight"
    assert name in change.carried
    assert torch.equal(model.get_parameter(name), other.get_parameter(name))


def test_the_original_is_left_alone() -> None:
    model = train_a_little(AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer="dot")))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    replace_scorer(model, "multiplicative")
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", sorted(scorers))
@pytest.mark.parametrize("num_positions", [1, 7])
def test_a_model_of_few_positions_gets_another_scorer(name: str, num_positions: int) -> None:
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES, position="none", max_position_embeddings=num_positions))
    _, change = replace_scorer(model, name)
    assert all(difference >= 0 for difference in change.score_difference.values())
