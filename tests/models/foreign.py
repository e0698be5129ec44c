"""Random models of transformers with awkward sizes, what goes into them, and how far two models' outputs are apart."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from attnkit.models.foreign import FORMATS

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # a few roundings of numbers around one

# Odd heads, grouped heads, widths that are no powers of two and stacks of two depths.
VOCABULARY = {"vocab_size": 53, "pad_token_id": 0, "eos_token_id": 2}
BERT = VOCABULARY | {
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 40,
    "type_vocab_size": 3,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT | {"pad_token_id": 1},
    "gpt2": VOCABULARY | {"n_embd": 30, "n_layer": 3, "n_head": 5, "n_inner": 17, "n_positions": 40},
    "llama": VOCABULARY
    | {
        "hidden_size": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 17,
        "max_position_embeddings": 40,
    },
    "marian": VOCABULARY
    | {
        "d_model": 30,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 5,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 17,
        "decoder_ffn_dim": 11,
        "max_position_embeddings": 40,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 2,
        "scale_embedding": True,
    },
    "xlnet": VOCABULARY | {"d_model": 30, "n_layer": 3, "n_head": 5, "d_inner": 17},
    "t5": VOCABULARY
    | {
        "d_model": 30,
        "d_kv": 7,
        "num_layers": 3,
        "num_decoder_layers": 2,  # transformers' T5 cannot generate with more of these than of the others
        "num_heads": 5,
        "d_ff": 17,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
    },
}


def build(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A model of transformers all of whose parameters are random: its own start has zeros and ones in many."""
    model_class = getattr(transformers, name)
    model_type = model_class.config_class.model_type
    required = FORMATS[model_type].heads[name].required if name in FORMATS[model_type].heads else {}
    config: PreTrainedConfig = model_class.config_class(**(CONFIGS[model_type] | required | changes))
    model = model_class(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "embed_positions" not in key:
                parameter.add_(0.1 * torch.randn_like(parameter))
        if name == "MarianMTModel":
            model.final_logits_bias.normal_()
    return model.to(dtype).eval()


def inputs_of(model: PreTrainedModel, padding: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, model.config.vocab_size, (2, 9))
    mask = torch.ones_like(ids)
    if padding != "none":
        padded = slice(6, None) if padding == "right" else slice(0, 3)
        mask[0, padded], ids[0, padded] = 0, model.config.pad_token_id
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "MultipleChoice" in type(model).__name__:
        inputs = {key: value[:, None].repeat(1, 3, 1) for key, value in inputs.items()}
    if model.config.is_encoder_decoder and not isinstance(model, transformers.T5EncoderModel):
        inputs["decoder_input_ids"] = torch.randint(3, model.config.vocab_size, (2, 6))
    return inputs


def labels_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What the head learns from, for the inputs above; nothing where it has no labels."""
    name, num_tokens = type(model).__name__, 6 if model.config.is_encoder_decoder else 9
    tokens = torch.randint(3, model.config.vocab_size, (2, num_tokens))
    tokens[:, 1] = -100
    classes = torch.randint(0, 2, (2,))
    kinds: dict[str, dict[str, torch.Tensor]] = {
        "QuestionAnswering": {"start_positions": torch.tensor([0, 3]), "end_positions": torch.tensor([4, 99])},
        "TokenClassification": {"labels": torch.randint(0, 2, (2, num_tokens))},
        "SequenceClassification": {"labels": classes},
        "MultipleChoice": {"labels": classes},
        "PreTraining": {"labels": tokens, "next_sentence_label": classes},
        "LM": {"labels": tokens},
        "MT": {"labels": tokens},
        "ConditionalGeneration": {"labels": tokens},
    }
    return next((labels for kind, labels in kinds.items() if kind in name), {})


def tensors(outputs: Any) -> dict[str, torch.Tensor]:
    flat = {}
    for key, value in outputs.items():
        values = value if isinstance(value, tuple) else (value,)
        flat |= {f"{key}.{index}": part for index, part in enumerate(values) if isinstance(part, torch.Tensor)}
    return flat


def tolerance(model: PreTrainedModel) -> float:
    # XLNet makes its waves in fp32, whatever its dtype.
    return TOLERANCE[torch.float32 if model.config.model_type == "xlnet" else model.dtype]


@torch.no_grad()
def worst_difference(one: PreTrainedModel, other: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> float:
    pair = [tensors(model(**inputs, output_hidden_states=True)) for model in (one, other)]
    assert pair[0].keys() - {key for key in pair[0] if key.startswith("mems")} == pair[1].keys()
    return max((pair[0][key] - pair[1][key]).abs().max().item() for key in pair[1])
