"""Import from and export to transformers' own classes: the same numbers in every output, padded, cached, generated."""

from typing import Any

import pytest
import torch
import transformers
from foreign import BERT, TOLERANCE, build, inputs_of, labels_of, tensors, tolerance, worst_difference
from transformers import DynamicCache

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForMaskedLM
from attnkit.errors import UsageError
from attnkit.models.convert import from_hf, to_hf
from attnkit.models.foreign import FORMATS

MAY_BE_CAUSAL = {
    f"{model}{head}"
    for model in ("Bert", "Roberta")
    for head in ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
}
CLASSES = [name for form in FORMATS.values() for name in form.heads]
GENERATING = ["BertLMHeadModel", "GPT2LMHeadModel", "LlamaForCausalLM", "MarianMTModel", "T5ForConditionalGeneration"]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_every_output_is_the_same(name: str, dtype: torch.dtype) -> None:
    theirs = build(name, dtype)
    ours = from_hf(theirs)
    for padding in ("none", "right", "left"):
        inputs = inputs_of(theirs, padding)
        assert worst_difference(theirs, ours, inputs) < tolerance(theirs), padding


@pytest.mark.parametrize("name", CLASSES)
def test_vectors_in_place_of_ids_are_the_same(name: str) -> None:
    theirs = build(name, torch.float64)
    # For the label of a text these two of transformers look for padding among the ids alone, and warn of it.
    unseen = name in ("GPT2ForSequenceClassification", "LlamaForSequenceClassification")
    inputs = inputs_of(theirs, "none" if unseen else "right")
    for key in ("", "decoder_"):
        if f"{key}input_ids" in inputs:
            ids = inputs.pop(f"{key}input_ids")
            inputs[f"{key}inputs_embeds"] = torch.randn(*ids.shape, theirs.config.hidden_size, dtype=torch.float64)
    assert worst_difference(theirs, from_hf(theirs), inputs) < tolerance(theirs)


# Whatever the dtype of a model, transformers makes these losses in fp32.
ROUNDED = {
    "BertLMHeadModel",
    "RobertaForCausalLM",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "LlamaForTokenClassification",
}


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_losses_are_the_same(name: str) -> None:
    theirs = build(name, torch.float64)
    labels = labels_of(theirs)
    inputs = inputs_of(theirs, "none") | labels
    one, other = (model(**inputs) for model in (theirs, from_hf(theirs)))
    assert ("loss" in one) == ("loss" in other) == bool(labels)
    if labels:
        assert (one.loss - other.loss).abs() < TOLERANCE[torch.float32 if name in ROUNDED else torch.float64]


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_weights_of_attention_are_the_same(name: str) -> None:
    theirs = build(name)
    theirs.set_attn_implementation("eager")
    inputs = inputs_of(theirs, "right") | {"output_attentions": True}
    pair = [tensors(model(**inputs)) for model in (theirs, from_hf(theirs))]
    weights = [key for key in pair[0] if "attentions" in key]
    assert weights
    assert weights == [key for key in pair[1] if "attentions" in key]
    assert max((pair[0][key] - pair[1][key]).abs().max() for key in weights) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", CLASSES)
def test_an_export_has_the_weights_of_the_import(name: str) -> None:
    theirs = build(name)
    back = to_hf(from_hf(theirs), theirs.config.model_type)
    assert type(back) is type(theirs)
    before, after = theirs.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


WAYS = [
    {"do_sample": False},
    {"do_sample": False, "use_cache": False},
    {"num_beams": 3, "do_sample": False},
    {"do_sample": True, "temperature": 1.5},
]
WAY_NAMES = ["greedy", "no cache", "beam", "sampling"]


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
@pytest.mark.parametrize("name", GENERATING)
def test_generation_is_the_same(name: str, options: dict[str, Any]) -> None:
    theirs = build(name)
    inputs = inputs_of(theirs, "right" if theirs.config.is_encoder_decoder else "left")
    inputs.pop("decoder_input_ids", None)
    texts = []
    for model in (theirs, from_hf(theirs)):
        transformers.set_seed(0)
        texts.append(model.generate(**inputs, **options, max_new_tokens=10, min_new_tokens=10, no_repeat_ngram_size=2))
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", [*GENERATING, "RobertaForCausalLM"])
@torch.no_grad()
def test_steps_with_a_cache_are_the_same(name: str) -> None:
    theirs = build(name, torch.float64)
    inputs = inputs_of(theirs, "none")
    text = inputs.pop("decoder_input_ids", inputs["input_ids"])
    outputs = []
    for model in (theirs, from_hf(theirs)):
        logits, cache = [], None
        for step in text.split(2, dim=1):
            given = {"decoder_input_ids": step, **inputs} if model.config.is_encoder_decoder else {"input_ids": step}
            output = model(**given, cache=cache, use_cache=True)
            logits.append(output.logits)
            cache = output.cache
        outputs.append(torch.cat(logits, dim=1))
    assert (outputs[0] - outputs[1]).abs().max() < TOLERANCE[torch.float64]


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
def test_roberta_generates_from_the_rows_of_transformers(options: dict[str, Any], padding: str) -> None:
    """`generate` hands transformers' RoBERTa positions from 0, where its own count begins after that of the padding. It
    can be told to begin there, and so can ours."""
    theirs = build("RobertaForCausalLM")
    ours, trained = from_hf(theirs), from_hf(theirs)
    trained.config.generation_offset = 0
    inputs = inputs_of(theirs, padding)
    mask, first = inputs["attention_mask"], theirs.config.pad_token_id + 1
    rows = (mask.cumsum(-1) - 1 + first).masked_fill(mask == 0, first - 1)
    texts = []
    for model, more in ((theirs, {}), (ours, {}), (theirs, {"position_ids": rows}), (trained, {})):
        transformers.set_seed(0)
        texts.append(model.generate(**inputs, **more, **options, max_new_tokens=10, min_new_tokens=10))
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[2], texts[3])
    assert not torch.equal(texts[0], texts[2])


LEARNED = ["BertModel", "BertLMHeadModel", "RobertaModel", "RobertaForCausalLM", "GPT2LMHeadModel"]


def accepts(model: Any, **inputs: Any) -> bool:
    """Whether a model of 40 rows of positions, or the import of one, has positions for its inputs."""
    refusals = (UsageError,) if model.config.model_type == "attnkit" else (IndexError, RuntimeError)
    try:
        model(**inputs)
    except refusals:
        return False
    return True


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", LEARNED)
@torch.no_grad()
def test_texts_may_be_as_long_as_in_transformers(name: str, more: int) -> None:
    theirs = build(name)
    ours, pad = from_hf(theirs), theirs.config.pad_token_id
    num_tokens = 40 - (pad + 1 if "Roberta" in name else 0) + more
    ids = torch.randint(3, 53, (2, num_tokens))
    vectors = torch.randn(2, num_tokens, theirs.config.hidden_size)
    for inputs in ({"input_ids": ids}, {"inputs_embeds": vectors}):
        assert [accepts(model, **inputs) for model in (theirs, ours)] == [not more] * 2
    padded = torch.cat([torch.full((2, 3), pad), ids], dim=1)  # padding has no place of its own in RoBERTa alone
    padded_inputs = {"input_ids": padded, "attention_mask": padded.ne(pad).long()}
    assert [accepts(model, **padded_inputs) for model in (theirs, ours)] == [not more and "Roberta" in name] * 2
    if not more and "Roberta" in name:
        assert worst_difference(theirs, ours, padded_inputs) < TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")  # which is what the first way is about
@pytest.mark.parametrize("name", [name for name in LEARNED if "LM" in name])
def test_a_generation_may_be_as_long_as_in_transformers(name: str) -> None:
    theirs = build(name)
    ours, pad = from_hf(theirs), theirs.config.pad_token_id
    ids = torch.randint(3, 53, (1, 38))
    padded = torch.cat([torch.full((1, 3), pad), ids], dim=1)
    for options in ({}, {"max_new_tokens": 3}, {"max_new_tokens": 3, "use_cache": False}):
        texts = [model.generate(ids, **options, eos_token_id=None, do_sample=False) for model in (theirs, ours)]
        assert texts[0].shape[1] == (41 if options else 40)
        assert torch.equal(*texts)
    inputs = {"attention_mask": padded.ne(pad).long(), "max_new_tokens": 3, "eos_token_id": None}
    assert torch.equal(*(model.generate(padded, **inputs, do_sample=False) for model in (theirs, ours)))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        theirs.generate(ids, max_new_tokens=4, eos_token_id=None)
    with pytest.raises(UsageError, match=r"(39|41) tokens, but position 'learned' has (38|40) positions"):
        ours.generate(ids, max_new_tokens=4, eos_token_id=None)


def test_where_a_generation_begins_to_count_is_exported_or_refused() -> None:
    ours = from_hf(build("RobertaForCausalLM"))
    assert ours.config.generation_offset == -2
    assert from_hf(to_hf(ours, "roberta")).config.generation_offset == -2
    ours.config.generation_offset = 0
    with pytest.raises(UsageError, match=r"cannot say generation_offset 0 \(there: -2\)"):
        to_hf(ours, "roberta")


@pytest.mark.parametrize("attn_type", ["bi", "uni"])
@torch.no_grad()
def test_a_memory_is_a_cache(attn_type: str) -> None:
    theirs = build("XLNetModel", attn_type=attn_type)
    ours, cache = from_hf(theirs), DynamicCache()
    first, second = torch.randint(3, 53, (2, 9)).split([5, 4], dim=1)
    memory = theirs(first).mems
    ours(first, cache=cache)
    one, other = theirs(second, mems=memory).last_hidden_state, ours(second, cache=cache).last_hidden_state
    assert (one - other).abs().max() < TOLERANCE[torch.float32]


ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear"},
    {"rope_type": "dynamic"},
    {"rope_type": "dynamic", "factor": 1.975291658702151, "rope_theta": 10000.0},
    {"rope_type": "yarn"},
    {"rope_type": "yarn", "original_max_position_embeddings": 5, "beta_fast": 4, "beta_slow": 0.1},
    {"rope_type": "yarn", "attention_factor": 1.5},
    {
        "rope_type": "llama3",
        "original_max_position_embeddings": 5,
        "low_freq_factor": 0.1,
        "high_freq_factor": 0.5,
    },
]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
        ("T5ForConditionalGeneration", {"relative_attention_max_distance": 5}),
        ("T5EncoderModel", {"relative_attention_max_distance": 3}),
        ("MarianMTModel", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
        ("MarianMTModel", {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": False}),
        ("MarianMTModel", {"scale_embedding": False, "activation_function": "relu"}),
        ("GPT2LMHeadModel", {"scale_attn_weights": False, "n_inner": None}),
        ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
        *((name, {"is_decoder": True}) for name in CLASSES if name in MAY_BE_CAUSAL),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        *(("LlamaForCausalLM", {"rope_parameters": {"rope_theta": 500.0, "factor": 4.0} | rope}) for rope in ROPES),
        ("BertForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    ],
)
def test_options_come_along(name: str, changes: dict[str, Any]) -> None:
    theirs = build(name, torch.float64, **changes)
    ours = from_hf(theirs)
    inputs = inputs_of(theirs, "right")
    assert worst_difference(theirs, ours, inputs) < TOLERANCE[torch.float64]
    assert worst_difference(to_hf(ours, theirs.config.model_type), ours, inputs) < TOLERANCE[torch.float64]


@torch.no_grad()
def test_two_streams_are_the_same() -> None:
    theirs = build("XLNetLMHeadModel")
    inputs = inputs_of(theirs, "right") | {"token_type_ids": torch.randint(0, 3, (2, 9))}
    inputs["perm_mask"] = (torch.rand(2, 9, 9) < 0.5).float()
    inputs["perm_mask"][:, :, 0] = 0  # a target that may see nothing sees everything in transformers' XLNet
    inputs["target_mapping"] = torch.eye(9)[torch.stack([torch.randperm(9)[:4] for _ in range(2)])]
    labels = torch.randint(0, 53, (2, 4))
    one, other = (model(**inputs, labels=labels) for model in (theirs, from_hf(theirs)))
    assert one.logits.shape == (2, 4, 53)
    assert (one.logits - other.logits).abs().max() < TOLERANCE[torch.float32]
    assert (one.loss - other.loss).abs() < TOLERANCE[torch.float32]


def test_only_waves_in_single_precision_part_the_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLNet of transformers makes its waves in fp32; with these in fp64, both agree as the other formats do."""
    theirs = build("XLNetLMHeadModel", torch.float64)
    ours, inputs = from_hf(theirs), inputs_of(theirs, "right")
    assert worst_difference(theirs, ours, inputs) > TOLERANCE[torch.float64]
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    assert worst_difference(theirs, ours, inputs) < TOLERANCE[torch.float64]


def test_changed_waves_become_learned_positions() -> None:
    theirs = build("MarianMTModel", torch.float64)
    with torch.no_grad():
        theirs.model.encoder.embed_positions.weight.normal_()
    ours = from_hf(theirs)
    assert ours.config.position == "learned"
    inputs = inputs_of(theirs, "right")
    assert worst_difference(theirs, ours, inputs) < TOLERANCE[torch.float64]
    assert worst_difference(to_hf(ours, "marian"), ours, inputs) < TOLERANCE[torch.float64]


@torch.no_grad()
def test_a_factor_that_nothing_reads_is_left_behind() -> None:
    theirs = build("LlamaModel", rope_parameters={"rope_type": "default", "rope_theta": 500.0, "factor": 4.0})
    assert from_hf(theirs).config.position_options == {"base": 500.0, "scaling": "default"}


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_folder_is_imported(name: str, tmp_path: Any) -> None:
    theirs = build(name)
    theirs.save_pretrained(tmp_path)
    ours = from_hf(tmp_path)
    assert worst_difference(theirs, ours, inputs_of(theirs, "right")) < TOLERANCE[torch.float32]


def test_left_to_right_without_a_mask() -> None:
    """A padding mask of more than one row ends in an error in transformers' XLNet where it reads from left to right."""
    theirs = build("XLNetLMHeadModel", attn_type="uni")
    ours, inputs = from_hf(theirs), {"input_ids": torch.randint(3, 53, (2, 9))}
    assert ours.config.pattern == "causal"
    assert worst_difference(theirs, ours, inputs) < TOLERANCE[torch.float32]
    assert worst_difference(to_hf(ours, "xlnet"), ours, inputs) < TOLERANCE[torch.float32]


def test_the_transform_of_roberta_has_an_activation_of_its_own() -> None:
    theirs = build("RobertaForMaskedLM", hidden_act="relu")
    ours = from_hf(theirs)
    assert (ours.config.hidden_act, ours.config.output_transform_act) == ("relu", "gelu")
    inputs = inputs_of(theirs, "left")
    for other in (ours, to_hf(ours, "roberta")):
        assert worst_difference(theirs, other, inputs) < TOLERANCE[torch.float32]
    bert = from_hf(build("BertForMaskedLM"))
    bert.config.output_transform_act = "relu"
    with pytest.raises(UsageError, match="bert' cannot say output_transform_act 'relu'"):
        to_hf(bert, "bert")


def test_what_has_no_field_is_refused() -> None:
    with pytest.raises(UsageError, match="bert: add_cross_attention True has no counterpart"):
        from_hf(build("BertLMHeadModel", add_cross_attention=True))
    with pytest.raises(UsageError, match="bert: is_decoder True has no counterpart"):
        from_hf(build("BertForMaskedLM", is_decoder=True))
    with pytest.raises(UsageError, match="xlnet: clamp_len 3 has no counterpart: distances are products of waves"):
        from_hf(build("XLNetModel", clamp_len=3))
    with pytest.raises(UsageError, match="xlnet: bi_data True has no counterpart: there one half of a batch is read"):
        from_hf(build("XLNetModel", bi_data=True))
    with pytest.raises(UsageError, match="xlnet: same_length True has no counterpart: what a token sees depends on"):
        from_hf(build("XLNetModel", same_length=True, attn_type="uni"))
    with pytest.raises(UsageError, match="vocab_size and decoder_vocab_size differ"):
        from_hf(build("MarianModel", decoder_vocab_size=54))
    with pytest.raises(UsageError, match="llama: rope_type 'proportional' has no counterpart, only default, linear, "):
        from_hf(build("LlamaModel", rope_parameters={"rope_type": "proportional", "rope_theta": 500.0}))
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 1.0}
    with pytest.raises(UsageError, match=r"llama: rope_parameters \{'mscale': 0.5, 'mscale_all_dim': 1.0\} have no"):
        from_hf(build("LlamaModel", rope_parameters=yarn))
    with pytest.raises(UsageError, match="no import of 'electra': "):
        from_hf(transformers.ElectraModel(transformers.ElectraConfig(**BERT)))


@pytest.mark.parametrize("name", [name for name in CLASSES if name.endswith("QuestionAnswering")])
def test_an_answer_has_two_ends(name: str) -> None:
    theirs = build(name, num_labels=3)
    if len(theirs.qa_outputs.weight) == 2:  # some classes never ask how many labels there are
        assert worst_difference(theirs, from_hf(theirs), inputs_of(theirs, "right")) < TOLERANCE[torch.float32]
    else:
        with pytest.raises(UsageError, match="num_labels 3 has no counterpart, only 2 has one"):
            from_hf(theirs)


SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20}


def test_what_a_format_cannot_say_is_refused() -> None:
    model = AttnKitForCausalLM(AttnKitConfig(**SMALL, position="learned", scorer="gaussian"))
    with pytest.raises(UsageError, match=r"format 'gpt2' cannot say .*scorer 'gaussian' \(there: 'scaled_dot'\)"):
        to_hf(model, "gpt2")
    with pytest.raises(
        UsageError, match="format 'xlnet' has no class for AttnKitForCausalLM with architecture 'decoder'"
    ):
        to_hf(model, "xlnet")
    with pytest.raises(UsageError, match="unknown format 'gtp2': did you mean 'gpt2'"):
        to_hf(model, "gtp2")


@pytest.mark.parametrize("options", [None, {"base": 50.0}, *({"scaling": kind} for kind in ("yarn", "llama3"))])
def test_options_left_to_their_defaults_are_exported(options: dict[str, Any] | None) -> None:
    fields = {"norm": "rmsnorm", "gated_activation": True, "position_counting": "all", "position_options": options}
    ours = AttnKitForCausalLM(AttnKitConfig(**SMALL, **fields, attention_bias=False, mlp_bias=False)).eval()
    ids = {"input_ids": torch.randint(20, (2, 9))}
    assert worst_difference(ours, to_hf(ours, "llama"), ids) < TOLERANCE[torch.float32]


def test_a_model_of_our_own_is_exported() -> None:
    config = AttnKitConfig(
        **SMALL,
        architecture="encoder",
        position="learned",
        position_counting="all",
        norm_position="post",
        type_vocab_size=2,
    )
    ours = AttnKitForMaskedLM(config).eval()
    theirs = to_hf(ours, "bert")
    assert isinstance(theirs, transformers.BertForMaskedLM)
    assert worst_difference(ours, theirs, {"input_ids": torch.randint(20, (2, 5))}) < TOLERANCE[torch.float32]
