"""Generation in every way that transformers has, with every kind of cache: always what the model's own logits say."""

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig, QuantizedCache

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForSeq2SeqLM
from attnkit.errors import UsageError

HEADS = {"decoder": AttnKitForCausalLM, "encoder-decoder": AttnKitForSeq2SeqLM}
CASES = [(architecture, scorer) for architecture in HEADS for scorer in ("scaled_dot", "gaussian", "additive")]
SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "max_position_embeddings": 32}
LENGTH = {"max_new_tokens": 4, "min_new_tokens": 4}

pytestmark = pytest.mark.parametrize(("architecture", "scorer"), CASES)


@cache
def build(architecture: str, scorer: str, seed: int = 0) -> Any:
    transformers.set_seed(seed)
    model = HEADS[architecture](AttnKitConfig(**SIZES, architecture=architecture, scorer=scorer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def prompts(batch_size: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(3, 31, (batch_size, 5), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def generate(model: Any, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    transformers.set_seed(0)
    return model.generate(**inputs, **({"do_sample": False} | LENGTH | options))


@torch.no_grad()
def test_greedy_follows_the_logits(architecture: str, scorer: str) -> None:
    model, inputs = build(architecture, scorer), prompts()
    outputs = generate(model, inputs, return_dict_in_generate=True, output_logits=True)
    text, logits = outputs.sequences, torch.stack(outputs.logits, dim=1)
    if architecture == "decoder":
        full = model(input_ids=text[:, :-1], use_cache=False).logits[:, 4:]
    else:
        full = model(**inputs, decoder_input_ids=text[:, :-1], use_cache=False).logits
    assert torch.equal(text[:, -4:], full.argmax(-1))
    assert (logits - full).abs().max() < 1e-4  # generate() keeps logits in fp32


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "temperature": 1.3},
        {"do_sample": True, "num_return_sequences": 2, "top_k": 8},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0},
        {"num_beams": 2, "do_sample": True},
    ],
    ids=["sampling", "several", "beams", "several beams", "beam sampling"],
)
def test_a_cache_changes_no_strategy(architecture: str, scorer: str, options: dict[str, Any]) -> None:
    model = build(architecture, scorer)
    with_cache, without = (generate(model, prompts(), use_cache=used, **options) for used in (True, False))
    assert torch.equal(with_cache, without)


def test_guessed_tokens_change_nothing(architecture: str, scorer: str) -> None:
    model, inputs = build(architecture, scorer), prompts(batch_size=1)
    expected = generate(model, inputs)
    for assistant in (model, build(architecture, scorer, seed=1)):
        assert torch.equal(generate(model, inputs, assistant_model=assistant), expected)
    assert torch.equal(generate(model, inputs, prompt_lookup_num_tokens=3), expected)


def test_a_prompt_in_parts_changes_nothing(architecture: str, scorer: str) -> None:
    model, inputs = build(architecture, scorer), prompts()
    if architecture == "decoder":
        parts = generate(model, inputs, **LENGTH, prefill_chunk_size=2)
        assert parts.equal(generate(model, inputs, **LENGTH))
    else:
        with pytest.raises(UsageError, match="prefill_chunk_size: in an encoder-decoder transformers cuts the mask"):
            generate(model, inputs, **LENGTH, prefill_chunk_size=2)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_every_cache_generates_the_same(architecture: str, scorer: str, kind: str) -> None:
    model = build(architecture, scorer)
    for options in ({}, {"num_beams": 2}):
        expected = generate(model, prompts(), use_cache=False, **options)
        same = generate(model, prompts(), cache_implementation=kind, disable_compile=True, **options)
        assert torch.equal(same, expected)


@torch.no_grad()
def test_a_quantised_cache_is_close(architecture: str, scorer: str) -> None:
    if architecture == "encoder-decoder":
        pytest.skip("transformers quantises no cache of an encoder-decoder")
    model, inputs = build(architecture, scorer), prompts()
    ids, memory = inputs["input_ids"], QuantizedCache("fp8", model.config)
    expected = model(ids, use_cache=False).logits[:, 3:]
    model(ids[:, :3], cache=memory)
    error = (model(ids[:, 3:], cache=memory).logits - expected).norm() / expected.norm()
    assert 1e-6 < error < 0.05  # three bits are kept of each number
    options = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    assert torch.equal(generate(model, inputs, **options)[:, :6], generate(model, inputs)[:, :6])


def test_generation_goes_on_from_its_cache(architecture: str, scorer: str) -> None:
    model, inputs = build(architecture, scorer), prompts()
    expected = generate(model, inputs)
    first = generate(model, inputs, max_new_tokens=2, min_new_tokens=2, return_dict_in_generate=True)
    side = "" if architecture == "decoder" else "decoder_"
    mask = torch.ones_like(first.sequences)  # as long as the text: the whole of it is given, not only what is new
    inputs |= {f"{side}input_ids": first.sequences, f"{side}attention_mask": mask, "cache": first.cache}
    assert torch.equal(generate(model, inputs, max_new_tokens=2, min_new_tokens=2), expected)


@torch.no_grad()
def test_a_cropped_cache_has_forgotten(architecture: str, scorer: str) -> None:
    model, ids = build(architecture, scorer), prompts()["input_ids"]
    name = "input_ids" if architecture == "decoder" else "decoder_input_ids"
    source = {} if architecture == "decoder" else prompts()
    expected = model(**source, **{name: ids}, use_cache=False).logits[:, 3:]
    other = torch.cat([ids[:, :3], ids[:, :2] * 0 + 7], dim=1)
    memory = model(**source, **{name: other}, use_cache=True).cache
    memory.crop(-2)
    again = model(**source, **{name: ids[:, 3:]}, cache=memory).logits
    assert (again - expected).abs().max() < 1e-9


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static", "disable_compile": True}])
def test_padding_changes_no_text(architecture: str, scorer: str, options: dict[str, Any]) -> None:
    model, inputs = build(architecture, scorer), prompts()
    padded = {name: states.clone() for name, states in inputs.items()}
    padded["input_ids"][0, :2], padded["attention_mask"][0, :2] = 0, 0
    alone = {name: states[:1, 2:] for name, states in inputs.items()}
    together = generate(model, padded, **options)
    assert torch.equal(together[:1, -4:], generate(model, alone, **options)[:, -4:])
    assert torch.equal(together[1:, -4:], generate(model, {k: v[1:] for k, v in inputs.items()}, **options)[:, -4:])


def test_embeddings_in_place_of_tokens(architecture: str, scorer: str) -> None:
    model, inputs = build(architecture, scorer), prompts()
    expected = generate(model, inputs)[:, -4:]
    given = {
        "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]),
        "attention_mask": inputs["attention_mask"],
    }
    for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(generate(model, given, **options)[:, -4:], expected)


def test_a_compiled_step_is_one_graph(architecture: str, scorer: str) -> None:
    if (architecture, scorer) not in (("decoder", "gaussian"), ("encoder-decoder", "additive")):
        pytest.skip("each architecture once, and a scorer of each kind")
    torch.compiler.reset()
    counters.clear()
    model = build(architecture, scorer)
    compiling = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    compiling._compile_all_devices = True  # transformers compiles on accelerators only
    inputs = prompts()
    inputs["input_ids"][0, :2], inputs["attention_mask"][0, :2] = 0, 0
    compiled = generate(model, inputs, cache_implementation="static", compile_config=compiling)
    assert hasattr(model, "_compiled_call")
    assert torch.equal(compiled, generate(model, inputs))
    assert counters["stats"]["unique_graphs"] == 1, "a step was compiled again for another length of the text"
