"""Every class to every format, as it is and changed: the same outputs, or one line that says why not."""

import random
from typing import Any

import pytest
import torch
import transformers
from foreign import TOLERANCE, build, inputs_of, tensors

from attnkit import AttnKitConfig, from_hf, to_hf
from attnkit.errors import UsageError
from attnkit.models.foreign import FORMATS

CLASSES = [name for form in FORMATS.values() for name in form.heads]
OFFSET: dict[str, Any] = {"position": "learned", "position_options": {"offset": 3}}
CHANGES: list[dict[str, Any]] = [
    {},
    {"type_vocab_size": 0},
    {"pooler": False, "pooling": None},
    {"pooling": "mean"},
    {"head_dim": 4},
    OFFSET,
    *({"position": name, "position_options": None} for name in ("learned", "rope", "sinusoidal", "t5")),
    {"position": "transformer_xl", "position_options": None},
    {"norm_position": "pre", "embedding_norm": None, "final_norm": None},
    {"decoder_head_dim": 5},
    {"norm": "rmsnorm", "gated_activation": True, "attention_bias": False, "mlp_bias": False},
]


def small(name: str) -> Any:
    sizes = {"num_hidden_layers": 1, "decoder_layers": 1, "num_decoder_layers": 1}
    config_class = getattr(transformers, name).config_class
    known = set(vars(config_class())) | set(config_class.attribute_map)
    return build(name, **{key: size for key, size in sizes.items() if key in known})


@torch.no_grad()
@pytest.mark.parametrize("name", CLASSES)
def test_an_export_is_the_same_or_one_line(name: str) -> None:
    theirs = small(name)
    base, own = from_hf(theirs), theirs.config.model_type
    said: list[str] = []
    drawn = random.Random(name).sample(CHANGES, 5)
    pairs = [({}, target) for target in FORMATS if target != own] + [(change, own) for change in drawn]
    for change, target in [*pairs, (OFFSET, "llama")]:
        fields = {key: value for key, value in base.config.to_dict().items() if key != "architectures"}
        try:
            ours = type(base)(AttnKitConfig(**fields | change)).eval()
        except UsageError:
            continue
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        try:
            exported = to_hf(ours, target)
        except UsageError as error:
            said.append(str(error))
            continue
        inputs = inputs_of(theirs, "none")
        one, other = (tensors(model(**inputs)) for model in (ours, exported))
        assert one.keys() & other.keys()
        for key in one.keys() & other.keys():
            torch.testing.assert_close(one[key], other[key], rtol=0, atol=10 * TOLERANCE[torch.float32])
    assert not [line for line in said if "\n" in line]


REFUSED: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("BertForSequenceClassification", "bert"): ({"pooler": False}, r"cannot say pooler False \(there: True\)"),
    ("RobertaForSequenceClassification", "roberta"): ({"pooler": False}, r"cannot say pooler False \(there: True\)"),
    ("RobertaModel", "roberta"): ({"pooler": False}, r"cannot say pooler False \(there: True\)"),
    ("RobertaForCausalLM", "llama"): ({}, "position 'learned' .there: 'rope'.*position_options {'offset': 2}"),
    ("MarianMTModel", "marian"): ({"position": "t5", "position_options": None}, "cannot say position 't5'"),
    ("MarianModel", "marian"): (
        {"position": "transformer_xl", "position_options": None},
        "cannot say position 'transformer_xl'",
    ),
    ("XLNetModel", "xlnet"): ({"head_dim": 5}, r"format 'xlnet' refuses: .*`d_head` \(5\) should be equal to"),
}


@pytest.mark.parametrize(("name", "target"), REFUSED)
def test_what_a_format_cannot_hold_is_named(name: str, target: str) -> None:
    base = from_hf(small(name))
    change, said = REFUSED[name, target]
    fields = {key: value for key, value in base.config.to_dict().items() if key != "architectures"}
    with pytest.raises(UsageError, match=said) as raised:
        to_hf(type(base)(AttnKitConfig(**fields | change)), target)
    assert "\n" not in str(raised.value)


def test_no_types_are_one_row_of_zeros() -> None:
    base = from_hf(small("BertForMaskedLM"))
    fields = {key: value for key, value in base.config.to_dict().items() if key != "architectures"}
    exported = to_hf(type(base)(AttnKitConfig(**fields | {"type_vocab_size": 0})), "bert")
    assert exported.config.type_vocab_size == 1
    assert from_hf(exported).config.type_vocab_size == 0


def test_what_is_no_model_is_one_line() -> None:
    with pytest.raises(UsageError, match="source must be a model of transformers or the folder of a checkpoint, not N"):
        from_hf(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model must be one of attnkit, not GPT2LMHeadModel: give what from_hf makes"):
        to_hf(small("GPT2LMHeadModel"), "gpt2")
