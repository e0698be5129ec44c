"""Every field of every configuration that is imported: it arrives, is refused, or it is said why it does not matter.

A field that another version of transformers adds is in none of these and fails here.
"""

import dataclasses
from typing import Any

import pytest
import torch
import transformers
from foreign import CONFIGS, build, inputs_of, tolerance, worst_difference

from attnkit.errors import UsageError
from attnkit.models.convert import from_hf
from attnkit.models.foreign import FORMATS

BODIES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "gpt2": "GPT2ForSequenceClassification",
    "llama": "LlamaForSequenceClassification",
    "marian": "MarianMTModel",
    "t5": "T5ForConditionalGeneration",
    "xlnet": "XLNetLMHeadModel",
}
EVERYWHERE = {
    "transformers_version": "says who wrote the file",
    "architectures": "is the class itself, which is at hand",
    "dtype": "is that of the weights",
    "label2id": "follows from id2label",
    "output_hidden_states": "is asked for by a call",
    "return_dict": "is asked for by a call",
    "chunk_size_feed_forward": "divides the work and computes the same",
    "is_encoder_decoder": "follows from the class, and is refused where it does not",
}
OWN_CLASSES = "is read by classes that are no format's"
IRRELEVANT: dict[str, dict[str, str]] = {
    "gpt2": {
        "reorder_and_upcast_attn": "is how the score is computed: in fp32",
        **{f"summary_{name}": OWN_CLASSES for name in ("type", "use_proj", "activation", "proj_to_labels")},
        "summary_first_dropout": OWN_CLASSES,
    },
    "llama": {"pretraining_tp": "is read by nothing"},
    "marian": {
        "forced_eos_token_id": "is of generation, and its configuration is taken over",
        "is_decoder": "is set by the class itself for each stack",
    },
    "t5": {
        "initializer_factor": "is how weights start, which are at hand",
        "is_decoder": "is set by the class itself for each stack",
    },
    "xlnet": {
        "mem_len": "is how much memory a call hands on: the caller's cache here",
        "reuse_len": "is how much memory a call hands on: the caller's cache here",
        "use_mems_train": "is whether a call hands on a memory",
        "same_length": "is read with attn_type 'uni' alone, and refused there",
        **{f"summary_{name}": OWN_CLASSES for name in ("type", "use_proj", "activation", "last_dropout")},
        "start_n_top": OWN_CLASSES,
        "end_n_top": OWN_CLASSES,
    },
}
# Values of fields for which twice, or not, what they have is none.
OTHERS: dict[str, Any] = {
    "transformers_version": "5.0.0",
    "id2label": {0: "bad", 1: "good"},
    "label2id": {"bad": 0, "good": 1},
    "chunk_size_feed_forward": 1,
    "architectures": ["Other"],
    "dtype": torch.float64,
    "problem_type": "regression",
    "hidden_act": "relu",
    "activation_function": "relu",
    "ff_activation": "relu",
    "feed_forward_proj": "gated-gelu",
    "attn_type": "uni",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "summary_type": "mean",
    "summary_activation": "relu",
    "classifier_dropout": 0.3,
    "eos_token_id": 4,
    "bos_token_id": 5,
    "pad_token_id": 3,
    "forced_eos_token_id": 5,
    "decoder_start_token_id": 6,
    "hidden_size": 60,
    "d_model": 60,
    "n_embd": 60,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "n_head": 3,
    "decoder_attention_heads": 5,
    "encoder_attention_heads": 3,
    "n_inner": 19,
    "mem_len": 3,
    "reuse_len": 3,
}
# Fields that transformers has together only.
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("bert", "add_cross_attention"): {"add_cross_attention": True, "is_decoder": True},
    ("roberta", "add_cross_attention"): {"add_cross_attention": True, "is_decoder": True},
    ("llama", "num_attention_heads"): {"num_attention_heads": 10},
    ("xlnet", "d_head"): {"d_head": 10, "n_head": 3},
}
FIELDS = [
    (model_type, field.name)
    for model_type in FORMATS
    for field in dataclasses.fields(getattr(transformers, BODIES[model_type]).config_class)
]


def another(model_type: str, name: str) -> dict[str, Any]:
    """A field with a value that it does not have yet."""
    if (model_type, name) in TOGETHER:
        return TOGETHER[model_type, name]
    if name in OTHERS:
        return {name: OTHERS[name]}
    model_class = getattr(transformers, BODIES[model_type])
    value = getattr(model_class.config_class(**CONFIGS[model_type]), name)
    if isinstance(value, bool):
        return {name: not value}
    if isinstance(value, float):
        return {name: value + 0.125}
    assert isinstance(value, int), f"{model_type}: {name} {value!r} is new: map it, refuse it, or say why neither"
    return {name: 2 * value if value > 0 else value + 2}


def outcome(model_type: str, name: str) -> str:
    """What becomes of a field: "arrives", "refused" or "ignored"; in no case are the outputs others."""
    before = from_hf(build(BODIES[model_type])).config.to_dict()
    before.pop("dtype")
    theirs = build(BODIES[model_type], **another(model_type, name))
    try:
        ours = from_hf(theirs)
    except UsageError:
        return "refused"
    inputs = inputs_of(theirs, "none" if model_type == "xlnet" else "right")
    if model_type == "xlnet":
        del inputs["attention_mask"]  # which it cannot take with every attn_type
    if name != "return_dict":
        assert worst_difference(theirs, ours, inputs) < tolerance(theirs)
    after = ours.config.to_dict()
    after.pop("dtype")
    return "ignored" if after == before else "arrives"


@pytest.mark.parametrize(("model_type", "name"), FIELDS, ids=["-".join(it) for it in FIELDS])
def test_a_field_arrives_or_is_refused_or_does_not_matter(model_type: str, name: str) -> None:
    reasons = EVERYWHERE | IRRELEVANT.get(model_type, {})
    assert outcome(model_type, name) in ("refused", "ignored" if name in reasons else "arrives")
