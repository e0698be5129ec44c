"""Laws of single parts in an attention layer, and what only some of them promise."""

import itertools
from collections.abc import Callable

import pytest
import torch
from parts import Part, attend, backends_for, build, is_pairwise, tokens, variants

from attnkit.attention import Attention, PairwiseScorer, Scorer
from attnkit.attention.pairwise import tiled_attention
from attnkit.testing.layers import outputs_and_gradients

PATTERNS, SCORERS = variants("pattern"), variants("scorer")


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_patterns_leave_out_what_their_formula_says(pattern: Part) -> None:
    """At these sizes each pattern but the full ones forbids some pair and lets every token meet itself."""
    layer = build(pattern=pattern)
    place = torch.arange(12)
    allowed = layer.pattern.allowed(place[:, None], place).expand(12, 12)
    assert allowed.diagonal().all()
    assert allowed.all() == (pattern.name in ("full", "local_p"))


@pytest.mark.parametrize("backend", ["eager", "pairwise"])
def test_dropout_drops_the_same_weights_when_it_computes_again(backend: str) -> None:
    """The gradient under dropout is that of the very function that was computed: checked by differences in fp64."""
    layer = build(scorer=Part("additive"), dropout=0.4, causal=True).train()
    states = tokens(1, 5)
    direction = tokens(1, 5).flip(1)

    def value(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        output, _ = layer(x, backend=attend(backend))
        return (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum()

    moved = states.clone().requires_grad_()
    value(moved).backward()
    difference = (value(states + 1e-6 * direction) - value(states - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((moved.grad * direction).sum(), difference, rtol=1e-6, atol=1e-6)


def test_tiles_beyond_one_agree_with_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, ragged ends, padding and a sink, at lengths around the side of a tile."""
    monkeypatch.setattr("attnkit.attention.pairwise.TILE_SIDE", 16)
    for num_tokens in (15, 16, 17, 33, 48):
        for normalizer in ("softmax", "sink"):
            layer = build(
                scorer=Part("additive"), normalizer=Part(normalizer), position=Part("transformer_xl"), causal=True
            ).eval()
            states = tokens(2, num_tokens)
            mask = torch.ones(2, num_tokens, dtype=torch.bool)
            mask[1, : num_tokens // 2] = False
            for padding_mask in (None, mask):
                ours = outputs_and_gradients(layer, states, attend("pairwise"), mask=padding_mask)
                definition = outputs_and_gradients(layer, states, attend("eager"), mask=padding_mask)
                for tensor, expected in zip(ours, definition, strict=True):
                    torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scorer", [part for part in SCORERS if is_pairwise(part)], ids=str)
@pytest.mark.parametrize("size", [1.0, 5.0, 11.0])
def test_tiles_are_exact_where_a_network_saturates(scorer: Part, size: float) -> None:
    """In fp32, scores and gradients of large activations of both signs, against the definition in fp64."""
    layer = build(scorer=scorer, dtype=torch.float32)
    query, key, value = size * torch.randn(3, 1, 4, 40, layer.scorer.width)
    rest = {"allowed": None, "causal": True, "bias": None, "sink": None, "dropout": 0.0}

    def run(dtype: torch.dtype, attention: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        inputs = [states.to(dtype).requires_grad_() for states in (query, key, value / size)]
        output = attention(layer.scorer.to(dtype), *inputs)
        return [output.detach(), *torch.autograd.grad(output.sum(), inputs)]

    def definition(scorer: Scorer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        weight = scorer.weight[:, None, None]
        scores = (torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) * weight).sum(-1)
        later = torch.ones(40, 40, dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ value

    ours = run(
        torch.float32, lambda scorer, *states: tiled_attention(scorer, *states, scaling=1.0, distance_width=0, **rest)
    )
    for tensor, expected in zip(ours, run(torch.float64, definition), strict=True):
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-5)


def test_scorers_of_one_class_share_tiles_only_where_their_formulas_are_one() -> None:
    """What a scorer holds besides numbers, names and parameters tells it apart, and its buffers reach the tiles."""

    class Weighted(PairwiseScorer):
        def __init__(self, factors: list[float]) -> None:
            super().__init__(num_heads=1, head_dim=2, max_positions=8)
            self.factors = factors
            self.register_buffer("weight", torch.tensor(factors).double())

        def pair(self, mapped_query: torch.Tensor, mapped_key: torch.Tensor) -> torch.Tensor:
            difference = mapped_query.unsqueeze(-2) - mapped_key.unsqueeze(-3)
            return -(difference.abs() * self.weight).sum(-1) * self.factors[0]

    for factors in ([1.0, 2.0], [3.0, 1.0]):
        layer = build(hidden_size=2, num_heads=1).eval()
        layer.scorer = Weighted(factors)
        states = tokens(2, 5, 2)
        for ours, expected in zip(
            *(outputs_and_gradients(layer, states, attend(name)) for name in ("pairwise", "eager")), strict=True
        ):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sharing", ["separate", "key_value", "query_key", "all"])
def test_sharing_projections(sharing: str) -> None:
    layer = build(sharing=sharing, attend_to_self=False).eval()
    output, weights = layer(tokens())
    assert weights.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    assert output.shape == (2, 7, 24)
    num_projections = {"separate": 4, "key_value": 3, "query_key": 3, "all": 2}[sharing]
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    assert sum(projection is not None for projection in projections) == num_projections


def test_no_separation_makes_a_wide_head_look_at_itself() -> None:
    """With one projection for queries, keys and values a token's best match is itself, the more so the wider a head."""
    share = {}
    for width in (64, 512):
        layer = Attention(width, 1, sharing="all", bias=False)
        with torch.no_grad():
            torch.nn.init.orthogonal_(layer.q_proj.weight)
            _, weights = layer(torch.nn.functional.layer_norm(torch.randn(1, 64, width), (width,)))
        share[width] = weights.diagonal(dim1=-2, dim2=-1).mean().item()
    assert 0.5 < share[64] < share[512]
    assert share[512] > 0.99


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch, in its own forward mode
def test_tiles_name_the_backend_that_has_the_derivatives_they_have_not() -> None:
    layer, states = build(scorer=Part("additive")), tokens(1, 4)

    def output(x: torch.Tensor) -> torch.Tensor:
        return layer(x, backend=attend("pairwise"))[0]

    with pytest.raises(ValueError, match=r"no transform of torch\.func: use attn_implementation 'eager'"):
        torch.func.jvp(output, (states,), (states,))
    with pytest.raises(ValueError, match=r"no transform of torch\.func"):
        torch.func.vmap(lambda x: output(x[None]))(states)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(states, states)
        with pytest.raises(RuntimeError, match="no forward-mode derivative: use attn_implementation='eager'"):
            output(dual)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_no_rows_and_no_tokens_give_no_outputs(scorer: Part) -> None:
    for backend, shape in itertools.product(["eager", *backends_for(scorer=scorer)], [(0, 5, 24), (2, 0, 24)]):
        for normalizer in ("softmax", "sink"):
            layer = build(scorer=scorer, normalizer=Part(normalizer), causal=True)
            output, states_grad, *gradients = outputs_and_gradients(layer, torch.zeros(shape).double(), attend(backend))
            assert output.shape == states_grad.shape == shape
            assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_a_source_without_tokens_gives_zeros(scorer: Part) -> None:
    for normalizer in variants("normalizer"):
        layer = build(scorer=scorer, normalizer=normalizer)
        for backend in ["eager", *backends_for(scorer=scorer, normalizer=normalizer)]:
            output, _ = layer(tokens(), torch.zeros(2, 0, 24).double(), backend=attend(backend))
            assert (output == layer.o_proj.bias).all(), (backend, normalizer)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_a_gradient_is_the_same_where_it_has_a_gradient_itself(scorer: Part) -> None:
    layer = build(scorer=scorer, causal=True)
    parameters = list(layer.scorer.parameters())
    gradients = []
    for create_graph in (False, True):
        states = tokens().requires_grad_()
        value = layer(states)[0].square().sum()
        gradients.append(
            torch.autograd.grad(value, [states, *parameters], create_graph=create_graph, materialize_grads=True)
        )
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


class Moody(PairwiseScorer):
    """score(q, k) = -m |q - k|₁ / d with an m that is another in training, or set from outside."""

    def __init__(self, **shape: int) -> None:
        super().__init__(**shape)
        self.kept = [1.0]

    def pair(self, mapped_query: torch.Tensor, mapped_key: torch.Tensor) -> torch.Tensor:
        factor = self.kept[0] * (2 if self.training else 1)
        return -factor * (mapped_query.unsqueeze(-2) - mapped_key.unsqueeze(-3)).abs().mean(-1)


def test_tiles_compute_the_score_as_it_is_now() -> None:
    layer = build()
    layer.scorer = Moody(num_heads=4, head_dim=6, max_positions=32)
    for training, kept in ((True, 1.0), (False, 1.0), (False, 3.0)):
        layer.train(training)
        layer.scorer.kept[0] = kept
        torch.testing.assert_close(layer(tokens(), backend=attend("pairwise"))[0], layer(tokens())[0])


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_a_row_that_an_additive_mask_leaves_out_is_zero(scorer: Part) -> None:
    """Whichever number the mask is filled with: -inf, or the lowest finite one as in transformers."""
    layer = build(scorer=scorer)
    for fill, backend in itertools.product(
        (float("-inf"), torch.finfo(torch.float64).min), backends_for(scorer=scorer)
    ):
        mask = torch.zeros(1, 1, 7, 7).double()
        mask[..., 2, :], mask[..., 4, 5:] = fill, fill
        output, _ = layer(tokens(), mask=mask, backend=attend(backend))
        assert (output[:, 2] == layer.o_proj.bias).all(), (fill, backend)
        torch.testing.assert_close(output, layer(tokens(), mask=mask)[0], rtol=1e-9, atol=1e-9)
