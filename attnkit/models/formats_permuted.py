"""The format of XLNet, which is Transformer-XL with two streams."""

from dataclasses import replace
from typing import Any

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.formats import POOLING_FIELDS, Format, Head, Rule, Swapped, base, field_names, table
from attnkit.models.permutation import AttnKitForPermutationLM

BODY = """
encoder.embeddings.tokens                                       word_embedding
encoder.target_start                                            mask_emb
encoder.layers.{i}.attention.o_proj.weight                      layer.{i}.rel_attn.o
encoder.layers.{i}.attention.position.content_prior             layer.{i}.rel_attn.r_w_bias
encoder.layers.{i}.attention.position.distance_prior            layer.{i}.rel_attn.r_r_bias
encoder.layers.{i}.attention.position.segment_prior             layer.{i}.rel_attn.r_s_bias
encoder.layers.{i}.attention.position.segment_weight            layer.{i}.rel_attn.seg_embed
encoder.layers.{i}.attention_residual.norm                      layer.{i}.rel_attn.layer_norm
encoder.layers.{i}.feed_forward.up_proj                         layer.{i}.ff.layer_1
encoder.layers.{i}.feed_forward.down_proj                       layer.{i}.ff.layer_2
encoder.layers.{i}.feed_forward_residual.norm                   layer.{i}.ff.layer_norm
"""
TRANSPOSED = """
encoder.layers.{i}.attention.q_proj.weight                      layer.{i}.rel_attn.q
encoder.layers.{i}.attention.k_proj.weight                      layer.{i}.rel_attn.k
encoder.layers.{i}.attention.v_proj.weight                      layer.{i}.rel_attn.v
"""
NUM_SEGMENTS = 4  # texts A and B, the class token and padding


def body(_: AttnKitConfig) -> dict[str, Rule]:
    """Its projections keep heads apart, and its distances come before heads."""
    rules = table(BODY) | {name: replace(rule, transposed=True) for name, rule in table(TRANSPOSED).items()}
    return rules | {"encoder.layers.{i}.attention.position.weight": Swapped("layer.{i}.rel_attn.r")}


def read_xlnet(config: Any) -> dict[str, Any]:
    refuse_unreachable(config)
    return {
        "pattern": "causal" if config.attn_type == "uni" else "full",
        "position_options": {"width": config.d_model, "segments": NUM_SEGMENTS},
        "attention_dropout": config.dropout,
        "activation_dropout": config.dropout,
    }


def refuse_unreachable(config: Any) -> None:
    """Raise `UsageError` for options that make more than a function of one text, or of distances of any length."""
    for key, unreachable, reason in (
        ("clamp_len", config.clamp_len > 0, "distances are products of waves, which have no bound"),
        ("bi_data", config.bi_data, "there one half of a batch is read backwards, here all rows alike"),
        ("same_length", config.same_length and config.attn_type == "uni", "what a token sees depends on the memory"),
    ):
        if unreachable:
            raise UsageError(f"xlnet: {key} {getattr(config, key)!r} has no counterpart: {reason}")


XLNET = Format(
    model_type="xlnet",
    names=field_names(
        hidden_size="d_model",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        head_dim="d_head",
        intermediate_size="d_inner",
        hidden_act="ff_activation",
        norm_eps="layer_norm_eps",
        hidden_dropout="dropout",
    )
    | {"use_cache": "use_mems_eval"},
    constants={
        "architecture": "encoder",
        "two_stream": True,
        "position": "transformer_xl",
        "position_counting": "all",
        "norm_position": "post",
        "embedding_norm": False,
        "attention_bias": False,
    },
    read_more=read_xlnet,
    write_more=lambda config: {"attn_type": "uni" if config.pattern == "causal" else "bi"},
    unsaid=frozenset({"max_position_embeddings"}),
    body=body,
    heads={
        "XLNetModel": base(),
        "XLNetLMHeadModel": Head(
            AttnKitForPermutationLM,
            ("model.", "transformer."),
            table("lm_head lm_loss"),
            unused=POOLING_FIELDS,
        ),
    },
)
