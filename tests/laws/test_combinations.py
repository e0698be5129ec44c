"""The laws of the layer for combinations of parts of all families at once, generated from the registries: each pair of
choices that a configuration accepts meets in some of them."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from parts import (
    CHOICES,
    FUSED,
    Combination,
    Part,
    Use,
    attend,
    backends_for,
    covering_array,
    each_once,
    pairs_of,
    products,
    variants,
)

from attnkit.attention import normalizers, scorers
from attnkit.attention.choice import FASTEST_FIRST
from attnkit.attention.patterns import WeighingPattern
from attnkit.testing.layers import outputs_and_gradients, same

SCORERS = variants("scorer")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

of_each_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=str)


def rows(scorer: Part, *, fused: bool = False) -> list[Combination]:
    """The combinations with one scorer; `fused` for the laws of backends other than eager."""
    found = [row for row in covering_array() if row.scorer == scorer]
    return [row.fused(turn) for turn, row in enumerate(found, SCORERS.index(scorer))] if fused else found


def uses(scorer: Part, *, fused: bool = False) -> Iterator[Use]:
    """The layers of the combinations, each once."""
    yield from dict.fromkeys(use for row in rows(scorer, fused=fused) for use in row.uses())


def test_every_pair_of_choices_meets_in_a_combination_or_is_refused_with_a_reason() -> None:
    met = {pair for row in covering_array() for pair in pairs_of(row)}
    met_on_backends = {pair for scorer in SCORERS for row in rows(scorer, fused=True) for pair in pairs_of(row)}
    reasons = ("order enters twice", "makes none", "needs num_key_value_heads equal to num_attention_heads")
    for one, other in itertools.combinations(CHOICES, 2):
        for pair in itertools.product(*([(key, value) for value in CHOICES[key]] for key in (one, other))):
            problem = None if pair in met else Combination(**dict(pair)).problem() or "accepted"
            assert problem is None or any(reason in problem for reason in reasons), (pair, problem)
            fused = all(value in FUSED.get(key, [value]) for key, value in pair)
            assert pair in met_on_backends or problem is not None or not fused, pair


@of_each_scorer
def test_forbidden_combinations_are_found_when_the_configuration_is_built(scorer: Part) -> None:
    """A backend that cannot compute the parts is refused in one line that names one which can."""
    for row in [*rows(scorer), *rows(scorer, fused=True)]:
        assert row.problem() is None, row
        works = ["eager", *backends_for(scorer=row.scorer, normalizer=row.normalizer, pattern=row.pattern)]
        for backend in ("sdpa", "pairwise", "flex_attention", "flash_attention_2", "paged|eager", "paged|sdpa"):
            problem = row.problem(backend)
            if backend in works:
                assert problem is None, problem
            elif problem is not None or backend != "flex_attention":
                fastest = next(name for name in FASTEST_FIRST if name in works)
                assert f"attn_implementation {backend!r}: " in problem, problem
                assert f"use {fastest!r}" in problem, problem


@of_each_scorer
def test_backends_compute_the_definition(scorer: Part) -> None:
    for use in uses(scorer, fused=True):
        compare_backends(use, dtype=torch.float64, tolerance=1e-9)
        compare_backends(use, dtype=torch.float32, tolerance=1e-5)


def compare_backends(use: Use, *, dtype: torch.dtype, tolerance: float) -> None:
    """Values and all gradients, without and with padding."""
    layer, inputs = use.build(dtype).eval(), use.inputs(dtype)
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[1, -2:] = False
    for mask in (None, padding):
        definition, *others = (
            outputs_and_gradients(layer, backend=attend(name), mask=mask, **inputs) for name in use.backends()
        )
        for backend, ours in zip(use.backends()[1:], others, strict=True):
            for tensor, expected in zip(ours, definition, strict=True):
                size = expected.abs().max().clamp(min=1)  # gradients are sums in which larger numbers cancel
                same(tensor / size, expected / size, f"{use} on {backend} in {dtype}", tolerance)


@torch.no_grad()
@of_each_scorer
def test_half_precision_is_as_good_as_that_of_scaled_dot(scorer: Part) -> None:
    """The error of outputs in bf16 against fp32 on the same numbers, over all combinations, is at most twice that of
    scaled dot."""

    def error(use: Use, backend: str) -> float:
        layer = use.build(torch.float32).eval()
        for parameter in layer.parameters():
            parameter.copy_(parameter.bfloat16())
        inputs = use.inputs(torch.bfloat16)
        reference, _ = layer(**{key: states.float() for key, states in inputs.items()})
        output, _ = layer.bfloat16()(**inputs, backend=attend(backend))
        return (output.float() - reference).square().mean().sqrt().item()

    for backend in ("eager", "sdpa", "pairwise"):
        chosen = [use for use in uses(scorer, fused=True) if backend in use.backends()]
        plain = [use._replace(parts=use.parts._replace(scorer=Part("scaled_dot"))) for use in chosen]
        ours, expected = (sum(error(use, backend) for use in each) for each in (chosen, plain))
        assert ours <= 2 * expected, backend


@of_each_scorer
def test_what_may_not_be_seen_has_no_influence(scorer: Part) -> None:
    for use in itertools.chain(uses(scorer), uses(scorer, fused=True)):
        compare_unseen(use)


@torch.no_grad()
def compare_unseen(use: Use) -> None:
    """Outputs before and after a change of later tokens, or of padding."""
    mask = None if use.causal else (torch.arange(7) < 4).expand(2, -1)
    layer, inputs, changed = use.build().eval(), use.inputs(), use.inputs(changed_from=4)
    seen = slice(None) if use.cross else slice(4)
    for backend in use.backends():
        before, after = (layer(**given, mask=mask, backend=attend(backend))[0] for given in (inputs, changed))
        same(before[:, seen], after[:, seen], f"{use} on {backend}: what may not be seen has an influence", 1e-12)


@pytest.mark.slow
@of_each_scorer
def test_backends_and_masks_are_right_for_every_scorer_pattern_and_position(scorer: Part) -> None:
    """All three at once, where the array has each two of them."""
    for turn, row in enumerate(products(scorer)):
        for use in (use for each in (row, row.fused(turn)) for use in each.uses()):
            compare_backends(use, dtype=torch.float64, tolerance=1e-9)
            compare_unseen(use)


@of_each_scorer
def test_a_query_without_keys_has_output_zero_and_a_finite_gradient(scorer: Part) -> None:
    for use, dtype in itertools.product(uses(scorer), DTYPES):
        layer, inputs = use.build(dtype).train(), use.inputs(dtype)
        mask = torch.ones(2, 1, inputs["states"].shape[1], 7, dtype=torch.bool)
        mask[1, :, 2:4] = False
        for backend in use.backends():
            output, *gradients = outputs_and_gradients(layer, backend=attend(backend), mask=mask, **inputs)
            assert (output[1, 2:4] == layer.o_proj.bias).all(), f"{use} on {backend} in {dtype}"
            assert all(tensor.isfinite().all() for tensor in (output, *gradients)), f"{use} on {backend} in {dtype}"


@of_each_scorer
def test_weights_are_what_the_normalizer_promises(scorer: Part) -> None:
    for use in uses(scorer):
        layer, inputs = use.build().train(), use.inputs()
        if isinstance(layer.pattern, WeighingPattern):
            continue
        _, weights = layer(**inputs)
        allowed = layer.own_mask(inputs["states"], inputs.get("source"), mask=None, positions=None, cache=None)
        has_keys = 1.0 if allowed is None else allowed.any(-1).double()
        assert (weights >= 0).all(), use
        if layer.normalizer.cancels_query_term:  # they compete for a whole
            same(weights.sum(-1), torch.ones_like(weights[..., 0]) * has_keys, f"{use}: sums of weights")
        elif layer.normalizer.fused:  # a sink takes the rest
            assert (weights.sum(-1) < 1).all(), use


@of_each_scorer
def test_every_parameter_learns_or_changes_nothing(scorer: Part) -> None:
    """A parameter without a gradient is one that the scorer says to have none, or of a projection that is not read."""
    for use in uses(scorer):
        layer, inputs = use.build().train(), use.inputs(size=0.1)  # so that no weight is 0
        output, _ = layer(**inputs)
        loss = (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
        if isinstance(layer.normalizer, normalizers["stochastic"]):  # the draw itself has no gradient
            loss = loss + layer.normalizer.policy_loss(torch.tensor([1.0, 2.0]).double())
        loss.backward()
        definition, _ = layer.eval()(**inputs)
        for key, parameter in layer.named_parameters():
            if parameter.grad is not None and parameter.grad.abs().max() > 1e-13:
                continue
            module, _, name = key.partition(".")
            said = layer.normalizer.cancels_query_term and name in layer.scorer.without_gradient
            assert said if module == "scorer" else module in ("q_proj", "k_proj"), f"{use}: {key} gets no gradient"
            with torch.no_grad():
                parameter += 0.01 * torch.randn_like(parameter)
            same(layer(**inputs)[0], definition, f"{use}: {key} gets no gradient, but it counts")


@torch.no_grad()
@of_each_scorer
def test_without_positions_order_has_no_meaning(scorer: Part) -> None:
    if scorers[scorer.name].knows_order or scorer.name == "uniform":  # of equal scores "hard" takes the first
        return
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    orderless = {"position": Part("none"), "pattern": Part("full"), "architecture": "encoder"}
    for row in dict.fromkeys(row._replace(**orderless) for row in rows(scorer)):
        (use,) = row.uses()
        layer, states = use.build().eval(), use.inputs()["states"]
        same(layer(states[:, order])[0], layer(states)[0][:, order], f"{use}: order")


@torch.no_grad()
@of_each_scorer
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_definition(scorer: Part) -> None:
    """Values, masks and biases of every row of a batch, with the kernel's formula as torch has it in plain operations:
    on a CPU it has no backward."""
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[1, -2:] = False
    for use in uses(scorer, fused=True):
        layer, inputs = use.build().eval(), use.inputs()
        if use.parts.problem("flex_attention") is not None:
            continue
        for mask in (None, padding):
            with torch.compiler.set_stance("force_eager"):
                ours, _ = layer(**inputs, mask=mask, backend=attend("flex_attention"))
            same(ours, layer(**inputs, mask=mask)[0], f"{use} on flex_attention")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inside the compiler
@pytest.mark.parametrize(
    ("compiler", "tolerance"), [("eager", 1e-9), pytest.param("inductor", 1e-6, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("row", each_once(), ids=str)
def test_a_layer_compiles_to_one_graph(row: Combination, compiler: str, tolerance: float) -> None:
    """On one of its backends; slowly also to code, whose sines of fp32, of rotations, are its own."""
    for use in row.uses():
        torch._dynamo.reset()
        layer, backends = use.build().eval(), use.backends()
        backend = backends[each_once().index(row) % len(backends)]
        inputs = use.inputs() | {"backend": attend(backend)}
        compiled = torch.compile(layer, fullgraph=True, backend=compiler)
        same(compiled(**inputs)[0], layer(**inputs)[0], f"{use} on {backend} under torch.compile", tolerance)
