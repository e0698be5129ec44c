"""What every head of every architecture must do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from attnkit import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForMultipleChoice,
    AttnKitForPermutationLM,
    AttnKitForPreTraining,
    AttnKitForQuestionAnswering,
    AttnKitForSeq2SeqLM,
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
    AttnKitModel,
)
from attnkit.errors import UsageError
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.language import shift_right

LABELS = (
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
    AttnKitForQuestionAnswering,
    AttnKitForMultipleChoice,
)
HEADS = {
    "encoder": (AttnKitForMaskedLM, AttnKitForPreTraining, *LABELS),
    "decoder": (AttnKitForCausalLM, *LABELS),
    "encoder-decoder": (AttnKitForSeq2SeqLM, *LABELS),
}
CASES = [(architecture, head) for architecture, heads in HEADS.items() for head in heads]
SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 3,
}
TOLERANCE = 1e-5  # fp32, numbers around one


def configure(architecture: str, **fields: Any) -> AttnKitConfig:
    return AttnKitConfig(**(SIZES | {"architecture": architecture, "pooler": architecture == "encoder"} | fields))


def inputs_of(model: Any, *, length: int = 7) -> dict[str, torch.Tensor]:
    shape = (2, 3, length) if isinstance(model, AttnKitForMultipleChoice) else (2, length)
    inputs = {"input_ids": torch.randint(3, 31, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    if isinstance(model, AttnKitForSeq2SeqLM) or (type(model) is AttnKitModel and model.config.is_encoder_decoder):
        inputs["decoder_input_ids"] = torch.randint(3, 31, (2, 5))
    return inputs


def labels_of(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if isinstance(model, AttnKitForQuestionAnswering):
        return {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 9])}
    if isinstance(model, AttnKitForSequenceClassification | AttnKitForMultipleChoice):
        return {"labels": torch.tensor([0, 2])}
    if isinstance(model, AttnKitForTokenClassification):
        return {"labels": torch.randint(0, 3, inputs["input_ids"].shape)}
    labels = {"labels": inputs["decoder_input_ids" if isinstance(model, AttnKitForSeq2SeqLM) else "input_ids"]}
    sentence = {"next_sentence_label": torch.tensor([0, 1])} if isinstance(model, AttnKitForPreTraining) else {}
    return labels | sentence


@pytest.mark.parametrize(("architecture", "head"), CASES)
def test_every_parameter_gets_a_gradient(architecture: str, head: type) -> None:
    model = head(configure(architecture))
    inputs = inputs_of(model)
    model(**inputs, **labels_of(model, inputs)).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("architecture", "head"), CASES)
@torch.no_grad()
def test_padding_changes_nothing(architecture: str, head: type, side: str) -> None:
    model = head(configure(architecture)).eval()
    inputs = inputs_of(model)
    text = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
    pads = torch.zeros_like(text["input_ids"][..., :2])
    order = (lambda real: [pads, real]) if side == "left" else (lambda real: [real, pads])
    padded = inputs | {key: torch.cat(order(value), dim=-1) for key, value in text.items()}
    one, other = model(**inputs), model(**padded)
    real = slice(2, None) if side == "left" else slice(0, -2)
    for key in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits"):
        if key in one:
            per_token = one[key].shape != other[key].shape
            assert (one[key] - (other[key][:, real] if per_token else other[key])).abs().max() < TOLERANCE


@pytest.mark.parametrize(("architecture", "head"), CASES)
@torch.no_grad()
def test_saved_and_loaded_by_its_auto_class(architecture: str, head: type, tmp_path: Path) -> None:
    model = head(configure(architecture)).eval()
    model.save_pretrained(tmp_path)
    (auto_class,) = [auto for auto, model_class in AUTO_CLASSES.items() if model_class is head]
    loaded, info = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is head
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    inputs = inputs_of(model)
    weights = loaded.state_dict()
    assert all(weights[key].equal(tensor) for key, tensor in model.state_dict().items())
    # A product with one column rounds by where the column lies in memory, on some processors.
    assert torch.allclose(model(**inputs)[0], loaded.eval()(**inputs)[0], atol=TOLERANCE)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()


@pytest.mark.parametrize("scorer", ["scaled_dot", "gaussian", "additive"])
@pytest.mark.parametrize("position", ["rope", "learned", "t5", "alibi"])
@torch.no_grad()
def test_a_decoder_of_an_encoder_generates_what_the_full_forward_predicts(position: str, scorer: str) -> None:
    config = configure("encoder-decoder", position=position, scorer=scorer, cross_scorer="cosine", num_decoder_layers=3)
    model = AttnKitForSeq2SeqLM(config).eval()
    inputs = inputs_of(model)
    del inputs["decoder_input_ids"]
    inputs["attention_mask"][0, 5:] = 0
    texts = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False, no_repeat_ngram_size=1)
    scores = model.generate(
        **inputs, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    full = model(**inputs, decoder_input_ids=scores.sequences[:, :-1]).logits
    assert (torch.stack(scores.logits, dim=1) - full).abs().max() < TOLERANCE
    assert texts.shape == (2, 9)


@torch.no_grad()
def test_a_static_cache_generates_the_same() -> None:
    for architecture, head in (("decoder", AttnKitForCausalLM), ("encoder-decoder", AttnKitForSeq2SeqLM)):
        model = head(configure(architecture, position="t5", num_decoder_layers=None)).eval()
        inputs = {"input_ids": torch.randint(3, 31, (2, 6))}
        options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "disable_compile": True}
        one, other = (model.generate(**inputs, **options, cache_implementation=kind) for kind in ("dynamic", "static"))
        assert torch.equal(one, other)


@torch.no_grad()
def test_every_attention_is_recorded() -> None:
    model = AttnKitModel(configure("encoder-decoder", num_decoder_layers=3), with_pooler=False).eval()
    model.set_attn_implementation("eager")
    inputs = inputs_of(model)
    outputs = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert [tuple(weights.shape) for weights in outputs.encoder_attentions] == [(2, 4, 7, 7)] * 2
    assert [tuple(weights.shape) for weights in outputs.decoder_attentions] == [(2, 4, 5, 5)] * 3
    assert [tuple(weights.shape) for weights in outputs.cross_attentions] == [(2, 4, 5, 7)] * 3
    assert len(outputs.encoder_hidden_states) == 3
    assert len(outputs.decoder_hidden_states) == 4
    for weights in (*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions):
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_as_configured(tied: bool, shared: bool, tmp_path: Path) -> None:
    config = configure("encoder-decoder", tie_word_embeddings=tied, share_encoder_decoder_embeddings=shared)
    AttnKitForSeq2SeqLM(config).save_pretrained(tmp_path)
    model = AttnKitForSeq2SeqLM.from_pretrained(tmp_path)
    encoder, decoder = (stack.embeddings.tokens.weight for stack in (model.model.encoder, model.model.decoder))
    assert (encoder is decoder) is shared
    assert (model.lm_head.weight is decoder) is tied


@torch.no_grad()
def test_pooling_finds_its_token() -> None:
    ids = torch.tensor([[5, 6, 2, 0, 0], [5, 2, 7, 8, 2]])
    for pooling, expected in (("first", [0, 0]), ("last", [2, 4]), ("eos", [2, 4])):
        model = AttnKitForSequenceClassification(configure("decoder", pooling=pooling)).eval()
        states = model.model(input_ids=ids, attention_mask=ids.ne(0).long()).last_hidden_state
        logits = model(input_ids=ids, attention_mask=ids.ne(0).long()).logits
        assert torch.equal(logits, model.score(states[[0, 1], expected]))
    with pytest.raises(ValueError, match="needs an end token in every row"):
        model(input_ids=ids.clamp(min=3))


@torch.no_grad()
def test_a_permutation_model_sees_what_it_may_see() -> None:
    fields = {"position": "transformer_xl", "position_options": {"segments": 2}, "two_stream": True, "pooler": False}
    model = AttnKitForPermutationLM(configure("encoder", **fields, norm_position="post")).eval()
    ids, order = torch.randint(3, 31, (1, 6)), torch.randperm(6)
    inputs = {"perm_mask": (order[:, None] <= order[None]).float()[None], "target_mapping": torch.eye(6)[None]}
    before = model(input_ids=ids, **inputs).logits[0]
    for changed in range(6):
        other = ids.clone()
        other[0, changed] = 3 + (ids[0, changed] - 2) % 28
        moved = (model(input_ids=other, **inputs).logits[0] - before).abs().amax(-1) > 1e-6
        assert torch.equal(moved, order > order[changed])


@torch.no_grad()
def test_memory_is_a_longer_text() -> None:
    fields = {"position": "transformer_xl", "two_stream": True, "pooler": False, "pattern": "causal"}
    model = AttnKitForPermutationLM(configure("encoder", **fields)).eval()
    ids, memory = torch.randint(3, 31, (2, 9)), DynamicCache()
    model(input_ids=ids[:, :5], cache=memory)
    parts = model(input_ids=ids[:, 5:], cache=memory).logits
    assert (parts - model(input_ids=ids).logits[:, 5:]).abs().max() < TOLERANCE


@torch.no_grad()
def test_fields_of_the_block_change_the_function() -> None:
    """Each field means something of its own."""
    ids = torch.randint(3, 31, (1, 7))
    fields: list[dict[str, Any]] = [
        {},
        {"gated_activation": True},
        {"hidden_act": "relu"},
        {"norm": "rmsnorm"},
        {"norm_position": "post"},
        {"final_norm": False},
        {"embedding_norm": True},
        {"embedding_scale": 2.0},
        {"residual_scale": 0.5},
        {"output_scale": 0.5},
        {"parallel_residual": True},
        {"head_dim": 8},
        {"scale_residual_init": True},
        {"attention_bias": False},
        {"attention_output_bias": False},
        {"mlp_bias": False},
        {"output_bias": True},
    ]
    seen = []
    for changes in fields:
        torch.manual_seed(0)
        model = AttnKitForCausalLM(configure("decoder", initializer_range=0.3, **changes)).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(0.1)
        logits = model(input_ids=ids).logits
        assert all((logits - other).abs().max() > 1e-4 for other in seen), changes
        seen.append(logits)


def test_projections_onto_the_residual_may_start_smaller() -> None:
    model = AttnKitForCausalLM(configure("decoder", hidden_size=64, num_hidden_layers=8, scale_residual_init=True))
    block = model.model.decoder.layers[0]
    ratio = (block.attention.o_proj.weight.std() / block.attention.q_proj.weight.std()).item()
    assert ratio == pytest.approx(16**-0.5, rel=0.05)  # two parts in each of eight blocks
    assert block.feed_forward.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_only_the_last_logits_are_made() -> None:
    model = AttnKitForCausalLM(configure("decoder")).eval()
    ids = torch.randint(3, 31, (2, 7))
    full = model(input_ids=ids).logits
    assert torch.allclose(model(input_ids=ids, logits_to_keep=2).logits, full[:, -2:], atol=1e-6)
    assert torch.allclose(model(input_ids=ids, logits_to_keep=torch.tensor([1, 3])).logits, full[:, [1, 3]], atol=1e-6)


def test_the_decoder_starts_with_the_start_token() -> None:
    labels = torch.tensor([[5, 6, -100], [7, -100, -100]])
    assert shift_right(labels, configure("encoder-decoder")).tolist() == [[1, 5, 6], [1, 7, 0]]
    with pytest.raises(UsageError, match="decoder_start_token_id and pad_token_id: set both"):
        shift_right(labels, configure("encoder-decoder", pad_token_id=None))


def test_mistakes_are_named() -> None:
    for head, architecture in ((AttnKitForCausalLM, "encoder"), (AttnKitForMaskedLM, "decoder")):
        with pytest.raises(UsageError, match=f"{head.__name__} is for architecture"):
            head(configure(architecture))
    with pytest.raises(UsageError, match="set pooler true"):
        AttnKitForPreTraining(configure("encoder", pooler=False))
    with pytest.raises(UsageError, match="set two_stream true"):
        AttnKitForPermutationLM(configure("encoder"))
    with pytest.raises(UsageError, match="takes no decoder inputs"):
        AttnKitModel(configure("decoder"))(
            input_ids=torch.ones(1, 2, dtype=torch.long), decoder_input_ids=torch.ones(1, 2, dtype=torch.long)
        )
    with pytest.raises(UsageError, match="no token types: set type_vocab_size"):
        AttnKitModel(configure("encoder"))(
            input_ids=torch.ones(1, 2, dtype=torch.long), token_type_ids=torch.ones(1, 2, dtype=torch.long)
        )
    with pytest.raises(ValueError, match="give exactly one of input_ids and inputs_embeds"):
        AttnKitModel(configure("encoder"))()
    with pytest.raises(UsageError, match="33 tokens, but position 'learned' has 32 positions"):
        AttnKitModel(configure("encoder", position="learned"))(input_ids=torch.ones(1, 33, dtype=torch.long))


def test_a_source_longer_than_cross_attention_has_positions_for_is_refused() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20, "position": "none"}
    config = AttnKitConfig(
        **sizes, architecture="encoder-decoder", cross_scorer="static", max_position_embeddings=4, pad_token_id=0
    )
    ids = torch.randint(1, 20, (1, 5))
    with pytest.raises(UsageError, match="5 tokens, but cross attention's Static has 4 positions: raise max_position_"):
        AttnKitForSeq2SeqLM(config)(ids, decoder_input_ids=ids[:, :2])


@pytest.mark.parametrize(("architecture", "head"), CASES)
def test_a_loss_is_in_the_compiled_graph(architecture: str, head: type) -> None:
    model = head(configure(architecture)).eval()
    inputs = inputs_of(model)
    inputs |= labels_of(model, inputs)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")(**inputs).loss
    torch.testing.assert_close(compiled, model(**inputs).loss)
