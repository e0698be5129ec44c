"""Compiled tiles of `pairwise` compute what others do, whichever of a mask, a bias and dropout they meet first."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from parts import Part, attend, build, tokens

from attnkit.attention import pairwise

CASES = {
    "plain": {},
    "causal": {"causal": True},
    "bias": {"position": Part("t5")},
    "dropout": {"dropout": 0.5},
}


@pytest.fixture(autouse=True)
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few the pairs are."""
    monkeypatch.setattr(pairwise, "COMPILED_ELEMENTS", 0)
    pairwise.tile_function.cache_clear()
    yield
    pairwise.tile_function.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside the compiler
@pytest.mark.parametrize("order", [next(permutations(CASES)), tuple(CASES)[::-1]], ids=",".join)
def test_what_a_tile_meets_first_is_not_what_it_is_compiled_for(order: tuple[str, ...]) -> None:
    for name in order:
        found = []
        for elements in (0, 2**60):
            pairwise.COMPILED_ELEMENTS = elements
            torch.manual_seed(0)
            layer = build(scorer=Part("additive"), **CASES[name]).train()
            states = tokens(2, 256).requires_grad_()
            output, _ = layer(states, backend=attend("pairwise"))
            output.square().sum().backward()
            found.append([output, states.grad, *(parameter.grad for parameter in layer.scorer.parameters())])
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(
                ours, expected, rtol=1e-6, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}"
            )
