"""What a configuration may not say, each with its remedy."""

from itertools import product
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

import attnkit
from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.attention import normalizers, patterns, positions, scorers
from attnkit.attention.options import option_types
from attnkit.errors import UsageError
from attnkit.testing.models import build_model, sample_ids

MISTAKES = {
    "unknown scorer 'cosin': did you mean 'cosine'": {"scorer": "cosin"},
    "order enters twice": {"scorer": "location"},
    "works through the comparison of query and key": {"scorer": "linear"},
    "attn_implementation 'sdpa': Additive scores are no dot product; use 'pairwise'": {
        "scorer": "additive",
        "attn_implementation": "sdpa",
    },
    "use 'eager'": {"normalizer": "hard", "attn_implementation": "pairwise"},
    "temperature of Cosine is 'warm', not 'learned' or 'fixed' or 'query'": {
        "scorer": "cosine",
        "scorer_options": {"temperature": "warm"},
    },
    "Cosine takes no option 'temprature': did you mean 'temperature'": {
        "scorer": "cosine",
        "scorer_options": {"temprature": 1},
    },
    "pattern option window must be at least 1": {"pattern": "sliding_window", "pattern_options": {"window": 0}},
    "hidden_dropout must be at least 0 and less than 1": {"hidden_dropout": 2},
    "num_labels must be a whole number of at least 1, not 2.5": {"num_labels": 2.5},
    "id2label must be a mapping from whole numbers to names": {"id2label": {"a": 1}},
    "label2id must be a mapping from names to whole numbers": {"label2id": ["a"]},
    "unknown problem_type 'single_label': did you mean 'single_label_classification'": {"problem_type": "single_label"},
    "attn_implementation must be the name of a backend": {"attn_implementation": 3},
    "type_vocab_size must be at most the 2 segments of position_options, not 3": {
        "position": "transformer_xl",
        "position_options": {"segments": 2},
        "type_vocab_size": 3,
    },
    "type_vocab_size must be at most": {"type_vocab_size": 2**40},
    "pad_token_id must be at least 0 and less than vocab_size": {"pad_token_id": 99999},
    "a mapping from one name to a mapping of its options": {"num_hidden_layers": 1, "layer_scorers": [{"dot": 3}]},
    "give one each": {"layer_scorers": ["dot"]},
    r"scorer_options are of no layer, as layer_scorers names the part of each: give them there, as \{name: options\}": {
        "num_hidden_layers": 1,
        "scorer": "gaussian",
        "scorer_options": {"width": "fixed"},
        "layer_scorers": ["dot"],
    },
    "scorer_options are of no layer": {
        "architecture": "encoder-decoder",
        "num_hidden_layers": 1,
        "scorer": "gaussian",
        "scorer_options": {"width": "fixed"},
        "cross_scorer": "dot",
        "layer_scorers": ["dot", "dot"],
    },
    "pattern_options are of no layer, as layer_patterns names the part of each": {
        "architecture": "encoder-decoder",
        "num_hidden_layers": 1,
        "pattern": "sliding_window",
        "pattern_options": {"window": 3},
        "layer_patterns": ["full", "full"],
    },
    "position option factor 2.0 is for a scaling, as 'linear', not 'default'": {"position_options": {"factor": 2.0}},
    "is no multiple of num_attention_heads": {"hidden_size": 30},
    "give a divisor of it": {"num_key_value_heads": 3},
    "num_attention_heads must be at least 1": {"num_attention_heads": 0},
    "is no multiple of num_decoder_attention_heads 3: change one of them, or give decoder_head_dim": {
        "architecture": "encoder-decoder",
        "num_decoder_attention_heads": 3,
    },
    "num_decoder_attention_heads 4 is no multiple of num_decoder_key_value_heads 3: give a divisor of it": {
        "architecture": "encoder-decoder",
        "num_decoder_key_value_heads": 3,
    },
    "decoder_intermediate_size must be at least 1": {"architecture": "encoder-decoder", "decoder_intermediate_size": 0},
    "decoder_intermediate_size is for architecture 'encoder-decoder', not 'decoder'": {"decoder_intermediate_size": 8},
    "position 't5' needs num_buckets of at least 4, and max_distance of more": {
        "position": "t5",
        "position_options": {"num_buckets": 3},
    },
    "a bucket each, 4 of 8 buckets here, not 4": {
        "architecture": "encoder-decoder",
        "position": "t5",
        "position_options": {"num_buckets": 8, "max_distance": 4},
    },
    "a bucket each, 2 of 8 buckets here, not 2": {
        "architecture": "encoder",
        "position": "t5",
        "position_options": {"num_buckets": 8, "max_distance": 2},
    },
    "position option base must be more than 1, not 0.0": {"position": "rope", "position_options": {"base": 0.0}},
}


@pytest.mark.parametrize(("said", "fields"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_its_remedy(said: str, fields: dict) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        attnkit.AttnKitConfig(**fields)
    assert "\n" not in str(raised.value)


def test_options_that_cross_attention_alone_reads_are_read() -> None:
    fields = {"architecture": "encoder-decoder", "num_hidden_layers": 1, "layer_scorers": ["dot", "dot"]}
    config = AttnKitConfig(**fields, scorer="gaussian", scorer_options={"width": "fixed"})
    assert config.scorer_of_cross_attention(0) == ("gaussian", {"width": "fixed"})


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
def test_a_mask_of_another_kind_is_one_line(architecture: str, backend: str) -> None:
    sizes = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = attnkit.AttnKitModel(AttnKitConfig(**sizes, architecture=architecture, attn_implementation=backend)).eval()
    ids = torch.arange(5)[None]
    rest = {"decoder_input_ids": ids} if architecture == "encoder-decoder" else {}
    pairs = torch.ones(1, 5, 5).tril()
    for mask, said in (
        (pairs[:, None].long(), r"not torch.int64 \[1, 1, 5, 5\]: convert it with .bool\(\)$"),
        (pairs.long(), r"not torch.int64 \[1, 5, 5\]: write mask\[:, None\].bool\(\) where it is one of pairs$"),
        (pairs.bool(), r"not torch.bool \[1, 5, 5\]: write mask"),
        (torch.ones(5), r"not torch.float32 \[5\]"),
    ):
        with pytest.raises(UsageError, match=rf"^attention_mask must be \[batch, tokens\], .* {said}"):
            model(input_ids=ids, attention_mask=mask, **rest)
    if architecture != "encoder-decoder":
        model(input_ids=ids, attention_mask=pairs[:, None].bool())


def test_all_mistakes_are_said_at_once() -> None:
    said = r"^scorer: unknown scorer 'dott'.*\nnormalizer: unknown .* 'softmx'.*\npattern: unknown pattern 'x'"
    with pytest.raises(UsageError, match=said):
        attnkit.AttnKitConfig(scorer="dott", normalizer="softmx", pattern="x")


def test_what_does_not_go_together_is_said_beside_what_is_wrong_by_itself() -> None:
    together = ["scorer: order enters twice: 'location'", "attn_implementation 'paged|sdpa': 'paged|sdpa' leaves out"]
    fields = {"scorer": "location", "position": "rope", "attn_implementation": "paged|sdpa"}
    for mistake, said in (
        ({"num_attention_heads": 3}, "hidden_size 256 is no multiple"),
        ({"normalizer_options": {"x": 1}}, "normalizer_options: Softmax takes no option 'x': it takes none"),
    ):
        with pytest.raises(UsageError) as found:
            AttnKitConfig(**fields, **mistake)
        lines = str(found.value).splitlines()
        assert [line[: len(start)] for line, start in zip(lines, [said, *together], strict=True)] == [said, *together]


def test_a_scorer_says_how_many_positions_it_has() -> None:
    with pytest.raises(UsageError, match="40 tokens, but Location has 32 positions"):
        build_model(scorer="location", position="none")(sample_ids(40))


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r'attn_implementation="sdp"` is not supported: did you mean .sdpa.'):
        build_model().set_attn_implementation("sdp")


@pytest.mark.parametrize("scorer", ["gaussian", "additive"])
def test_weights_are_computed_where_they_are_asked_for(scorer: str) -> None:
    model = build_model(scorer=scorer, position="none")
    weights = model(sample_ids(5), output_attentions=True).attentions
    assert [tuple(weight.shape) for weight in weights] == [(2, 4, 5, 5)] * 2
    assert (weights[0].sum(-1) - 1).abs().max() < 1e-6


FAMILIES = {"scorer": scorers, "normalizer": normalizers, "pattern": patterns, "position": positions}
PARTS = [(family, name) for family, registry in FAMILIES.items() for name in registry if option_types(registry[name])]
ODD_VALUES: list[Any] = [
    0,
    -1,
    1,
    0.5,
    1e-6,
    1e6,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
    True,
    "x",
    None,
    {},
    10**9,
]
TINY: dict[str, Any] = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"max_position_embeddings": 8, "position": "none"}


def refused_or_built(fields: dict[str, Any]) -> tuple[AttnKitConfig | None, str]:
    """The configuration and nothing, or nothing and why it is refused."""
    try:
        return AttnKitConfig(**fields), ""
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize(("family", "name"), PARTS)
def test_an_odd_option_is_refused_or_works(family: str, name: str) -> None:
    hints = option_types(FAMILIES[family][name])
    forms = {key: get_args(hint) for key, hint in hints.items() if get_origin(hint) is Literal}
    for form in product(*forms.values()):
        chosen = dict(zip(forms, form, strict=True))
        for key, value in product(hints.keys() - forms.keys(), ODD_VALUES):
            fields = TINY | {family: name, f"{family}_options": chosen | {key: value}}
            config, said = refused_or_built(fields)
            assert "\n" not in said
            if config is None or value == 10**9:
                continue  # refused, or a size that is possible elsewhere
            torch.manual_seed(0)
            model, ids = AttnKitForCausalLM(config), torch.randint(0, 13, (1, 6))
            model(ids, labels=ids).loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all(), (chosen, key, value)


NUMBERS = [name for name, hint in AttnKitConfig.__annotations__.items() if {int, float} & {hint, *get_args(hint)}]


@pytest.mark.parametrize("name", NUMBERS)
def test_an_odd_number_is_refused_or_works(name: str) -> None:
    for value in [0, -1, 0.5, -0.5, float("nan"), float("inf"), "x", [1], {}]:
        config, said = refused_or_built(TINY | {name: value})
        if config is None:
            assert all(name in line or "embedding_dropout" in line for line in said.splitlines())
            continue
        ids = torch.randint(0, 13, (1, 6))
        assert AttnKitForCausalLM(config)(ids, labels=ids).loss.isfinite(), (name, value)
