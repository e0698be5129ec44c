"""The kernel for mapped queries and keys on CPUs computes what torch's kernel does, where there is one."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from attnkit.attention import Attention
from attnkit.attention.backends import BACKENDS, eager_attention
from attnkit.attention.cpu_kernel import cpu_attention, library, takes

SIZES = [  # queries, keys, width, value width, key-value heads, causal, masked: tiles are whole, cut, one, many
    (384, 384, 65, 64, 4, True, False),
    (301, 301, 5, 17, 2, True, False),
    (300, 517, 130, 33, 1, False, True),
    (7, 100, 1, 64, 4, False, False),
    (200, 200, 64, 64, 4, True, False),
]


@pytest.fixture(autouse=True)
def library_of_its_own() -> Iterator[None]:
    library.cache_clear()
    yield
    library.cache_clear()


def sample(size: tuple[Any, ...], dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
    queries, keys, width, value_width, groups, _, masked = size
    shapes = (2, queries, 4, width), (2, keys, groups, width), (2, keys, groups, value_width)
    states = [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]
    allowed = (torch.rand(2, 1, queries, keys) > 0.3) if masked else None
    if allowed is not None:
        allowed[1, :, 2:4] = False
    return states, allowed


def definition(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
    key, value = (states.repeat_interleave(4 // states.shape[1], dim=1) for states in (key, value))
    may_meet = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    may_meet = may_meet.tril() if causal else may_meet
    may_meet = may_meet if allowed is None else may_meet & allowed
    scores = (0.3 * query @ key.mT).masked_fill(~may_meet, torch.finfo(query.dtype).min)
    return (torch.softmax(scores, dim=-1) * may_meet @ value).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_computes_attention(size: tuple[Any, ...], dtype: torch.dtype) -> None:
    states, allowed = sample(size, dtype)
    assert takes(*states, allowed)
    ours = cpu_attention(*states, allowed, scaling=0.3, causal=size[5])
    expected = definition(*states, allowed, causal=size[5])
    weights = torch.randn_like(expected)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5}[dtype]
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    of_ours, of_expected = (torch.autograd.grad((output * weights).sum(), states) for output in (ours, expected))
    torch.testing.assert_close(of_ours, of_expected, rtol=tolerance, atol=tolerance)


def test_numbers_that_are_none_stay_none() -> None:
    states, _ = sample((9, 9, 5, 4, 4, True, False), torch.float32)
    for number in (float("nan"), float("inf")):
        query = states[0].detach().clone()
        query[0, 0, 5, 0] = number
        output = cpu_attention(query, *states[1:], None, scaling=1.0, causal=True)
        assert output[0, 5, 0].isnan().all()
        assert output[0, :5].isfinite().all()


def test_large_scores_do_not_overflow() -> None:
    states, _ = sample((40, 40, 5, 4, 4, True, False), torch.float32)
    states = [states[0] * 1000, *states[1:]]
    output = cpu_attention(*states, None, scaling=0.3, causal=True)
    torch.testing.assert_close(output, definition(*states, None, causal=True), rtol=1e-4, atol=1e-4)


def test_it_takes_what_it_computes_and_nothing_else() -> None:
    query, key, value = (states.detach() for states in sample((8, 8, 5, 4, 4, True, False), torch.float32)[0])
    assert takes(query, key, value, None)
    assert takes(query, key, value, torch.ones(8, 8, dtype=torch.bool))
    assert not takes(query, key, value, torch.zeros(8, 8)), "an additive mask"
    assert not takes(query, key, value, None, position_bias=torch.zeros(8, 8))
    assert not takes(query, key, value, None, dropout=0.1)
    assert not takes(query.bfloat16(), key.bfloat16(), value.bfloat16(), None)
    assert not takes(query.to("meta"), key.to("meta"), value.to("meta"), None)
    with FlopCounterMode(display=False):
        assert not takes(query, key, value, None), "a counter sees the products"


def layer_and_states(**fields: Any) -> tuple[Attention, Tensor]:
    torch.manual_seed(0)
    return Attention(24, 4, scorer="location", causal=True, **fields).double(), torch.randn(2, 9, 24).double()


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
def test_transforms_and_second_gradients() -> None:
    """Under torch.func what is padded computes the same; the kernel has no second gradient, and says so."""
    layer, states = layer_and_states()

    def attend(states: Tensor) -> Tensor:
        return layer(states[None], backend=BACKENDS["sdpa"])[0][0]

    expected = torch.stack([attend(row) for row in states])
    torch.testing.assert_close(torch.func.vmap(attend)(states), expected)
    states.requires_grad_()
    output, _ = layer(states, backend=BACKENDS["sdpa"])
    (gradient,) = torch.autograd.grad(output.square().sum(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("compiler", "reason"), [("none-of-this-name", "no C++ compiler is installed"), ("false", "exit status 1")]
)
def test_without_a_compiler_torch_computes_it(
    compiler: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
) -> None:
    layer, states = layer_and_states()
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        output, _ = layer(states, backend=BACKENDS["sdpa"])
    torch.testing.assert_close(output, layer(states, backend=eager_attention)[0])
    assert caplog.text.count("has no kernel of its own here") == 1
    assert reason in caplog.text


@pytest.mark.parametrize(("scorer", "own"), [("scaled_dot", False), ("cosine", True), ("multiplicative", True)])
def test_plain_dot_products_are_torchs_own_and_mapped_ones_of_equal_width_are_not(scorer: str, own: bool) -> None:
    torch.manual_seed(0)
    layer, states = Attention(24, 4, scorer=scorer, causal=True), torch.randn(2, 9, 24)
    output, _ = layer(states, backend=BACKENDS["sdpa"])
    before, met = [output.grad_fn], set()
    while before:
        node = before.pop()
        met.add(node.name())
        before += [parent for parent, _ in node.next_functions if parent is not None]
    assert ("CpuAttentionBackward" in met) == own
    if not own:
        query, key, value = (layer.split_heads(it(states)) for it in (layer.q_proj, layer.k_proj, layer.v_proj))
        plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        assert torch.equal(output, layer.o_proj(plain.transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    layer, states = layer_and_states()
    gradients = []
    for kept in (True, False):
        inputs = states.clone().requires_grad_()
        attend = partial(layer, backend=BACKENDS["sdpa"])
        output = attend(inputs)[0] if kept else checkpoint(attend, inputs, use_reentrant=use_reentrant)[0]
        gradients.append(torch.autograd.grad(output.square().sum(), inputs)[0] if kept else backward(output, inputs))
    torch.testing.assert_close(*gradients)


def backward(output: Tensor, inputs: Tensor) -> Tensor | None:
    output.square().sum().backward()
    return inputs.grad


def test_half_a_library_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() is not None
    (path,) = tmp_path.rglob("*.so")
    content = path.read_bytes()
    path.unlink()  # as it is loaded
    path.write_bytes(content[: len(content) // 2])
    library.cache_clear()
    assert library() is not None
    assert len(path.read_bytes()) == len(content)


@pytest.mark.parametrize("position", ["alibi", "transformer_xl", "rope"])
def test_nothing_is_attended_to_in_no_rows(position: str) -> None:
    layer = Attention(16, 2, scorer="cosine", position=position, causal=True)
    assert layer(torch.randn(0, 5, 16), backend=BACKENDS["sdpa"])[0].shape == (0, 5, 16)
