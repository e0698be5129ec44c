"""Patterns against the procedures of their papers, written out token by token and independently of the masks."""

import pytest
import torch
from parts import Part, attend, backends_for, build, tokens
from torch import Tensor

from attnkit.attention import Attention


def projected(layer: Attention, states: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query [H, D] of one token and keys and values [H, n, D] of others."""

    def split(features: Tensor) -> Tensor:
        return features.view(len(features), 4, 6).transpose(0, 1)

    query = split(layer.q_proj(states[None]))[:, 0]
    return query, split(layer.k_proj(source)), split(layer.v_proj(source))


def attend_to(layer: Attention, states: Tensor, source: Tensor, factors: Tensor | None = None) -> Tensor:
    """Scaled dot product attention of one token [24] to the tokens [n, 24], its weights [H, n] times the factors."""
    query, key, value = projected(layer, states, source)
    output = []
    for head in range(4):
        weights = torch.softmax(torch.stack([query[head] @ k for k in key[head]]) / 6**0.5, dim=0)
        weights = weights if factors is None else weights * factors[head]
        output.append(sum(weight * v for weight, v in zip(weights, value[head], strict=True)))
    return layer.o_proj(torch.cat(output))


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_local_p_is_a_gaussian_around_a_predicted_place(causal: bool) -> None:
    layer = build(pattern=Part("local_p", (("window", 3),)), causal=causal).eval()
    row = tokens()[0]
    for i, output in enumerate(layer(row[None])[0][0]):
        source = row[: i + 1] if causal else row
        query, _, _ = projected(layer, row[i], source)
        factors = []
        for head in range(4):
            hidden = torch.tanh(layer.pattern.weight[head].T @ query[head])
            place = (len(source) - 1) / (1 + torch.exp(-layer.pattern.vector[head] @ hidden))
            factors.append(torch.stack([torch.exp(-((j - place) ** 2) / (2 * 1.5**2)) for j in range(len(source))]))
        torch.testing.assert_close(output, attend_to(layer, row[i], source, torch.stack(factors)), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_tiers_are_the_own_block_and_the_last_token_of_each_block_before() -> None:
    pattern = Part("tiered", (("block_size", 3),))
    layer, row = build(pattern=pattern, causal=True).eval(), tokens(1, 11)[0]
    for backend in ["eager", *backends_for(pattern=pattern)]:
        output = layer(row[None], backend=attend(backend))[0][0]
        summaries: list[Tensor] = []
        for start in range(0, 11, 3):
            block = row[start : start + 3]
            for i in range(len(block)):
                expected = attend_to(layer, block[i], torch.stack([*summaries, *block[: i + 1]]))
                torch.testing.assert_close(output[start + i], expected, rtol=1e-9, atol=1e-9)
            summaries.append(block[-1])


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 2, 3, 5])
def test_segments_are_a_recurrence_with_the_states_of_the_layer_below(memory: int) -> None:
    """Two layers, segment by segment: a layer's memory is what the layer below gave for the tokens before."""
    pattern = Part("segment", (("length", 3), ("memory", memory)))
    layers = [build(pattern=pattern, causal=True).eval() for _ in range(2)]
    row = tokens(1, 10)[0]
    in_one_pass = row
    for layer in layers:
        in_one_pass = layer(in_one_pass[None])[0][0]
    remembered = [row[:0], row[:0]]
    for start in range(0, 10, 3):
        states = row[start : start + 3]
        for depth, layer in enumerate(layers):
            past = remembered[depth][len(remembered[depth]) - min(memory, len(remembered[depth])) :]
            remembered[depth] = torch.cat([past, states])
            states = torch.stack(
                [attend_to(layer, states[i], torch.cat([past, states[: i + 1]])) for i in range(len(states))]
            )
        torch.testing.assert_close(in_one_pass[start : start + 3], states, rtol=1e-9, atol=1e-9)
