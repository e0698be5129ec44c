"""The configuration of every AttnKit model: shapes and function, nothing else."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class AttnKitConfig(PreTrainedConfig):
    model_type = "attnkit"
    keys_to_ignore_at_inference = ["cache"]

    architecture: str = "decoder"
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    gated_mlp: bool = False
    max_position_embeddings: int = 512
    type_vocab_size: int = 0

    scorer: str = "scaled_dot"
    scorer_options: dict | None = None
    layer_scorers: list[str | dict] | None = None
    position: str = "rope"
    position_options: dict | None = None

    norm: str = "layernorm"
    norm_position: str = "pre"
    norm_eps: float = 1e-5
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    output_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
