"""The laws of a scorer, and of an attention layer that has it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnkit.attention import Attention, Scorer, scorers
from attnkit.attention.backends import BACKENDS, eager_attention
from attnkit.attention.choice import FASTEST_FIRST, obstacle
from attnkit.attention.normalizers import normalizers
from attnkit.attention.patterns import patterns

NUM_TOKENS = 7
WIDTH = 24
SHAPE = {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_positions": 16}


def build_scorer(name: str, options: dict[str, Any]) -> Scorer:
    torch.manual_seed(0)
    return shaken(scorers[name](**SHAPE, **options).double())


def query_and_key() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4, 3, 6).double(), torch.randn(2, 2, 5, 6).double()


def build_layer(name: str, options: dict[str, Any], **fields: Any) -> Attention:
    torch.manual_seed(0)
    layer = Attention(WIDTH, 4, scorer=name, scorer_options=options, max_positions=16, **fields)
    return shaken(layer.double())


def shaken(module: Any) -> Any:
    """The module with parameters away from the special values at which they may start."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return module


def sample_states(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, NUM_TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def backends_of(name: str) -> dict[str, Callable[..., Any]]:
    """The backends that run on a CPU with gradients and take this scorer, eager first."""
    parts: dict[str, Any] = {"scorer": scorers[name]}
    parts |= {"normalizer": normalizers["softmax"], "pattern": patterns["full"]}
    others = [backend for backend in FASTEST_FIRST if backend != "eager" and obstacle(backend, **parts) is None]
    return {"eager": eager_attention} | {backend: BACKENDS[backend] for backend in others}


def same(ours: Tensor, expected: Tensor, law: str, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{law}: {text}")


@torch.no_grad()
def maps_keep_the_type(name: str, options: dict[str, Any]) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        scorer, places = build_scorer(name, options).to(dtype), torch.arange(3)[None]
        query, key = (torch.randn(1, heads, 3, 6, dtype=torch.float64).to(dtype) for heads in (4, 2))
        mapped_key = scorer.map_key(key, places)
        mapped: dict[str, Tensor | None] = {"map_query": scorer.map_query(query, places), "map_key": mapped_key}
        mapped["key_columns"] = scorer.key_columns(mapped_key, places)
        for method, states in mapped.items():
            given = "query" if method == "map_query" else "key"
            assert states is None or states.dtype == dtype, (
                f"{method} makes {states.dtype} of {dtype}: give back the type of the {given}"
            )


def scores_have_their_shape(name: str, options: dict[str, Any]) -> None:
    score = build_scorer(name, options)(*query_and_key())
    assert score.shape == (2, 4, 3, 5), f"scores have shape {tuple(score.shape)}, not (2, 4, 3, 5) [B, H, Q, K]"
    assert score.dtype == torch.float64, f"scores of torch.float64 are {score.dtype}: let pair give back their type"
    assert score.isfinite().all(), "scores are not finite"


@torch.no_grad()
def scores_are_of_one_query_and_one_key(name: str, options: dict[str, Any]) -> None:
    """The same at each call, whatever other tokens and rows there are; the maps write into nothing."""
    scorer, (query, key) = build_scorer(name, options).eval(), query_and_key()
    given = query.clone(), key.clone()
    score = scorer(query, key)
    for word, states, before in zip(("query", "key"), (query, key), given, strict=True):
        assert torch.equal(states, before), f"the {word} is changed in place: compute a new tensor"
    same(scorer(query, key), score, "scores of the same query and key differ from call to call")
    places = torch.arange(6).view(2, 3), torch.arange(10).view(2, 5).flip(0)  # each row has its own
    for tensors in ([query, key], [query, key, *places]):
        whole = scorer(*tensors)
        for row in (slice(1), slice(1, 2)):
            alone = scorer(*(tensor[row] for tensor in tensors))
            same(alone, whole[row], "scores depend on the other rows of the batch, or on their positions")
    same(scorer(query[:, :, :1], key), score[:, :, :1], "the scores of a query depend on the queries after it")
    same(scorer(query, key[:, :, :1]), score[..., :1], "the score of a key depends on the keys after it")
    for training in (False, True):
        scorer.train(training)
        when = "in training " if training else ""
        score = score_of_seed(scorer, query, key)
        for word, (changed_query, changed_key), part in others_changed(query, key):
            again = score_of_seed(scorer, changed_query, changed_key)
            same(again[part], score[part], f"{when}scores depend on other {word}")


def score_of_seed(scorer: Scorer, query: Tensor, key: Tensor) -> Tensor:
    """The scores, with the same draws each time where a scorer draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        score: Tensor = scorer(query, key)
    return score


def others_changed(query: Tensor, key: Tensor) -> Iterator[tuple[str, tuple[Tensor, Tensor], Any]]:
    """Queries and keys of which some are others, and the scores that have to be the same."""
    for place in range(key.shape[2]):
        changed = key + 3
        changed[:, :, place] = key[:, :, place]
        yield "keys", (query, changed), (..., place)
    for place in range(query.shape[2]):
        changed = query + 3
        changed[:, :, place] = query[:, :, place]
        yield "queries", (changed, key), (..., place, slice(None))
    yield "rows of the batch", (torch.cat([query[:1], query[1:] + 3]), torch.cat([key[:1], key[1:] + 3])), slice(1)


@torch.no_grad()
def scores_go_with_their_tokens(name: str, options: dict[str, Any]) -> None:
    """Wherever in the row queries and keys stand; where order counts, with their positions. In training too, unless it
    draws."""
    query, key = query_and_key()
    new_query, new_key = torch.tensor([2, 0, 1]), torch.tensor([3, 0, 4, 2, 1])
    shuffled, positions = (query[:, :, new_query], key[:, :, new_key]), (new_query, new_key)
    for training in (False, True):
        scorer = build_scorer(name, options).train(training)
        score = scorer(query, key)
        if training and not torch.equal(scorer(query, key), score):
            return
        again = scorer(*shuffled, *positions)
        expected = score[:, :, new_query][..., new_key]
        remedy = "only map_query and map_key may read where a token stands, from positions, with knows_order = True"
        same(again, expected, f"scores depend on the place of a query or key in the row: {remedy}")
        if not scorer.knows_order:
            same(scorer(*shuffled), expected, "scores depend on positions: set knows_order = True")


@torch.no_grad()
def attention_has_the_scores_of_forward(name: str, options: dict[str, Any]) -> None:
    layer = build_layer(name, options, num_key_value_heads=2).eval()
    query, (key, _) = layer.split_heads(layer.q_proj(sample_states())), layer.project(sample_states())
    weights = torch.softmax(layer.scorer(query, key), -1)
    same(layer(sample_states())[1], weights, "forward gives other scores than scale, the maps and pair do")


def scores_are_finite_and_maps_keep_the_device(name: str, options: dict[str, Any]) -> None:
    """In half precision too, and for vectors of length 0, as padding may be."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scorer, places = build_scorer(name, options).to(dtype), torch.arange(3)[None]
        query, key = (torch.zeros(1, heads, 3, 6, dtype=dtype, requires_grad=True) for heads in (4, 2))
        score = scorer(query, key) + 0 * (query.sum() + key.sum())
        gradients = torch.autograd.grad(score.sum(), (query, key))
        finite = all(tensor.isfinite().all() for tensor in (score, *gradients))
        assert finite, f"scores or gradients of vectors of length 0 are not finite in {dtype}"
    scorer.to("meta").map_query(query.to("meta"), places.to("meta"))  # fails where a tensor is made on the CPU
    scorer.map_key(key.to("meta"), places.to("meta"))


@torch.no_grad()
def half_precision_is_as_good_as_that_of_scaled_dot(name: str, options: dict[str, Any]) -> None:
    def error(layer: Attention, backend: Callable[..., Any]) -> Tensor:
        for parameter in layer.parameters():
            parameter.copy_(parameter.bfloat16())
        states = sample_states().bfloat16() / 2
        reference, _ = layer.float().eval()(states.float())
        return (layer.bfloat16()(states, backend=backend)[0] - reference).square().mean().sqrt()

    kinds = [{"causal": causal, "num_key_value_heads": heads} for causal in (True, False) for heads in (4, 2, 1)]
    for backend, attend in backends_of(name).items():
        ours = sum(error(build_layer(name, options, **kind), attend) for kind in kinds)
        plain = sum(error(build_layer("scaled_dot", {}, **kind), eager_attention) for kind in kinds)
        assert ours <= 2 * plain, (
            f"in bf16 on {backend} the error is {ours / plain:.1f} times that of scaled dot, not 2"
        )


def parameters_learn(name: str, options: dict[str, Any]) -> None:
    scorer = build_scorer(name, options)
    key = torch.randn(2, 2, 5, 6).double().requires_grad_()
    score = scorer(torch.randn(2, 4, 3, 6).double(), key) + 0 * key.sum()
    (torch.softmax(score, -1) * torch.randn_like(score)).sum().backward()
    for key_name, parameter in scorer.named_parameters():
        learns = parameter.grad is not None and parameter.grad.abs().max() > 1e-12
        said = key_name in scorer.without_gradient
        assert learns or said, (
            f"parameter {key_name} gets no gradient under softmax: say why in without_gradient, or drop it"
        )
        assert not (learns and said), f"parameter {key_name} gets a gradient, though without_gradient denies it"


def query_and_key_learn(name: str, options: dict[str, Any]) -> None:
    scorer = build_scorer(name, options).eval()
    query, key = (states.requires_grad_() for states in query_and_key())
    score = scorer(query, key) + 0 * (query.sum() + key.sum())
    gradients = torch.autograd.grad((score * torch.randn_like(score)).sum(), (query, key))
    for word, moved, gradient in zip(("query", "key"), ((query + 1, key), (query, key + 1)), gradients, strict=True):
        counts = not torch.equal(scorer(*moved), score)
        assert not counts or gradient.abs().max() > 0, f"the {word} counts, but no gradient reaches it"


def parameters_are_set(name: str, options: dict[str, Any]) -> None:
    scorer = build_scorer(name, options)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.fill_(float("nan"))
    scorer.reset_parameters()
    for key, parameter in scorer.named_parameters():
        assert parameter.isfinite().all(), f"reset_parameters leaves {key} unset"


def outputs_and_gradients(layer: Attention, states: Tensor, backend: Callable[..., Any], **kwargs: Any) -> list[Tensor]:
    states = states.clone().requires_grad_()
    layer.zero_grad()
    output, _ = layer(states, backend=backend, **kwargs)
    (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    inputs = [states, *layer.parameters()]
    return [output.detach(), *(it.grad if it.grad is not None else torch.zeros_like(it) for it in inputs)]


def backends_agree(name: str, options: dict[str, Any]) -> None:
    for causal in (True, False):
        layer = build_layer(name, options, causal=causal, num_key_value_heads=2).eval()
        definition = outputs_and_gradients(layer, sample_states(), eager_attention)
        for backend, attend in backends_of(name).items():
            ours = outputs_and_gradients(layer, sample_states(), attend)
            for tensor, expected in zip(ours, definition, strict=True):
                same(tensor, expected, f"{backend} attention is not what eager attention computes")


def nothing_leaks(name: str, options: dict[str, Any]) -> None:
    states, changed, mask = sample_states(), sample_states(), torch.arange(NUM_TOKENS) < 4
    changed[:, 4:] += 3
    for backend, attend in backends_of(name).items():
        layer = build_layer(name, options, causal=True).eval()
        before, after = (layer(tokens, backend=attend)[0][:, :4] for tokens in (states, changed))
        same(before, after, f"on {backend}: later tokens have an influence", 1e-12)
        layer = build_layer(name, options).eval()
        before, after = (
            layer(tokens, mask=mask.expand(2, -1), backend=attend)[0][:, :4] for tokens in (states, changed)
        )
        same(before, after, f"on {backend}: padding has an influence", 1e-12)


def empty_rows_are_zero(name: str, options: dict[str, Any]) -> None:
    layer = build_layer(name, options).train()
    mask = torch.ones(2, 1, NUM_TOKENS, NUM_TOKENS, dtype=torch.bool)
    mask[1, :, 2:4] = False
    for backend, attend in backends_of(name).items():
        output, *gradients = outputs_and_gradients(layer, sample_states(), attend, mask=mask)
        same(output[1, 2:4], layer.o_proj.bias.expand(2, -1), f"on {backend}: output of a query without keys")
        finite = all(tensor.isfinite().all() for tensor in gradients)
        assert finite, f"on {backend}: a query without keys makes the gradient infinite"


def graph_is_whole(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    layer = build_layer(name, options, causal=True).eval()
    attend = list(backends_of(name).values())[-1]
    compiled = torch.compile(lambda states: layer(states, backend=attend)[0], fullgraph=True, backend="aot_eager")
    same(compiled(sample_states()), layer(sample_states())[0], "outputs under torch.compile")


LAYER_LAWS = (
    maps_keep_the_type,
    scores_have_their_shape,
    scores_are_of_one_query_and_one_key,
    scores_go_with_their_tokens,
    attention_has_the_scores_of_forward,
    scores_are_finite_and_maps_keep_the_device,
    query_and_key_learn,
    parameters_learn,
    parameters_are_set,
    backends_agree,
    half_precision_is_as_good_as_that_of_scaled_dot,
    nothing_leaks,
    empty_rows_are_zero,
    graph_is_whole,
)
