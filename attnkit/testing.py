"""The laws that every attention part of attnkit keeps, as functions to run on one's own.

    from attnkit.testing import check_scorer
    check_scorer(MyScorer)

Each law raises an `AssertionError` that names it, the backend and the difference.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from attnkit.attention import Attention, Scorer, scorers
from attnkit.attention.backends import BACKENDS, eager_attention
from attnkit.attention.choice import FASTEST_FIRST, obstacle
from attnkit.attention.normalizers import normalizers
from attnkit.attention.patterns import patterns
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.language import AttnKitForCausalLM, AttnKitForMaskedLM, AttnKitForSeq2SeqLM

NUM_TOKENS = 7
WIDTH = 24
LANGUAGE_MODELS: dict[str, Any] = {
    cls.architecture: cls for cls in (AttnKitForMaskedLM, AttnKitForCausalLM, AttnKitForSeq2SeqLM)
}


def check_scorer(scorer: type[Scorer], **options: Any) -> str:
    """Run every law on a scorer class, built with these options, and return which laws it keeps on which backends.

    The laws: scores have the shape of query and key; every parameter gets a gradient, or the class says in
    `without_gradient` why not; `reset_parameters` sets every parameter; every backend that takes the scorer computes
    what eager attention computes, in values and gradients; no influence of later tokens or of padding; output zero and
    a finite gradient for a query without keys; decoding with a cache = one pass; packed documents = separate ones;
    padding on either side, of a source too; saved and loaded, the same logits; one whole graph under torch.compile.
    """
    with registered(scorer) as name, without_bars():
        for layer_law in LAYER_LAWS:
            layer_law(name, options)
        fields = {"scorer": name, "scorer_options": options or None, "position": "none"}
        for law in MODEL_LAWS:
            law(**fields)
        laws = [law.__name__.replace("_", " ") for law in (*LAYER_LAWS, *MODEL_LAWS)]
        return f"{scorer.__qualname__} on {', '.join(backends_of(name))} keeps {len(laws)} laws: {', '.join(laws)}"


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the progress bars of transformers, as long as it lasts."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def registered(scorer: type[Scorer]) -> Iterator[str]:
    """A name under which the registry knows the class, given for the time of a check where it has none."""
    known = [name for name, cls in scorers.items() if cls is scorer]
    if known:
        yield known[0]
        return
    name = f"{scorer.__module__}.{scorer.__qualname__}"
    scorers.register(name)(scorer)
    try:
        yield name
    finally:
        del scorers[name]


def build_scorer(name: str, options: dict[str, Any]) -> Scorer:
    torch.manual_seed(0)
    scorer = scorers[name](num_heads=4, num_key_value_heads=2, head_dim=6, max_positions=16, **options).double()
    return shaken(scorer)


def build_layer(name: str, options: dict[str, Any], **fields: Any) -> Attention:
    torch.manual_seed(0)
    layer = Attention(WIDTH, 4, scorer=name, scorer_options=options, max_positions=16, **fields)
    return shaken(layer.to(fields.pop("dtype", torch.float64)))


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


def scores_have_their_shape(name: str, options: dict[str, Any]) -> None:
    score = build_scorer(name, options)(torch.randn(2, 4, 3, 6).double(), torch.randn(2, 2, 5, 6).double())
    assert score.shape == (2, 4, 3, 5), f"scores of {name}: shape {tuple(score.shape)}, not (2, 4, 3, 5) [B, H, Q, K]"
    assert score.isfinite().all(), f"scores of {name} are not finite"


def parameters_learn(name: str, options: dict[str, Any]) -> None:
    scorer = build_scorer(name, options)
    key = torch.randn(2, 2, 5, 6).double().requires_grad_()
    score = scorer(torch.randn(2, 4, 3, 6).double(), key) + 0 * key.sum()
    (torch.softmax(score, -1) * torch.randn_like(score)).sum().backward()
    for key_name, parameter in scorer.named_parameters():
        learns = parameter.grad is not None and parameter.grad.abs().max() > 1e-12
        said = key_name in scorer.without_gradient
        assert learns or said, (
            f"{name}.{key_name} gets no gradient under softmax: say why in without_gradient, or drop it"
        )
        assert not (learns and said), f"{name}.{key_name} gets a gradient, though without_gradient denies it"


def parameters_are_set(name: str, options: dict[str, Any]) -> None:
    scorer = build_scorer(name, options)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.fill_(float("nan"))
    scorer.reset_parameters()
    for key, parameter in scorer.named_parameters():
        assert parameter.isfinite().all(), f"{name}.reset_parameters() leaves {key} unset"


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
                same(tensor, expected, f"{name} on {backend} is not what eager attention computes")


def nothing_leaks(name: str, options: dict[str, Any]) -> None:
    states, changed, mask = sample_states(), sample_states(), torch.arange(NUM_TOKENS) < 4
    changed[:, 4:] += 3
    for backend, attend in backends_of(name).items():
        layer = build_layer(name, options, causal=True).eval()
        before, after = (layer(tokens, backend=attend)[0][:, :4] for tokens in (states, changed))
        same(before, after, f"{name} on {backend}: later tokens have an influence", 1e-12)
        layer = build_layer(name, options).eval()
        before, after = (
            layer(tokens, mask=mask.expand(2, -1), backend=attend)[0][:, :4] for tokens in (states, changed)
        )
        same(before, after, f"{name} on {backend}: padding has an influence", 1e-12)


def empty_rows_are_zero(name: str, options: dict[str, Any]) -> None:
    layer = build_layer(name, options).train()
    mask = torch.ones(2, 1, NUM_TOKENS, NUM_TOKENS, dtype=torch.bool)
    mask[1, :, 2:4] = False
    for backend, attend in backends_of(name).items():
        output, *gradients = outputs_and_gradients(layer, sample_states(), attend, mask=mask)
        same(output[1, 2:4], layer.o_proj.bias.expand(2, -1), f"{name} on {backend}: output of a query without keys")
        finite = all(tensor.isfinite().all() for tensor in gradients)
        assert finite, f"{name} on {backend}: a query without keys makes the gradient infinite"


def graph_is_whole(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    layer = build_layer(name, options, causal=True).eval()
    attend = list(backends_of(name).values())[-1]
    compiled = torch.compile(lambda states: layer(states, backend=attend)[0], fullgraph=True, backend="aot_eager")
    same(compiled(sample_states()), layer(sample_states())[0], f"{name} under torch.compile")


def build_model(**fields: Any) -> Any:
    """A language model of the fields' architecture in fp64."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": WIDTH, "max_position_embeddings": 32, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "decoder_start_token_id": 1}
    if "layer_scorers" in fields:
        sizes["num_hidden_layers"] = len(fields["layer_scorers"])
    config = AttnKitConfig(**(sizes | fields))
    return shaken(LANGUAGE_MODELS[config.architecture](config).double()).eval()


def reading(model: Any, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor | None]:
    """What a model is called with to read these ids; the decoder of an encoder-decoder has a source as well."""
    source = {"input_ids": sample_ids(6)} if model.config.is_encoder_decoder else {}
    prefix = "decoder_" if source else ""
    return source | {f"{prefix}input_ids": ids, f"{prefix}attention_mask": mask}


def sample_ids(num_tokens: int = 11) -> Tensor:
    """Two rows of ids that differ: of two keys with one score rounding would say which is the highest."""
    generator = torch.Generator().manual_seed(1)
    return torch.stack([1 + torch.randperm(63, generator=generator)[:num_tokens] for _ in range(2)])


@torch.no_grad()
def cache_equals_one_pass(**fields: Any) -> None:
    """Tokens given with a cache, one by one and several at once, have the logits of one pass, padding among them too. It
    holds keys and values of the width of a head."""
    model, ids = build_model(**fields), sample_ids()
    padded = torch.ones_like(ids)
    padded[0, :2] = padded[1, 3:5] = 0
    for mask, pieces in ((torch.ones_like(ids), [1, 1, 4, 1, 1, 3]), (padded, [6, 1, 4])):
        expected = model(**reading(model, ids, mask), use_cache=False).logits
        cache: Any = None
        logits: list[Tensor] = []
        for piece in ids.split(pieces, dim=1):
            seen = mask[:, : sum(part.shape[1] for part in logits) + piece.shape[1]]
            outputs = model(**reading(model, piece, seen), cache=cache, use_cache=True)
            cache = outputs.cache
            logits.append(outputs.logits)
        real = mask.bool()
        same(torch.cat(logits, dim=1)[real], expected[real], f"{fields}: decoding with a cache")
    sizes = model.config.get_text_config(decoder=True)
    shape = (len(ids), sizes.num_key_value_heads, ids.shape[1], sizes.head_dim)
    own = cache.self_attention_cache if model.config.is_encoder_decoder else cache
    for held in [tensor for layer in own.layers for tensor in (layer.keys, layer.values)]:
        assert held.shape == shape, f"{fields}: a cache holds {tuple(held.shape)}, not {shape}"


@torch.no_grad()
def packed_equals_separate(**fields: Any) -> None:
    """Documents in one row, told apart by position ids that restart, have the logits of documents alone."""
    model, ids = build_model(**fields), sample_ids()
    lengths = [3, 6, 2]
    positions = torch.cat([torch.arange(length) for length in lengths])[None].expand(2, -1)
    alone = torch.cat([model(piece).logits for piece in ids.split(lengths, dim=1)], dim=1)
    for mask in (None, torch.ones_like(ids)):
        packed = model(ids, position_ids=positions, attention_mask=mask).logits
        same(packed, alone, f"{fields}: packed documents")


@torch.no_grad()
def padding_on_either_side(**fields: Any) -> None:
    """A row that is padded on its left or right has the logits it has alone."""
    model, ids = build_model(**fields), sample_ids(6)
    alone = model(ids).logits
    padding, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 9, dtype=torch.long)
    left, right = mask.clone(), mask.clone()
    left[:, :3], right[:, 6:] = 0, 0
    ours = model(torch.cat([padding, ids], dim=1), attention_mask=left).logits[:, 3:]
    same(ours, alone, f"{fields}: padding on the left")
    ours = model(torch.cat([ids, padding], dim=1), attention_mask=right).logits[:, :6]
    same(ours, alone, f"{fields}: padding on the right")


@torch.no_grad()
def padding_of_a_source(**fields: Any) -> None:
    """A decoder writes of a source that is padded on its left or right what it writes of the source alone."""
    own = {key: entries for key, entries in fields.items() if not key.startswith("layer_")}
    model = build_model(**(own | {"architecture": "encoder-decoder"}))
    ids, target, padding = sample_ids(6), sample_ids(5), torch.zeros(2, 3, dtype=torch.long)
    greedy: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    alone, written = model(ids, decoder_input_ids=target).logits, model.generate(ids, **greedy)
    for side, padded in (("left", [padding, ids]), ("right", [ids, padding])):
        given = {"input_ids": torch.cat(padded, dim=1)}
        given["attention_mask"] = given["input_ids"].ne(0).long()
        same(model(**given, decoder_input_ids=target).logits, alone, f"{fields}: padding on the {side} of a source")
        assert torch.equal(model.generate(**given, **greedy), written), (
            f"{fields}: padding on the {side} of a source changes what is generated"
        )


@torch.no_grad()
def reload_equals_saved(**fields: Any) -> None:
    """A saved model comes back with the same logits, bit for bit, whatever the class is told about it."""
    model, ids = build_model(**fields), sample_ids()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    assert type(loaded) is AttnKitForCausalLM
    assert torch.equal(loaded(ids).logits, model(ids).logits), f"{fields}: saved and loaded, the logits differ"


@torch.no_grad()
def generation_equals_forward(**fields: Any) -> None:
    """Greedy generation picks the tokens that repeated full passes pick, with a growing and with a static cache."""
    model, ids = build_model(**fields), sample_ids(4)
    greedy: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    generated = model.generate(ids, **greedy)
    static = model.generate(ids, cache_implementation="static", disable_compile=True, **greedy)
    for _ in range(5):
        best = model(ids, use_cache=False).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, best], dim=1)
    assert torch.equal(generated, ids), f"{fields}: generate() does not follow the model's own logits"
    assert torch.equal(static, ids), f"{fields}: generate() with a static cache does not follow the model's own logits"


LAYER_LAWS = (
    scores_have_their_shape,
    parameters_learn,
    parameters_are_set,
    backends_agree,
    nothing_leaks,
    empty_rows_are_zero,
    graph_is_whole,
)
MODEL_LAWS = (
    cache_equals_one_pass,
    packed_equals_separate,
    padding_on_either_side,
    padding_of_a_source,
    reload_equals_saved,
    generation_equals_forward,
)

__all__ = ["check_scorer"]
