"""Laws of single scorers: each is the formula of its paper, and each parameter learns."""

from collections.abc import Callable

import literal
import pytest
import torch
from parts import Part, variants

import attnkit
from attnkit.attention import scorers
from attnkit.attention.scorers.maps import with_column, with_length, with_square
from attnkit.testing.layers import build_scorer, maps_keep_the_type, scores_go_with_their_tokens

SCORERS = variants("scorer")


@pytest.mark.parametrize("part", SCORERS, ids=str)
def test_score_is_the_formula_of_its_paper(part: Part) -> None:
    scorer = build_scorer(part.name, dict(part.options))
    query, key = torch.randn(2, 4, 3, 6).double(), torch.randn(2, 2, 5, 6).double()
    query_positions, key_positions = torch.tensor([[4, 5, 9]]), torch.tensor([[1, 2, 4, 7, 8]])
    formula = getattr(literal, part.name)
    expected = [
        formula(
            scorer,
            query[b, h, a],
            key[b, h // 2, c],
            h=h,
            g=h // 2,
            i=query_positions[0, a].item(),
            j=key_positions[0, c].item(),
        )
        for b in range(2)
        for h in range(4)
        for a in range(3)
        for c in range(5)
    ]
    score = scorer(query, key, query_positions, key_positions)
    assert score.shape == (2, 4, 3, 5)
    torch.testing.assert_close(score, torch.stack(expected).view_as(score).to(score), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("part", SCORERS, ids=str)
def test_scores_start_neither_flat_nor_saturated(part: Part) -> None:
    """Weights over 512 random keys spread over at least 30 of them, as those of scaled dot (312) and unlike those of a
    plain dot product, whose formula leaves nothing to start."""
    scorer = scorers[part.name](num_heads=2, head_dim=64, max_positions=512, **dict(part.options))
    query, key = torch.randn(2, 2, 64, 64), torch.randn(2, 2, 512, 64)
    log_weights = torch.log_softmax(scorer(query, key), dim=-1)
    perplexity = -(log_weights.exp() * log_weights).sum(-1)
    if part.name != "dot":
        assert perplexity.exp().mean() > 30


@pytest.mark.parametrize("part", SCORERS, ids=str)
def test_scores_go_with_their_tokens_and_keep_the_type(part: Part) -> None:
    scores_go_with_their_tokens(part.name, dict(part.options))
    maps_keep_the_type(part.name, dict(part.options))


def test_worked_example_of_one_query() -> None:
    query = torch.tensor([1.0, -1, 2]).double().view(1, 1, 1, 3)
    key = torch.tensor([[2.0, 1, -2], [1, 2, -1], [3, -2, 0]]).double().view(1, 1, 3, 3)
    value = torch.tensor([[2.0, 3], [1, 2], [3, 1]]).double()

    def output(name: str, normalizer: str = "softmax", **options: object) -> list[float]:
        scorer = scorers[name](num_heads=1, head_dim=3, max_positions=8, **options).double()
        if name == "additive":
            with torch.no_grad():
                scorer.query_weight.copy_(torch.eye(3))
                scorer.key_weight.copy_(torch.eye(3))
                scorer.weight.fill_(1)
        weights = attnkit.normalizers[normalizer](num_heads=1)(scorer(query, key), None)
        return [round(number, 6) for number in (weights[0, 0, 0] @ value).tolist()]

    scores = scorers["dot"](num_heads=1, head_dim=3, max_positions=8)(query, key)
    assert scores.flatten().tolist() == [-3, -3, 5]
    weights = attnkit.normalizers["softmax"](num_heads=1)(scores, None).flatten().tolist()
    assert [round(number, 6) for number in weights] == [0.000335, 0.000335, 0.999330]
    assert output("dot") == [2.998994, 1.001006]
    assert output("scaled_dot") == [2.970979, 1.029021]
    assert output("multiplicative") == [2.970979, 1.029021]
    assert output("cosine", temperature="fixed", initial_temperature=1.0) == [2.380811, 1.638407]
    assert output("additive") == [1.459045, 2.004112]
    assert output("uniform") == [2.0, 2.0]
    assert output("dot", "hard") == [3.0, 1.0]
    assert output("dot", "sparsemax") == [3.0, 1.0]
    assert output("dot", "softmax1") == [2.978936, 0.994311]


def test_worked_example_of_self_attention() -> None:
    states = torch.tensor([[1.0, 0, 1], [0, 2, 1], [1, 0, 1], [0, 2, 1]]).double()
    key_map = torch.tensor([[0.0, 1, 0, 1], [0, 1, 1, 1], [1, 0, 0, 0]]).double()
    query_map = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 1, 1]]).double()
    value_map = torch.tensor([[0.0, 0, 1, 1], [2, 3, 0, 1]]).double()
    key, query, value = ((matrix @ states).T for matrix in (key_map, query_map, value_map))
    assert key.T.tolist() == [[0, 4, 2], [1, 4, 3], [1, 0, 1]]
    assert query.T.tolist() == [[1, 2, 2], [0, 2, 1], [2, 2, 3]]
    assert value.T.tolist() == [[1, 2, 2], [2, 8, 6]]
    assert (query @ key.T).tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    expected = {
        "dot": [[1.936621, 1.999994, 1.999705], [6.683105, 7.963992, 7.759892]],
        "scaled_dot": [[1.863874, 1.999110, 1.992555], [6.319371, 7.814124, 7.479636]],
    }
    for name, outputs in expected.items():
        scorer = scorers[name](num_heads=1, head_dim=3, max_positions=8)
        weights = torch.softmax(scorer(query[None, None], key[None, None]), -1)[0, 0]
        torch.testing.assert_close((weights @ value).T, torch.tensor(outputs).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("part", SCORERS, ids=str)
def test_vectors_of_length_0_have_finite_scores_and_gradients(part: Part, dtype: torch.dtype) -> None:
    scorer = build_scorer(part.name, dict(part.options)).to(dtype)
    query, key = (torch.zeros(1, heads, 3, 6, dtype=dtype, requires_grad=True) for heads in (4, 2))
    scores = scorer(query, key)
    (scores.sum() + 0 * (query.sum() + key.sum())).backward()
    gradients = [tensor.grad for tensor in (query, key, *scorer.parameters()) if tensor.grad is not None]
    assert all(tensor.isfinite().all() for tensor in (scores, *gradients))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sigma", [1.0, 256.0])
def test_static_gaussian_is_no_small_difference_of_large_squares(dtype: torch.dtype, sigma: float) -> None:
    """At late places too, and beyond those that the model was made for."""
    scorer = scorers["static"](
        num_heads=1, head_dim=64, max_positions=2048, form="gaussian", initial_sigma=sigma
    ).bfloat16()
    places = torch.arange(1900, 2200)[None]
    query, key = torch.zeros(2, 1, 1, 300, 64, dtype=dtype)
    scores = scorer.map_query(query, places).double() @ scorer.map_key(key, places).double().mT
    distance = (places.mT - places) / scorer.log_sigma.double().exp()
    exact = torch.softmax(-0.5 * distance.square(), dim=-1)
    torch.testing.assert_close(torch.softmax(scores[0, 0], dim=-1), exact, rtol=0, atol=1e-5)


def test_unknown_scorer_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown scorer 'aditive': did you mean 'additive'"):
        scorers["aditive"]


def test_multiplicative_starts_as_scaled_dot() -> None:
    query, key = torch.randn(1, 4, 3, 6), torch.randn(1, 4, 5, 6)
    shape = {"num_heads": 4, "head_dim": 6, "max_positions": 8}
    for name in ("multiplicative", "biaffine"):
        torch.testing.assert_close(scorers[name](**shape)(query, key), scorers["scaled_dot"](**shape)(query, key))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch, in its own forward mode
@pytest.mark.parametrize(
    "mapped",
    [
        with_square,
        lambda states: with_length(states, states.square().sum(-1, True)),
        lambda states: with_length(states.transpose(0, 1), states.transpose(0, 1).square().sum((1, 2), True)),
        lambda states: with_column(states, states.square().sum((1, 2), True), constant=-0.5, copies=2),
    ],
)
def test_maps_by_hand_are_the_formula(mapped: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """First and second gradients by differences, and the derivatives of torch.func, in fp64."""
    states = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mapped, states)
    assert torch.autograd.gradgradcheck(mapped, states)
    jacobian = torch.autograd.functional.jacobian(mapped, states)
    torch.testing.assert_close(torch.func.jacfwd(mapped)(states), jacobian)
    torch.testing.assert_close(torch.func.jacrev(mapped)(states), jacobian)
