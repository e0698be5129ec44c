"""`Attention` outside of a model: every use of it, and one line for each way to call it wrongly."""

from typing import Any

import pytest
import torch
from parts import Part, attend, build, tokens, variants
from transformers import DynamicCache, EncoderDecoderCache

from attnkit.attention import Attention, positions
from attnkit.errors import UsageError
from attnkit.testing.layers import same

IN_LAYERS = [part for part in variants("position") if positions[part.name].acts_on_scores or part.name == "none"]
ORDERS = [{"pattern": part} for part in variants("pattern")] + [{"position": part} for part in IN_LAYERS]

of_each_order = pytest.mark.parametrize("order", ORDERS, ids=lambda order: str(*order.values()))


@torch.no_grad()
@of_each_order
def test_documents_of_one_row_are_told_apart_by_their_positions(order: dict[str, Part]) -> None:
    states = tokens(2, 9)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    for causal in (True, False):
        layer = build(**order, causal=causal).eval()
        alone = torch.cat([layer(piece)[0] for piece in states.split([4, 5], dim=1)], dim=1)
        for mask in (None, torch.ones(2, 9, dtype=torch.bool)):
            same(layer(states, positions=packed, mask=mask)[0], alone, f"packed, causal {causal}")


@torch.no_grad()
@of_each_order
def test_a_cache_needs_nothing_else(order: dict[str, Part]) -> None:
    """Of two layers, one after the other, in pieces of one and more tokens."""
    layers = [build(**order, causal=True, layer_idx=index).eval() for index in range(2)]

    def run(states: torch.Tensor, cache: DynamicCache | None = None) -> torch.Tensor:
        for layer in layers:
            states, _ = layer(states, cache=cache)
        return states

    states, cache = tokens(2, 9), DynamicCache()
    pieces = [run(piece, cache) for piece in states.split([3, 1, 1, 4], dim=1)]
    same(torch.cat(pieces, dim=1), run(states), "with a cache")


def test_pooling_by_a_learned_query() -> None:
    """A query of its own reads all tokens but the padding."""
    layer, query = build(), torch.nn.Parameter(tokens(1, 1))
    changed, mask = tokens(), (torch.arange(7) < 5).expand(2, -1)
    changed[:, 5:] += 3
    for backend in ("eager", "sdpa"):
        pooled, other = (
            layer(query.expand(2, 1, -1), source, mask=mask, backend=attend(backend))[0]
            for source in (tokens(), changed)
        )
        assert pooled.shape == (2, 1, 24)
        same(other, pooled, "padding")
        pooled.sum().backward()
        assert query.grad.abs().max() > 0


@torch.no_grad()
def test_a_source_is_read_once() -> None:
    layer, cache = build().eval(), EncoderDecoderCache(DynamicCache(), DynamicCache())
    states, source = tokens(), tokens(2, 5).flip(-1)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    output, weights = layer(states, source, mask=mask)
    assert weights.shape == (2, 4, 7, 5)
    assert (weights[0, ..., 3:] == 0).all()
    for piece, expected in zip(states.split(1, dim=1), output.split(1, dim=1), strict=True):
        same(layer(piece, source, mask=mask, cache=cache)[0], expected, "a source in a cache")


def test_sizes_that_no_layer_has() -> None:
    for sizes, said in (
        ({"num_heads": 5}, "hidden_size 24 is no multiple of num_heads 5: give head_dim"),
        ({"num_heads": 4, "num_key_value_heads": 3}, "num_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_heads": 4, "num_key_value_heads": 2, "sharing": "all"}, "needs as many key-value heads as query heads"),
        ({"num_heads": 4, "position": "learned"}, r"'learned' has no place in a layer: add its embed\(positions\) to"),
        ({"num_heads": 4, "scorer": "cosin"}, "unknown scorer 'cosin': did you mean 'cosine'"),
        ({"num_heads": 0}, "num_heads must be at least 1, not 0"),
        ({"num_heads": 4, "sharing": "none"}, "unknown sharing 'none': allowed: all, key_value, query_key, separate"),
        (
            {"num_heads": 4, "scorer": "gaussian", "scorer_options": {"initial_width": "a", "with": 2}},
            r"scorer_options: initial_width of Gaussian is 'a', not 'float' or 'NoneType'\nscorer_options: Gaussian t",
        ),
        ({"num_heads": 4, "scorer": ["dot"]}, r"scorer must be a name, not \['dot'\]"),
        ({"num_heads": 4, "scorer_options": "x"}, "scorer_options must be a dict, not 'x'"),
        ({"num_heads": 4, "scorer": "additive", "scorer_options": {"width": 10**12}}, "1e.12: too large to be comp"),
        ({"num_heads": 4, "dropout": 1.5}, "dropout must be at least 0 and at most 1, not 1.5"),
        ({"num_heads": 4, "layer_idx": -1}, "layer_idx must be at least 0, not -1"),
        ({"num_heads": 4, "layer_idx": 1.5}, "layer_idx must be a whole number, not 1.5"),
        ({"num_heads": 4, "bias": "no"}, "bias must be True or False, not 'no'"),
        ({"num_heads": 4, "output_bias": 0}, "output_bias must be True or False, not 0"),
        ({"num_heads": 4, "causal": None}, "causal must be True or False, not None"),
        ({"num_heads": 4, "scorer": "location", "position": "rope"}, "scorer: order enters twice: 'location' knows"),
        ({"num_heads": 4, "scorer": "uniform", "position": "rope"}, "'rope' works through the comparison of query"),
    ):
        with pytest.raises(UsageError, match=said):
            Attention(24, **sizes)


X, SOURCE = tokens(), tokens(2, 5)
BOTH = (X, SOURCE)
CALLS: list[tuple[dict[str, Any], tuple[torch.Tensor, ...], dict[str, Any], str]] = [
    ({}, (X[0],), {}, r"states must be a tensor \[batch, tokens, 24\], not \[7, 24\]"),
    ({}, (X[..., :16],), {}, "states have width 16, and the layer has hidden_size 24"),
    ({}, (X.float(),), {}, r"states are torch.float32 and the layer torch.float64: convert one with \.to\(\)"),
    ({}, (X.to("meta"),), {}, r"states are on device meta and the layer on cpu: move one with \.to\(\)"),
    ({}, (X.tolist(),), {}, "states must be a tensor .*, not list"),
    ({}, (X, SOURCE[..., :9]), {}, "source have width 9"),
    ({}, (X, SOURCE[:1]), {}, "states have 2 rows and the source 1: give as many"),
    (
        {"pattern": Part("causal")},
        (X, SOURCE),
        {},
        "pattern is for tokens among themselves: build the layer",
    ),
    ({"causal": True}, BOTH, {}, "causal is for tokens among themselves"),
    ({"position": Part("rope")}, BOTH, {}, "position is for tokens among themselves"),
    ({"attend_to_self": False}, BOTH, {}, "attend_to_self is for tokens among themselves"),
    ({}, BOTH, {"cache": DynamicCache()}, "the cache must be an EncoderDecoderCache, not DynamicCache"),
    ({}, (X,), {"mask": torch.ones(2, 5).bool()}, r"a padding mask must be \[2, 7\] \[batch, keys\], not \[2, 5\]"),
    (
        {},
        (X, SOURCE),
        {"mask": torch.ones(2, 7).bool()},
        r"a padding mask must be \[2, 5\] \[batch, keys\], not \[2, 7\]",
    ),
    ({}, (X,), {"mask": torch.zeros(2, 7)}, "must be boolean, or 1 for tokens and 0 for padding, not torch.float32"),
    (
        {},
        (X,),
        {"mask": torch.ones(2, 7, 7).bool()},
        r"a padding mask \[2, 7\] or broadcast to \[2, 4, 7, 7\], not",
    ),
    ({}, (X,), {"mask": torch.ones(2, 1, 7, 5).bool()}, r"must broadcast to \[2, 4, 7, 7\] .*, not \[2, 1, 7, 5\]"),
    ({}, (X,), {"mask": torch.ones(2, 3, 7, 7).bool()}, r"must broadcast to \[2, 4, 7, 7\] .*, not \[2, 3, 7, 7\]"),
    (
        {},
        (X,),
        {"mask": torch.ones(2, 1, 7, 7).long()},
        r"may meet\), or torch.float64 to be added .*, not torch.int64",
    ),
    ({}, (X,), {"positions": torch.arange(7)}, r"positions must be \[2 or 1, 7\], not \[7\]"),
    ({}, (X,), {"positions": torch.arange(5)[None]}, r"positions must be \[2 or 1, 7\], not \[1, 5\]"),
    ({}, (X,), {"positions": torch.rand(1, 7)}, "positions must be whole numbers, not torch.float32"),
    ({}, (X,), {"source_positions": torch.arange(7)[None]}, "source_positions need a source"),
    (
        {},
        (X, SOURCE),
        {"source_positions": torch.arange(7)[None]},
        r"source_positions must be \[2 or 1, 5\], not \[1, 7\]",
    ),
    ({}, (X,), {"key_positions": torch.arange(5)[None]}, r"key_positions must be \[2 or 1, 7\], not \[1, 5\]"),
    ({}, (X,), {"key_positions": torch.arange(7)}, r"key_positions must be \[2 or 1, 7\], not \[7\]"),
    ({}, (X,), {"key_positions": torch.rand(1, 7)}, "key_positions must be whole numbers, not torch.float32"),
    ({}, (X,), {"key_positions": [0]}, "key_positions must be a tensor, not list"),
    (
        {"scorer": Part("location")},
        (X,),
        {"key_positions": torch.arange(30, 37)[None]},
        "key_positions must be at least 0 and less than 32, not 32",
    ),
    (
        {},
        BOTH,
        {"key_positions": torch.arange(5)[None]},
        "key_positions are for tokens among themselves: give those of a source as source_positions",
    ),
    (
        {"position": Part("rope")},
        (X,),
        {"segments": torch.zeros(2, 7).long()},
        "segments are for a position that tells them apart, and Rope does not",
    ),
    (
        {"position": Part("transformer_xl")},
        (X,),
        {"segments": torch.zeros(2, 7).long()},
        "segments are for a position that tells them apart, and TransformerXL does not",
    ),
    ({}, (X,), {"backend": "sdpa"}, r"one of BACKENDS, as BACKENDS\['sdpa'\], not 'sdpa'"),
    ({}, (X,), {"mask": [[1]]}, "mask must be a tensor, not list"),
    ({}, (X,), {"cache": 3}, r"cache must be a cache of transformers, as DynamicCache\(\), not int"),
    ({}, (X,), {"positions": torch.arange(-1, 6)[None]}, "positions must be at least 0, not -1"),
    (
        {"scorer": Part("location")},
        (X,),
        {"positions": torch.arange(30, 37)[None]},
        "positions must be at least 0 and less than 32, not 32",
    ),
    (
        {"position": Part("transformer_xl", (("segments", 2),))},
        (X,),
        {"segments": torch.full((2, 7), 2)},
        "segments must be at least 0 and less than 2, not 2",
    ),
    ({"scorer": Part("additive")}, (X,), {"backend": attend("sdpa")}, r"no dot product; use BACKENDS\['pairwise'\]"),
    ({"normalizer": Part("sigmoid")}, (X,), {"backend": attend("pairwise")}, "not those of softmax; use eager_att"),
    ({"pattern": Part("local_p")}, (X,), {"backend": attend("sdpa")}, "changes the weights after softmax; use eager"),
    (
        {"scorer": Part("location")},
        (tokens(2, 40),),
        {},
        "40 tokens, but Location has 32 positions: raise",
    ),
]


@pytest.mark.parametrize(("parts", "inputs", "given", "said"), CALLS, ids=[call[-1] for call in CALLS])
def test_what_does_not_fit_is_one_line(
    parts: dict[str, Any], inputs: tuple[torch.Tensor, ...], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        build(**parts)(*inputs, **given)
    assert "\n" not in str(error.value)


def test_a_mask_of_all_pairs_is_added_to_what_the_layer_leaves_out() -> None:
    """Causality, the pattern and documents stay; a mask that forbids nothing changes nothing."""
    everything = torch.ones(1, 1, 1, 7, dtype=torch.bool)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    for parts in ({"causal": True}, {"pattern": Part("sliding_window", (("window", 2),))}, {"attend_to_self": False}):
        layer = build(**parts).eval()
        for mask in (everything, torch.zeros(1, 1, 7, 7).double()):
            same(layer(X, mask=mask)[0], layer(X)[0], f"{parts}")
            same(layer(X, mask=mask, positions=positions)[0], layer(X, positions=positions)[0], f"{parts}")
    layer, cache, parts = build(causal=True).eval(), DynamicCache(), []
    for part in (X[:, :4], X[:, 4:]):
        parts.append(layer(part, cache=cache, mask=everything[..., : cache.get_seq_length() + part.shape[1]])[0])
    same(torch.cat(parts, 1), layer(X)[0], "with a cache")


def test_a_mask_may_be_added_to_scores() -> None:
    """And autocast converts states as it does in every layer."""
    boolean = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    added = torch.zeros(2, 1, 7, 7, dtype=torch.float64).masked_fill(~boolean, float("-inf"))
    for backend in ("eager", "sdpa", "pairwise"):
        layer = build().eval()
        same(layer(X, mask=added, backend=attend(backend))[0], layer(X, mask=boolean)[0], "an added mask")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build(dtype=torch.float32)(X.bfloat16())[0].dtype == torch.bfloat16
