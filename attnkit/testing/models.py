"""The laws of a model, whatever its attention is made of."""

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.language import AttnKitForCausalLM, AttnKitForMaskedLM, AttnKitForSeq2SeqLM
from attnkit.testing.layers import WIDTH, same, shaken

LANGUAGE_MODELS: dict[str, Any] = {
    cls.architecture: cls for cls in (AttnKitForMaskedLM, AttnKitForCausalLM, AttnKitForSeq2SeqLM)
}


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
    """Tokens given with a cache, one by one and several at once, have the logits of one pass, also among padding. It
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
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
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
    """A saved model comes back with the same weights, bit for bit, and the same logits, whatever the class is told
    about it. Logits are rounded by where weights lie in memory, on some processors."""
    model, ids = build_model(**fields), sample_ids()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    assert type(loaded) is AttnKitForCausalLM
    weights = loaded.state_dict()
    lost = [key for key, tensor in model.state_dict().items() if not tensor.equal(weights[key])]
    assert not lost, f"{fields}: saved and loaded, {lost} differ"
    same(loaded(ids).logits, model(ids).logits, f"{fields}: saved and loaded, the logits differ")


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


MODEL_LAWS = (
    cache_equals_one_pass,
    packed_equals_separate,
    padding_on_either_side,
    padding_of_a_source,
    reload_equals_saved,
    generation_equals_forward,
)
