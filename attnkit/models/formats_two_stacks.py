"""The formats of encoder-decoders: Marian, which is the original Transformer, and T5."""

import math
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from attnkit.attention import positions
from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.formats import TWO_ENDS, Format, Rule, answers, base, field_names, options_of, seq2seq_lm, table

MARIAN_STACK = """
{stack}.embeddings.tokens                       {stack}.embed_tokens
{stack}.embeddings.position.embedding           {stack}.embed_positions
{stack}.layers.{i}.attention.q_proj             {stack}.layers.{i}.self_attn.q_proj
{stack}.layers.{i}.attention.k_proj             {stack}.layers.{i}.self_attn.k_proj
{stack}.layers.{i}.attention.v_proj             {stack}.layers.{i}.self_attn.v_proj
{stack}.layers.{i}.attention.o_proj             {stack}.layers.{i}.self_attn.out_proj
{stack}.layers.{i}.attention_residual.norm      {stack}.layers.{i}.self_attn_layer_norm
{stack}.layers.{i}.feed_forward.up_proj         {stack}.layers.{i}.fc1
{stack}.layers.{i}.feed_forward.down_proj       {stack}.layers.{i}.fc2
{stack}.layers.{i}.feed_forward_residual.norm   {stack}.layers.{i}.final_layer_norm
"""
MARIAN_CROSS = """
decoder.layers.{i}.cross_attention.q_proj           decoder.layers.{i}.encoder_attn.q_proj
decoder.layers.{i}.cross_attention.k_proj           decoder.layers.{i}.encoder_attn.k_proj
decoder.layers.{i}.cross_attention.v_proj           decoder.layers.{i}.encoder_attn.v_proj
decoder.layers.{i}.cross_attention.o_proj           decoder.layers.{i}.encoder_attn.out_proj
decoder.layers.{i}.cross_attention_residual.norm    decoder.layers.{i}.encoder_attn_layer_norm
"""
WAVES = ("sinusoidal", {"layout": "halves"})


def marian_body(_: AttnKitConfig) -> dict[str, Rule]:
    stacks = (MARIAN_STACK.replace("{stack}", stack) for stack in ("encoder", "decoder"))
    return table("".join(stacks) + MARIAN_CROSS)


def read_marian(config: Any) -> dict[str, Any]:
    if config.vocab_size != config.decoder_vocab_size:
        raise UsageError("marian: vocab_size and decoder_vocab_size differ, and vocab_size is one field here")
    return {"embedding_scale": math.sqrt(config.d_model) if config.scale_embedding else 1.0}


def write_marian(config: AttnKitConfig) -> dict[str, Any]:
    return {
        "decoder_vocab_size": config.vocab_size,
        "scale_embedding": config.embedding_scale != 1,
        "forced_eos_token_id": None,
    }


def observe_marian(model: PreTrainedModel) -> dict[str, Any]:
    """Its tables of positions are waves, unless someone has changed them; and its stacks may have two embeddings in
    spite of their configuration, which shares them only where it ties the output embedding too."""
    body = model.base_model
    one, other = (stack.embed_tokens.weight for stack in (body.encoder, body.decoder))
    observed: dict[str, Any] = {"share_encoder_decoder_embeddings": torch.equal(one, other)}
    tables = [stack.embed_positions.weight for stack in (body.encoder, body.decoder)]
    name, options = WAVES
    shape = {"num_heads": 1, "num_key_value_heads": 1, "max_positions": len(tables[0]), "causal": False}
    position = positions[name](hidden_size=model.config.d_model, head_dim=model.config.d_model, **shape, **options)
    waves = position.embed(torch.arange(len(tables[0]))).to(tables[0])
    if all(torch.allclose(waves, weight, rtol=0, atol=1e-6) for weight in tables):
        return observed
    return observed | {"position": "learned", "position_options": None}


def expect_marian(config: AttnKitConfig) -> dict[str, Any]:
    learned = {"position": "learned", "position_options": None} if config.position == "learned" else {}
    return {"share_encoder_decoder_embeddings": config.share_encoder_decoder_embeddings} | learned


MARIAN = Format(
    model_type="marian",
    names=field_names(
        "max_position_embeddings",
        "attention_dropout",
        "activation_dropout",
        "share_encoder_decoder_embeddings",
        "decoder_start_token_id",
        hidden_size="d_model",
        num_hidden_layers="encoder_layers",
        num_decoder_layers="decoder_layers",
        num_attention_heads="encoder_attention_heads",
        num_decoder_attention_heads="decoder_attention_heads",
        intermediate_size="encoder_ffn_dim",
        decoder_intermediate_size="decoder_ffn_dim",
        hidden_act="activation_function",
        hidden_dropout="dropout",
        initializer_range="init_std",
    ),
    constants={
        "architecture": "encoder-decoder",
        "position": WAVES[0],
        "position_options": WAVES[1],
        "position_counting": "all",
        "norm_position": "post",
        "embedding_norm": False,
        "output_bias": True,
    },
    required={"encoder_layerdrop": 0, "decoder_layerdrop": 0},
    read_more=read_marian,
    write_more=write_marian,
    observe=observe_marian,
    expect=expect_marian,
    body=marian_body,
    own_weights=("encoder.embed_positions.weight", "decoder.embed_positions.weight", "shared.weight"),
    heads={
        "MarianModel": base(),
        "MarianMTModel": seq2seq_lm("model.", **{"lm_head.bias": Rule("final_logits_bias")}),
    },
)

T5_STACK = """
{stack}.embeddings.position.embedding           {stack}.block.0.layer.0.SelfAttention.relative_attention_bias
{stack}.embeddings.tokens                       {stack}.embed_tokens
{stack}.layers.{i}.attention.q_proj             {stack}.block.{i}.layer.0.SelfAttention.q
{stack}.layers.{i}.attention.k_proj             {stack}.block.{i}.layer.0.SelfAttention.k
{stack}.layers.{i}.attention.v_proj             {stack}.block.{i}.layer.0.SelfAttention.v
{stack}.layers.{i}.attention.o_proj             {stack}.block.{i}.layer.0.SelfAttention.o
{stack}.layers.{i}.attention_residual.norm      {stack}.block.{i}.layer.0.layer_norm
{stack}.layers.{i}.feed_forward.gate_proj       {stack}.block.{i}.layer.{last}.DenseReluDense.wi_0
{stack}.layers.{i}.feed_forward.up_proj         {stack}.block.{i}.layer.{last}.DenseReluDense.{up}
{stack}.layers.{i}.feed_forward.down_proj       {stack}.block.{i}.layer.{last}.DenseReluDense.wo
{stack}.layers.{i}.feed_forward_residual.norm   {stack}.block.{i}.layer.{last}.layer_norm
{stack}.norm                                    {stack}.final_layer_norm
"""
T5_CROSS = """
decoder.layers.{i}.cross_attention.q_proj           decoder.block.{i}.layer.1.EncDecAttention.q
decoder.layers.{i}.cross_attention.k_proj           decoder.block.{i}.layer.1.EncDecAttention.k
decoder.layers.{i}.cross_attention.v_proj           decoder.block.{i}.layer.1.EncDecAttention.v
decoder.layers.{i}.cross_attention.o_proj           decoder.block.{i}.layer.1.EncDecAttention.o
decoder.layers.{i}.cross_attention_residual.norm    decoder.block.{i}.layer.1.layer_norm
"""


def t5_body(config: AttnKitConfig) -> dict[str, Rule]:
    up = "wi_1" if config.gated_activation else "wi"
    stacks = (
        T5_STACK.replace("{stack}", stack).replace("{last}", last).replace("{up}", up)
        for stack, last in (("encoder", "1"), ("decoder", "2"))
    )
    return table("".join(stacks) + T5_CROSS)


def read_t5(config: Any) -> dict[str, Any]:
    buckets = {
        "num_buckets": config.relative_attention_num_buckets,
        "max_distance": config.relative_attention_max_distance,
    }
    return {
        "hidden_act": config.dense_act_fn,
        "gated_activation": config.is_gated_act,
        "position_options": buckets,
        "attention_dropout": config.dropout_rate,
        "activation_dropout": config.dropout_rate,
        "output_scale": config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
        "decoder_start_token_id": config.to_dict().get("decoder_start_token_id"),
    }


def write_t5(config: AttnKitConfig) -> dict[str, Any]:
    options = {"num_buckets": 32, "max_distance": 128} | options_of("t5", config)
    gate = "gated-" if config.gated_activation else ""
    # "gated-gelu" is transformers' word for the gated gelu_new, and no other word says that one.
    activation = "gelu" if gate and config.hidden_act == "gelu_new" else config.hidden_act
    return {
        "decoder_start_token_id": config.decoder_start_token_id,
        "feed_forward_proj": gate + activation,
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "tie_word_embeddings": config.output_scale != 1,  # the word by which it knows whether to scale
    }


T5_NAMES = field_names(
    "num_decoder_layers",
    hidden_size="d_model",
    head_dim="d_kv",
    num_hidden_layers="num_layers",
    num_attention_heads="num_heads",
    intermediate_size="d_ff",
    norm_eps="layer_norm_epsilon",
    hidden_dropout="dropout_rate",
    output_dropout="classifier_dropout",
)
T5 = Format(
    model_type="t5",
    names={ours: theirs for ours, theirs in T5_NAMES.items() if ours not in ("initializer_range", "bos_token_id")},
    constants={
        "architecture": "encoder-decoder",
        "scorer": "dot",
        "position": "t5",
        "position_counting": "all",
        "norm": "t5_rmsnorm",
        "attention_bias": False,
        "mlp_bias": False,
    },
    read_more=read_t5,
    write_more=write_t5,
    body=t5_body,
    own_weights=("shared.weight",),
    unsaid=frozenset({"max_position_embeddings"}),
    heads={
        "T5Model": base(),
        "T5ForConditionalGeneration": seq2seq_lm(""),
        "T5ForQuestionAnswering": answers("", required=TWO_ENDS),
    },
)
T5_ENCODER_FIELDS: dict[str, Any] = {
    "architecture": "encoder",
    "num_decoder_layers": None,
    "decoder_start_token_id": None,
}
T5.heads["T5EncoderModel"] = replace(base(), fields=T5_ENCODER_FIELDS)
