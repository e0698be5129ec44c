"""The formats of encoders and of decoders: BERT, RoBERTa, GPT-2, Llama."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from attnkit.attention.positions import ROPE_OPTIONS
from attnkit.errors import UsageError
from attnkit.models import language
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.formats import (
    TWO_ENDS,
    Format,
    Fused,
    Head,
    Rule,
    answers,
    base,
    causal_lm,
    choices,
    field_names,
    masked_lm,
    options_of,
    sequence_labels,
    table,
    token_labels,
)

BERT_BODY = """
{stack}.embeddings.tokens                       embeddings.word_embeddings
{stack}.embeddings.position.embedding           embeddings.position_embeddings
{stack}.embeddings.types                        embeddings.token_type_embeddings
{stack}.embeddings.norm                         embeddings.LayerNorm
{stack}.layers.{i}.attention.q_proj             encoder.layer.{i}.attention.self.query
{stack}.layers.{i}.attention.k_proj             encoder.layer.{i}.attention.self.key
{stack}.layers.{i}.attention.v_proj             encoder.layer.{i}.attention.self.value
{stack}.layers.{i}.attention.o_proj             encoder.layer.{i}.attention.output.dense
{stack}.layers.{i}.attention_residual.norm      encoder.layer.{i}.attention.output.LayerNorm
{stack}.layers.{i}.feed_forward.up_proj         encoder.layer.{i}.intermediate.dense
{stack}.layers.{i}.feed_forward.down_proj       encoder.layer.{i}.output.dense
{stack}.layers.{i}.feed_forward_residual.norm   encoder.layer.{i}.output.LayerNorm
pooler.dense                                    pooler.dense
"""
BERT_LANGUAGE = """
transform.dense     cls.predictions.transform.dense
transform.norm      cls.predictions.transform.LayerNorm
lm_head.weight      cls.predictions.decoder.weight
lm_head.bias        cls.predictions.decoder.bias
"""


def bert_body(config: AttnKitConfig) -> dict[str, Rule]:
    return table(BERT_BODY.replace("{stack}", config.architecture))


def read_bert(config: Any) -> dict[str, Any]:
    dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    return {
        "architecture": "decoder" if config.is_decoder else "encoder",
        "output_dropout": dropout,
    }


def write_bert(config: AttnKitConfig) -> dict[str, Any]:
    return {
        "is_decoder": config.architecture == "decoder",
        "classifier_dropout": config.output_dropout,
        "type_vocab_size": config.type_vocab_size or 1,  # there is always one, and it is zero where we have none
    }


def observe_bert(model: PreTrainedModel) -> dict[str, Any]:
    """A body may have been built without its pooler, and one row of zeros tells no types apart."""
    body = model.base_model
    pooler: dict[str, Any] = {"pooler": False, "pooling": None} if body is model and model.pooler is None else {}
    types = body.embeddings.token_type_embeddings.weight
    return pooler | ({} if len(types) > 1 or types.any() else {"type_vocab_size": 0})


def expect_bert(config: AttnKitConfig) -> dict[str, Any]:
    return {} if config.type_vocab_size else {"type_vocab_size": 0}


CAUSAL, NOT_CAUSAL = {"is_decoder": True}, {"is_decoder": False}

BERT = Format(
    model_type="bert",
    names=field_names(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "type_vocab_size",
        norm_eps="layer_norm_eps",
        hidden_dropout="hidden_dropout_prob",
        attention_dropout="attention_probs_dropout_prob",
    ),
    constants={
        "position": "learned",
        "position_counting": "all",
        "norm_position": "post",
        "output_bias": True,
        "output_transform": True,
        "pooler": True,
        "pooling": "first",
    },
    required={"add_cross_attention": False},
    read_more=read_bert,
    write_more=write_bert,
    observe=observe_bert,
    expect=expect_bert,
    own_weights=("cls.predictions.bias", "lm_head.bias"),  # a second name, of no use where the embeddings are not tied
    zeros=("embeddings.token_type_embeddings.weight",),
    body=bert_body,
    heads={
        "BertModel": base(),
        "BertLMHeadModel": causal_lm("bert.", BERT_LANGUAGE, required=CAUSAL),
        "BertForMaskedLM": masked_lm("bert.", BERT_LANGUAGE, required=NOT_CAUSAL),
        "BertForPreTraining": Head(
            language.AttnKitForPreTraining,
            ("model.", "bert."),
            table(BERT_LANGUAGE + "seq_relationship cls.seq_relationship"),
            required=NOT_CAUSAL,
        ),
        "BertForSequenceClassification": sequence_labels("bert.", "score classifier"),
        "BertForTokenClassification": token_labels("bert.", "score classifier"),
        "BertForQuestionAnswering": answers("bert.", required=TWO_ENDS),
        "BertForMultipleChoice": choices("bert."),
    },
)


def read_roberta(config: Any) -> dict[str, Any]:
    offset = config.pad_token_id + 1
    places = {
        "max_position_embeddings": config.max_position_embeddings - offset,
        "position_options": {"offset": offset},
        "generation_offset": -offset if config.is_decoder else 0,
    }
    return read_bert(config) | places


def write_roberta(config: AttnKitConfig) -> dict[str, Any]:
    num_rows = config.max_position_embeddings + options_of("learned", config).get("offset", 0)
    return write_bert(config) | {"max_position_embeddings": num_rows}


ROBERTA_LANGUAGE = """
transform.dense     lm_head.dense
transform.norm      lm_head.layer_norm
lm_head.weight      lm_head.decoder.weight
lm_head.bias        lm_head.decoder.bias
"""
ROBERTA_LABELS = """
model.pooler.dense  classifier.dense
score               classifier.out_proj
"""
ROBERTA = replace(
    BERT,
    model_type="roberta",
    constants=BERT.constants | {"position_counting": "unpadded", "output_transform_act": "gelu"},
    read_more=read_roberta,
    write_more=write_roberta,
    heads={
        "RobertaModel": base(),
        "RobertaForCausalLM": causal_lm("roberta.", ROBERTA_LANGUAGE, required=CAUSAL),
        "RobertaForMaskedLM": masked_lm("roberta.", ROBERTA_LANGUAGE, required=NOT_CAUSAL),
        "RobertaForSequenceClassification": sequence_labels("roberta.", ROBERTA_LABELS),
        "RobertaForTokenClassification": token_labels("roberta.", "score classifier"),
        "RobertaForQuestionAnswering": answers("roberta.", required=TWO_ENDS),
        "RobertaForMultipleChoice": choices("roberta."),
    },
)

GPT2_BODY = """
decoder.embeddings.tokens                           wte
decoder.embeddings.position.embedding               wpe
decoder.layers.{i}.attention_residual.norm          h.{i}.ln_1
decoder.layers.{i}.attention.o_proj.bias            h.{i}.attn.c_proj.bias
decoder.layers.{i}.feed_forward_residual.norm       h.{i}.ln_2
decoder.layers.{i}.feed_forward.up_proj.bias        h.{i}.mlp.c_fc.bias
decoder.layers.{i}.feed_forward.down_proj.bias      h.{i}.mlp.c_proj.bias
decoder.norm                                        ln_f
"""
GPT2_TRANSPOSED = """
decoder.layers.{i}.attention.o_proj.weight          h.{i}.attn.c_proj.weight
decoder.layers.{i}.feed_forward.up_proj.weight      h.{i}.mlp.c_fc.weight
decoder.layers.{i}.feed_forward.down_proj.weight    h.{i}.mlp.c_proj.weight
"""


def gpt2_body(_: AttnKitConfig) -> dict[str, Rule]:
    rules = table(GPT2_BODY)
    rules |= {name: replace(rule, transposed=True) for name, rule in table(GPT2_TRANSPOSED).items()}
    for index, module in enumerate(("q_proj", "k_proj", "v_proj")):
        ours, theirs = f"decoder.layers.{{i}}.attention.{module}", "h.{i}.attn.c_attn"
        rules[f"{ours}.weight"] = Fused(f"{theirs}.weight", transposed=True, index=index, count=3)
        rules[f"{ours}.bias"] = Fused(f"{theirs}.bias", index=index, count=3)
    return rules


def by_depth(scorer: str, num_layers: int) -> list[str | dict]:
    """A scorer that each layer divides by its number."""
    return [{scorer: {"factor": 1 / (index + 1)}} for index in range(num_layers)]


def read_gpt2(config: Any) -> dict[str, Any]:
    scorer = "scaled_dot" if config.scale_attn_weights else "dot"
    return {
        "intermediate_size": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "scorer": scorer,
        "layer_scorers": by_depth(scorer, config.n_layer) if config.scale_attn_by_inverse_layer_idx else None,
    }


def write_gpt2(config: AttnKitConfig) -> dict[str, Any]:
    scorer, _ = config.scorer_of_layer(0)
    return {
        "scale_attn_weights": scorer != "dot",
        "scale_attn_by_inverse_layer_idx": config.layer_scorers == by_depth(scorer, config.num_hidden_layers),
    }


GPT2 = Format(
    model_type="gpt2",
    names=field_names(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="n_inner",
        hidden_act="activation_function",
        max_position_embeddings="n_positions",
        norm_eps="layer_norm_epsilon",
        hidden_dropout="resid_pdrop",
        embedding_dropout="embd_pdrop",
        attention_dropout="attn_pdrop",
    ),
    constants={
        "architecture": "decoder",
        "position": "learned",
        "position_counting": "all",
        "scale_residual_init": True,
    },
    required={"add_cross_attention": False},
    read_more=read_gpt2,
    write_more=write_gpt2,
    body=gpt2_body,
    heads={
        "GPT2Model": base(),
        "GPT2LMHeadModel": causal_lm("transformer."),
        "GPT2ForSequenceClassification": sequence_labels("transformer.", "score.weight score.weight", bias=False),
        "GPT2ForTokenClassification": token_labels("transformer.", "score classifier"),
        "GPT2ForQuestionAnswering": answers("transformer."),
    },
)

LLAMA_BODY = """
decoder.embeddings.tokens                       embed_tokens
decoder.layers.{i}.attention.q_proj             layers.{i}.self_attn.q_proj
decoder.layers.{i}.attention.k_proj             layers.{i}.self_attn.k_proj
decoder.layers.{i}.attention.v_proj             layers.{i}.self_attn.v_proj
decoder.layers.{i}.attention.o_proj             layers.{i}.self_attn.o_proj
decoder.layers.{i}.attention_residual.norm      layers.{i}.input_layernorm
decoder.layers.{i}.feed_forward.gate_proj       layers.{i}.mlp.gate_proj
decoder.layers.{i}.feed_forward.up_proj         layers.{i}.mlp.up_proj
decoder.layers.{i}.feed_forward.down_proj       layers.{i}.mlp.down_proj
decoder.layers.{i}.feed_forward_residual.norm   layers.{i}.post_attention_layernorm
decoder.norm                                    norm
"""


# Our options of the rotation, and theirs.
LLAMA_ROPE = {"base": "rope_theta", "scaling": "rope_type"}
LLAMA_ROPE |= {name: name for name in ("factor", *(name for names in ROPE_OPTIONS.values() for name in names))}
LLAMA_ROPE_TYPES = ("default", "linear", "dynamic", *ROPE_OPTIONS)


def read_llama(config: Any) -> dict[str, Any]:
    given = {name: value for name, value in config.rope_parameters.items() if value is not None}
    kind, known = given["rope_type"], ", ".join(LLAMA_ROPE_TYPES)
    if kind not in LLAMA_ROPE_TYPES:
        raise UsageError(f"llama: rope_type {kind!r} has no counterpart, only {known} have one")
    more = {name: value for name, value in given.items() if name not in LLAMA_ROPE.values()}
    if more:
        raise UsageError(f"llama: rope_parameters {more} have no counterpart")
    if kind == "default":
        given.pop("factor", None)  # which nothing reads there
    return {"position_options": {ours: given[theirs] for ours, theirs in LLAMA_ROPE.items() if theirs in given}}


def write_llama(config: AttnKitConfig) -> dict[str, Any]:
    options = {"base": 10000.0, "scaling": "default"} | options_of("rope", config)
    if options["scaling"] == "default":
        options.pop("factor", None)
    else:
        options = {"factor": 1.0} | ROPE_OPTIONS.get(options["scaling"], {}) | options
    return {"rope_parameters": {LLAMA_ROPE[name]: value for name, value in options.items() if value is not None}}


LLAMA = Format(
    model_type="llama",
    names=field_names(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "attention_bias",
        "mlp_bias",
        "attention_dropout",
        norm_eps="rms_norm_eps",
    ),
    constants={
        "architecture": "decoder",
        "gated_activation": True,
        "position": "rope",
        "position_counting": "all",
        "norm": "rmsnorm",
    },
    read_more=read_llama,
    write_more=write_llama,
    body=lambda _: table(LLAMA_BODY),
    heads={
        "LlamaModel": base(),
        "LlamaForCausalLM": causal_lm("model."),
        "LlamaForSequenceClassification": sequence_labels("model.", "score.weight score.weight", bias=False),
        "LlamaForTokenClassification": token_labels("model.", "score score"),
        "LlamaForQuestionAnswering": answers("transformer."),
    },
)
