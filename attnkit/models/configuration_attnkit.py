"""The configuration of every AttnKit model: shapes and function, nothing else."""

import copy
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from attnkit.models.checks import check


@strict
class AttnKitConfig(PreTrainedConfig):
    """Shapes and function of a transformer whose attention score is a part by name.

    `scorer` and `position` are names of `attnkit.scorers` and `attnkit.positions`; `scorer_options` and
    `position_options` are the arguments of those classes. `layer_scorers` gives each layer its own scorer: a list of
    names, or of one-key mappings from a name to its options, the encoder's layers before the decoder's. `cross_scorer`
    is the decoder's on the encoder's states (None: the same as `scorer`).

    Sizes. `num_hidden_layers` are those of the encoder where there are two stacks, and `num_decoder_layers` the
    decoder's. `type_vocab_size` 0 means no token types.

    `two_stream` gives an encoder a second stream of queries, which see places but not the tokens there (Yang 2019).

    Order. `position_counting` says which tokens count where no position ids are given: "attended", those that the
    attention mask keeps; "all", padding too; "unpadded", those that are not `pad_token_id` (padding is at -1).

    Block. `norm_position` "pre": x + f(norm(x)), "post": norm(x + f(x)); `embedding_norm` and `final_norm` are one more
    norm before the first and after the last block (None: what the norm's position needs). `parallel_residual`: all
    parts of a block read its input. `gated_activation`: down(act(gate(x)) ⊙ up(x)). `residual_scale` multiplies what a
    part adds, `embedding_scale` the token embeddings, `output_scale` the states before the output embedding.
    `scale_residual_init`: projections onto the residual start smaller by √(parts in the stack).

    Biases. `attention_bias` of queries, keys and values, `attention_output_bias` of the projection after them (None: as
    those), `mlp_bias` of the feed-forward layer, `output_bias` of the output embedding (None: only in an encoder).

    Dropout. `hidden_dropout` on what each part adds, `embedding_dropout` on the embeddings (None: the same),
    `attention_dropout` on weights, `activation_dropout` inside the feed-forward layer, `output_dropout` before a label.

    Heads. `pooler`: tanh(linear) of the pooled state; `pooling` chooses that state: the "first" token, the "mean" of
    the real ones, the "last" real one, or the last "eos" (None: the first with a pooler, else an encoder's mean and a
    decoder's last). `mlm_transform`: linear, activation, norm before the output embedding of a masked language model.
    `tie_word_embeddings` uses the input embedding as output embedding, `share_encoder_decoder_embeddings` one input
    embedding for both stacks.

    Raises `UsageError` (a `ValueError`) that names the field, the value and the values allowed.
    """

    model_type = "attnkit"
    keys_to_ignore_at_inference = ["cache"]

    architecture: Literal["encoder", "decoder", "encoder-decoder"] = "decoder"
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_decoder_layers: int | None = None
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    gated_activation: bool = False
    max_position_embeddings: int = 512
    type_vocab_size: int = 0

    scorer: str = "scaled_dot"
    scorer_options: dict[str, Any] | None = None
    layer_scorers: list[str | dict] | None = None
    cross_scorer: str | None = None
    cross_scorer_options: dict[str, Any] | None = None
    normalizer: str = "softmax"
    normalizer_options: dict[str, Any] | None = None
    pattern: str = "full"
    pattern_options: dict[str, Any] | None = None
    layer_patterns: list[str | dict] | None = None
    sharing: Literal["separate", "key_value", "query_key", "all"] = "separate"
    attend_to_self: bool = True
    position: str = "rope"
    position_options: dict[str, Any] | None = None
    position_counting: Literal["attended", "all", "unpadded"] = "attended"
    two_stream: bool = False

    norm: Literal["layernorm", "rmsnorm", "t5_rmsnorm"] = "layernorm"
    norm_position: Literal["pre", "post"] = "pre"
    norm_eps: float = 1e-5
    embedding_norm: bool | None = None
    final_norm: bool | None = None
    parallel_residual: bool = False
    embedding_scale: float | int = 1.0
    residual_scale: float | int = 1.0
    output_scale: float | int = 1.0
    attention_bias: bool = True
    attention_output_bias: bool | None = None
    mlp_bias: bool = True
    output_bias: bool | None = None
    hidden_dropout: float | int = 0.0
    embedding_dropout: float | int | None = None
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    output_dropout: float | int = 0.0
    initializer_range: float = 0.02
    scale_residual_init: bool = False
    pooler: bool = False
    pooling: Literal["first", "mean", "last", "eos"] | None = None
    mlm_transform: bool = True
    tie_word_embeddings: bool = True
    share_encoder_decoder_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.is_encoder_decoder = self.architecture == "encoder-decoder"
        if self.is_encoder_decoder and self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_hidden_layers
        if self.is_encoder_decoder and self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id if self.bos_token_id is None else self.bos_token_id
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads == 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.embedding_norm is None:
            self.embedding_norm = self.norm_position == "post"
        if self.final_norm is None:
            self.final_norm = self.norm_position == "pre"
        if self.attention_output_bias is None:
            self.attention_output_bias = self.attention_bias
        if self.output_bias is None:
            self.output_bias = self.architecture == "encoder"
        if self.embedding_dropout is None:
            self.embedding_dropout = self.hidden_dropout
        if self.pooling is None:
            self.pooling = "last" if self.architecture != "encoder" else "first" if self.pooler else "mean"
        super().__post_init__(**kwargs)
        check(self)  # here rather than in a validator of huggingface_hub, which would wrap the one line in two

    @property
    def num_all_layers(self) -> int:
        """Blocks of all stacks."""
        return self.num_hidden_layers + (self.num_decoder_layers or 0)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "AttnKitConfig":
        """What transformers builds a cache from: for the decoder of two stacks, `num_hidden_layers` are its own."""
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = copy.deepcopy(self)
        config.num_hidden_layers = self.num_decoder_layers
        return config

    def scorer_of_layer(self, layer_idx: int) -> tuple[str, dict[str, Any]]:
        """Name and options of the scorer of one layer, the encoder's layers before the decoder's."""
        if self.layer_scorers is None:
            return self.scorer, self.scorer_options or {}
        return name_and_options(self.layer_scorers[layer_idx])

    def pattern_of_layer(self, layer_idx: int) -> tuple[str, dict[str, Any]]:
        """Name and options of the pattern of one layer, the encoder's layers before the decoder's."""
        if self.layer_patterns is None:
            return self.pattern, self.pattern_options or {}
        return name_and_options(self.layer_patterns[layer_idx])

    def scorer_of_cross_attention(self, layer_idx: int) -> tuple[str, dict[str, Any]]:
        """Name and options of the scorer with which one layer of the decoder reads the encoder's states."""
        if self.cross_scorer is None:
            return self.scorer, self.scorer_options or {}
        return self.cross_scorer, self.cross_scorer_options or {}

    def own_scorers(self) -> list[tuple[str, dict[str, Any]]]:
        """The scorers with which tokens of one stack look at each other."""
        return [self.scorer_of_layer(index) for index in range(self.num_all_layers if self.layer_scorers else 1)]

    def all_scorers(self) -> list[tuple[str, dict[str, Any]]]:
        """The scorers of all layers, those of cross attention too."""
        return self.own_scorers() + ([self.scorer_of_cross_attention(0)] if self.is_encoder_decoder else [])

    def all_patterns(self) -> list[tuple[str, dict[str, Any]]]:
        """The patterns of all layers."""
        return [self.pattern_of_layer(index) for index in range(self.num_all_layers if self.layer_patterns else 1)]

    def validate_function(self) -> None:
        """Part of the validation at init and before saving."""
        check(self)


def name_and_options(entry: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The parts of an entry of `layer_scorers` or `layer_patterns`."""
    if isinstance(entry, str):
        return entry, {}
    ((name, options),) = entry.items()
    return name, options or {}
