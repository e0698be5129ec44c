"""What single positions promise beyond the laws of all."""

import math

import pytest
import torch
from parts import attend
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from attnkit.attention import Attention, normalizers, positions

SHAPE = {
    "hidden_size": 24,
    "head_dim": 8,
    "num_heads": 3,
    "num_key_value_heads": 3,
    "max_positions": 16,
    "causal": True,
}


@pytest.mark.parametrize("num_tokens", [5, 16, 40])
@pytest.mark.parametrize("scaling", ["default", "linear", "dynamic", "yarn", "llama3"])
def test_rope_turns_as_that_of_transformers(scaling: str, num_tokens: int) -> None:
    factor = 1.0 if scaling == "default" else 2.5
    parameters = {"rope_type": scaling, "rope_theta": 10000.0, "factor": factor}
    if scaling == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, max_position_embeddings=16, rope_parameters=parameters)
    places = torch.arange(num_tokens)[None]
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1, num_tokens, 24), places)
    ours = positions["rope"](**SHAPE, scaling=scaling, factor=factor).rotation(places)
    for tensor, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(tensor[:, 0], reference, rtol=1e-6, atol=1e-6)


def test_rope_refuses_what_it_cannot_turn_by() -> None:
    with pytest.raises(ValueError, match=r"position option factor must be at least 1, not 0\.5"):
        positions["rope"](**SHAPE, scaling="linear", factor=0.5)
    with pytest.raises(ValueError, match="position option beta_fast is for scaling yarn, not 'llama3'"):
        positions["rope"](**SHAPE, scaling="llama3", beta_fast=2.0)
    with pytest.raises(ValueError, match=r"position option high_freq_factor must be more than 9\.0, not 4\.0"):
        positions["rope"](**SHAPE, scaling="llama3", low_freq_factor=9.0)
    with pytest.raises(ValueError, match="head_dim 7 is odd"):
        positions["rope"](**(SHAPE | {"head_dim": 7}))


def test_sinusoids_are_those_of_their_formula() -> None:
    ours = positions["sinusoidal"](**SHAPE).embed(torch.tensor([[0, 1, 15]]))
    for row, place in zip(ours[0], (0, 1, 15), strict=True):
        for j in range(12):
            angle = place / 10000 ** (2 * j / 24)
            assert row[2 * j : 2 * j + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_alibi_is_exact_in_half_precision() -> None:
    """Distances at late places, where one column of bf16 would be off by up to 16."""
    alibi = positions["alibi"](**(SHAPE | {"num_heads": 1, "num_key_value_heads": 1}))
    places = torch.arange(8100, 8192)[None]
    query = alibi.map_query(torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16), places[:, -1:])
    key = alibi.map_key(places, torch.bfloat16)
    scores = (query.float() @ key.float().mT)[0, 0, 0]
    torch.testing.assert_close(scores - scores[-1], -(2.0**-8) * (8191 - places[0]), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scorer", ["scaled_dot", "additive"])
@pytest.mark.parametrize("normalizer", ["softmax", "softmax1"])
def test_half_precision_has_its_digits_at_the_end_of_a_long_text(
    scorer: str, normalizer: str, dtype: torch.dtype
) -> None:
    """Whatever says the order: the error at late places is at most twice that without positions at all."""
    places = torch.arange(8000, 8040)[None]

    def error(position: str, causal: bool, backend: str) -> float:
        torch.manual_seed(0)
        parts = {"scorer": scorer, "normalizer": normalizer, "position": position}
        layer = Attention(24, 3, causal=causal, max_positions=8192, **parts).to(dtype).double().eval()
        states = torch.randn(2, 40, 24).to(dtype)
        reference, _ = layer(states.double(), positions=places)
        output, _ = layer.to(dtype)(states, positions=places, backend=attend(backend))
        return ((output.double() - reference).norm() / reference.norm()).item()

    compares = [name for name, position in positions.items() if scorer == "scaled_dot" or not position.needs_comparison]
    in_layers = [name for name in compares if positions[name].acts_on_scores]
    for backend in ("eager", "sdpa" if scorer == "scaled_dot" else "pairwise"):
        for causal in (True, False):
            allowed = 2 * error("none", causal, backend)
            assert {name: found for name in in_layers if (found := error(name, causal, backend)) > allowed} == {}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normalizer", sorted(normalizers))
def test_alibi_is_a_penalty_of_distance_whatever_the_normalizer(normalizer: str, causal: bool) -> None:
    torch.manual_seed(0)
    layer = Attention(24, 3, scorer="dot", normalizer=normalizer, position="alibi", causal=causal).double().eval()
    states = torch.randn(2, 7, 24).double()
    query, key = (layer.split_heads(project(states)) for project in (layer.q_proj, layer.k_proj))
    slopes = layer.position.slopes(states.dtype, states.device)
    places = torch.arange(7)
    scores = query @ key.mT - slopes * (places[:, None] - places).abs()
    allowed = torch.ones(7, 7, dtype=torch.bool)
    allowed = (allowed.tril() if causal else allowed).expand_as(scores)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    torch.testing.assert_close(layer(states)[1], layer.normalizer(scores, allowed), rtol=0, atol=1e-12)
