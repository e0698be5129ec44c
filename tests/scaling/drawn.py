"""Configs drawn from the registries: a part is drawn as soon as it is registered, with all of its options."""

from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from attnkit import AttnKitConfig
from attnkit.attention import normalizers, patterns, positions, scorers
from attnkit.attention.options import option_types
from attnkit.errors import UsageError

HEADS = {
    "encoder": ["none", "masked_lm", "token_classification", "question_answering", "sequence_classification"],
    "decoder": ["none", "causal_lm", "sequence_classification", "token_classification"],
    "encoder-decoder": ["none", "seq2seq_lm", "sequence_classification", "question_answering"],
}

DECODER_SIZES = {
    "num_decoder_attention_heads": st.sampled_from([1, 2]),
    "num_decoder_key_value_heads": st.just(1),
    "decoder_head_dim": st.sampled_from([4, 10]),
    "decoder_intermediate_size": st.integers(1, 40),
}


def values(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Values of one option of a part."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_args(hint):
        return st.one_of(*(st.none() if part is type(None) else values(name, part) for part in get_args(hint)))
    if name in ("width", "rank"):
        return st.sampled_from([2, 6])
    if hint is int:
        return st.integers(1, 40)
    if hint is float:
        return st.sampled_from([0.5, 1.0, 2.0])
    return {str: st.just("default"), bool: st.booleans()}[hint]


@st.composite
def part(draw: st.DrawFn, registry: dict[str, type]) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(sorted(registry)))
    hints = option_types(registry[name])
    chosen = draw(st.lists(st.sampled_from(sorted(hints)), unique=True)) if hints else []
    return name, {option: draw(values(option, hints[option])) for option in sorted(chosen)}


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    head_dim = draw(st.sampled_from([4, 6, 8]))
    groups, repeats = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]))
    return {
        "hidden_size": draw(st.sampled_from([8, 24, 30])),
        "head_dim": head_dim,
        "num_attention_heads": groups * repeats,
        "num_key_value_heads": groups,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "intermediate_size": draw(st.integers(1, 40)),
        "vocab_size": draw(st.integers(3, 50)),
        "max_position_embeddings": draw(st.integers(24, 40)),
        "type_vocab_size": draw(st.integers(0, 2)),
    }


@st.composite
def configs(draw: st.DrawFn) -> tuple[AttnKitConfig, str]:
    """A config that means something, and a head of its model."""
    architecture = draw(st.sampled_from(sorted(HEADS)))
    fields: dict[str, Any] = {"architecture": architecture, **draw(sizes())}
    fields["scorer"], fields["scorer_options"] = draw(part(scorers))
    fields["position"], fields["position_options"] = draw(part(positions))
    fields["normalizer"], fields["normalizer_options"] = draw(part(normalizers))
    fields["pattern"], fields["pattern_options"] = draw(part(patterns))
    fields["norm"] = draw(st.sampled_from(["layernorm", "rmsnorm", "t5_rmsnorm"]))
    fields["norm_position"] = draw(st.sampled_from(["pre", "post"]))
    fields["sharing"] = draw(st.sampled_from(["separate", "key_value", "query_key", "all"]))
    switches = ["embedding_norm", "final_norm", "gated_activation", "attention_bias", "attention_output_bias"]
    switches += ["mlp_bias", "output_bias", "pooler", "output_transform", "tie_word_embeddings", "attend_to_self"]
    switches += ["share_encoder_decoder_embeddings", "parallel_residual"]
    fields |= {name: draw(st.booleans()) for name in switches}
    if architecture == "encoder-decoder":
        fields["num_decoder_layers"] = draw(st.integers(1, 3))
        fields |= {name: draw(st.none() | size) for name, size in DECODER_SIZES.items()}
        if draw(st.booleans()):
            fields["cross_scorer"], fields["cross_scorer_options"] = draw(part(scorers))
    layers = fields["num_hidden_layers"] + fields.get("num_decoder_layers", 0)
    if draw(st.booleans()):
        fields["layer_scorers"] = [dict([draw(part(scorers))]) for _ in range(layers)]
        fields["scorer_options"] = None
    if draw(st.booleans()):
        fields["layer_patterns"] = [dict([draw(part(patterns))]) for _ in range(layers)]
        fields["pattern_options"] = None
    fields = mended(fields)
    if architecture == "encoder" and fields["position"] == "transformer_xl":
        fields["two_stream"] = True
        return AttnKitConfig(**fields), "permutation_lm"
    heads = HEADS[architecture] + (["pre_training"] if architecture == "encoder" and fields["pooler"] else [])
    return AttnKitConfig(**fields), draw(st.sampled_from(heads))


def mended(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields without what cannot go together: each change is one that an error of the config asks for."""
    grouped = fields["num_attention_heads"] != fields["num_key_value_heads"]
    grouped = grouped or fields.get("num_decoder_key_value_heads") or fields.get("num_decoder_attention_heads")
    if grouped and fields["sharing"] in ("query_key", "all"):
        fields["sharing"] = "separate"
    if fields["norm_position"] == "post":
        fields["parallel_residual"] = False
    for change in ({}, {"position": "none", "position_options": None}, {"position": "learned", "position_options": {}}):
        try:
            AttnKitConfig(**fields | change)
        except UsageError:
            continue
        return fields | change
    AttnKitConfig(**fields)  # raises what is wrong with it
    raise AssertionError
