"""What a configuration may not say, each with its remedy."""

import pytest

import attnkit
from attnkit.errors import UsageError
from attnkit.testing import build_model, sample_ids

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
    "pad_token_id must be at least 0 and less than vocab_size": {"pad_token_id": 99999},
    "a mapping from one name to a mapping of its options": {"num_hidden_layers": 1, "layer_scorers": [{"dot": 3}]},
    "give one each": {"layer_scorers": ["dot"]},
    "is no multiple of num_attention_heads": {"hidden_size": 30},
    "give a divisor of it": {"num_key_value_heads": 3},
    "num_attention_heads must be at least 1": {"num_attention_heads": 0},
    "position 't5' needs num_buckets of at least 4 and max_distance of more than half of them": {
        "position": "t5",
        "position_options": {"num_buckets": 3},
    },
    "position 'rope' needs factor >= 1 and base > 0": {"position": "rope", "position_options": {"base": 0.0}},
}


@pytest.mark.parametrize(("said", "fields"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_its_remedy(said: str, fields: dict) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        attnkit.AttnKitConfig(**fields)
    assert "\n" not in str(raised.value)


def test_all_mistakes_are_said_at_once() -> None:
    said = r"^unknown scorer 'dott'.*\nunknown normalizer 'softmx'.*\nunknown pattern 'x'"
    with pytest.raises(UsageError, match=said):
        attnkit.AttnKitConfig(scorer="dott", normalizer="softmx", pattern="x")


def test_an_own_part_that_fails_is_named_with_its_line() -> None:
    @attnkit.scorers.register("failing")
    class Failing(attnkit.Scorer):
        def __init__(self, *, factor: int = 0, **shape) -> None:
            super().__init__(**shape)
            self.scale = 1 / factor

    try:
        said = (
            r"^scorer 'failing' cannot be built with options \{\} \(.*test_config_errors\.py:\d+: ZeroDivisionError: "
        )
        with pytest.raises(UsageError, match=said):
            attnkit.AttnKitConfig(scorer="failing")
    finally:
        attnkit.scorers.pop("failing")


def test_a_scorer_says_how_many_positions_it_has() -> None:
    with pytest.raises(UsageError, match="40 tokens, but Location has 32 positions"):
        build_model(scorer="location", position="none")(sample_ids(40))


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown attn_implementation 'sdp': did you mean 'sdpa'"):
        build_model().set_attn_implementation("sdp")


@pytest.mark.parametrize("scorer", ["gaussian", "additive"])
def test_weights_are_computed_where_they_are_asked_for(scorer: str) -> None:
    model = build_model(scorer=scorer, position="none")
    weights = model(sample_ids(5), output_attentions=True).attentions
    assert [tuple(weight.shape) for weight in weights] == [(2, 4, 5, 5)] * 2
    assert (weights[0].sum(-1) - 1).abs().max() < 1e-6
