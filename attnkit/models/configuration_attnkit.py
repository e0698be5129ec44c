"""The configuration of every AttnKit model: shapes and function, nothing else."""

import copy
from functools import wraps
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from attnkit.errors import UsageError
from attnkit.models.checks import check, check_inherited
from attnkit.models.parallel import pipeline_plan, sharding_plan, tensor_plan


def in_one_line(config_class: Any) -> Any:
    """Say of a value of the wrong type in one line, as a `UsageError`, what huggingface_hub says in two."""
    initialise = config_class.__init__

    @wraps(initialise)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            initialise(self, *args, **kwargs)
        except StrictDataclassError as error:
            raise UsageError(" ".join(str(error.__cause__ or error).split())) from error

    config_class.__init__ = checked
    return config_class


@in_one_line
@strict
class AttnKitConfig(PreTrainedConfig):
    """Shapes and function of a transformer whose attention score is a part by name; each field says what it means.

    Raises `UsageError` (a `ValueError`) that names the field, the value and the values allowed.
    """

    model_type = "attnkit"
    keys_to_ignore_at_inference = ["cache"]

    architecture: Literal["encoder", "decoder", "encoder-decoder"] = "decoder"
    """One stack that reads both ways, one that reads from left to right, or one of each."""
    vocab_size: int = 8192
    """Rows of the token embedding; a run takes the number of its tokenizer's entries."""
    hidden_size: int = 256
    """Width of a token's state."""
    num_hidden_layers: int = 4
    """Blocks; of the encoder where there are two stacks."""
    num_decoder_layers: int | None = None
    """Blocks of the decoder of an `encoder-decoder`; null for as many as the encoder has."""
    num_attention_heads: int = 4
    """Heads of queries."""
    num_key_value_heads: int | None = None
    """Heads of keys and values, each read by a group of query heads; null for one per query head."""
    head_dim: int | None = None
    """Width of a head; null for `hidden_size` / `num_attention_heads`."""
    intermediate_size: int | None = None
    """Inner width of the feed-forward layer; null for 4 · `hidden_size`."""
    num_decoder_attention_heads: int | None = None
    """Heads of queries in the decoder of an `encoder-decoder`; null for as many as the encoder has."""
    num_decoder_key_value_heads: int | None = None
    """Heads of keys and values there; null for one per query head if the decoder has a number of its own, or else as in
    the encoder. The same holds of `decoder_head_dim`."""
    decoder_head_dim: int | None = None
    """Width of a head there; null for `hidden_size` / `num_decoder_attention_heads`, or as in the encoder."""
    decoder_intermediate_size: int | None = None
    """Inner width of the feed-forward layer there; null for that of the encoder."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward layer, a name that transformers knows: gelu, relu, silu …"""
    gated_activation: bool = False
    """down(act(gate(x)) ⊙ up(x)) in the feed-forward layer, rather than down(act(up(x)))."""
    max_position_embeddings: int = 512
    """Tokens that the model has positions for, or is said to be trained for; a run takes `data.sequence_length`."""
    type_vocab_size: int = 0
    """Token types, such as first and second text of a pair; 0 for none."""

    scorer: str = "scaled_dot"
    """How a query scores a key, a name of the registry `attnkit.scorers`."""
    scorer_options: dict[str, Any] | None = None
    """Arguments of the scorer; `help(attnkit.scorers[name])` lists them."""
    layer_scorers: list[str | dict] | None = None
    """A scorer per layer, encoder first: names, or mappings from one name to its options; null for one for all."""
    cross_scorer: str | None = None
    """The decoder's scorer on the encoder's states, a name of the registry `attnkit.scorers`; null for `scorer`."""
    cross_scorer_options: dict[str, Any] | None = None
    """Arguments of `cross_scorer`."""
    normalizer: str = "softmax"
    """How scores become weights, a name of the registry `attnkit.normalizers`."""
    normalizer_options: dict[str, Any] | None = None
    """Arguments of the normalizer."""
    pattern: str = "full"
    """Which tokens may meet, a name of the registry `attnkit.patterns`; a decoder sees no later token in any case."""
    pattern_options: dict[str, Any] | None = None
    """Arguments of the pattern."""
    layer_patterns: list[str | dict] | None = None
    """A pattern per layer, encoder first: names, or mappings from one name to its options; null for one for all."""
    sharing: Literal["separate", "key_value", "query_key", "all"] = "separate"
    """Which projections of a layer are one: none, key and value, query and key, or all three."""
    attend_to_self: bool = True
    """Whether a token may attend to itself."""
    position: str = "rope"
    """Where order enters, a name of the registry `attnkit.positions`."""
    position_options: dict[str, Any] | None = None
    """Arguments of the position."""
    position_counting: Literal["attended", "all", "unpadded"] = "attended"
    """Which tokens count where no position ids are given: those that the attention mask keeps, all of them, or those
    that are not `pad_token_id` (padding is at -1)."""
    generation_offset: int = 0
    """Where `generate` begins to count them; -(`pad_token_id` + 1) in a decoder of RoBERTa, which transformers hands
    there other rows than those it was trained with."""
    two_stream: bool = False
    """A second stream of queries, which see places but not the tokens there (Yang 2019)."""

    norm: Literal["layernorm", "rmsnorm", "t5_rmsnorm"] = "layernorm"
    """Which norm: LayerNorm, RMSNorm, or RMSNorm as T5 rounds it."""
    norm_position: Literal["pre", "post"] = "pre"
    """`pre`: x + f(norm(x)); `post`: norm(x + f(x))."""
    norm_eps: float = 1e-5
    """What the norm adds to the variance."""
    embedding_norm: bool | None = None
    """One more norm before the first block; null for what `norm_position` needs."""
    final_norm: bool | None = None
    """One more norm after the last block; null for what `norm_position` needs."""
    parallel_residual: bool = False
    """All parts of a block read its input, rather than each the sum before it."""
    embedding_scale: float | int = 1.0
    """Factor of the token embeddings; vectors given in their place enter as they are, but for those of the decoder of
    an `encoder-decoder`, which get the factor too."""
    residual_scale: float | int = 1.0
    """Factor of what a part of a block adds."""
    output_scale: float | int = 1.0
    """Factor of the states before the output embedding."""
    attention_bias: bool = True
    """Biases of queries, keys and values."""
    attention_output_bias: bool | None = None
    """Bias of the projection after them; null for `attention_bias`."""
    mlp_bias: bool = True
    """Biases of the feed-forward layer."""
    output_bias: bool | None = None
    """Bias of the output embedding; null for one in an encoder only."""
    hidden_dropout: float | int = 0.0
    """Dropout of what each part of a block adds."""
    embedding_dropout: float | int | None = None
    """Dropout of the embeddings; null for `hidden_dropout`."""
    attention_dropout: float | int = 0.0
    """Dropout of attention weights."""
    activation_dropout: float | int = 0.0
    """Dropout inside the feed-forward layer."""
    output_dropout: float | int = 0.0
    """Dropout of the state that a label is read from."""
    initializer_range: float = 0.02
    """Standard deviation of random weights."""
    scale_residual_init: bool = False
    """Projections onto the residual start smaller by √(parts in the stack) (Radford 2019)."""
    pooler: bool = False
    """tanh(linear) of the state that a label is read from."""
    pooling: Literal["first", "mean", "last", "eos"] | None = None
    """That state: of the first token, the mean of the real ones, of the last real one, or of the last end of text;
    null for the first with a pooler, else the mean in an encoder and the last in a decoder."""
    output_transform: bool | None = None
    """linear, activation, norm before the output embedding; null for that in an encoder of one stream only."""
    output_transform_act: str | None = None
    """The activation there; null for `hidden_act`."""
    tie_word_embeddings: bool = True
    """The input embedding is the output embedding too."""
    share_encoder_decoder_embeddings: bool = True
    """One input embedding for both stacks."""
    use_cache: bool = True
    """Whether generation keeps what it computed of earlier tokens."""
    pad_token_id: int | None = None
    """Id of the padding; a run takes its tokenizer's, as for the next two."""
    bos_token_id: int | None = None
    """Id that begins a text."""
    eos_token_id: int | list[int] | None = None
    """Id, or ids, that end a text."""
    decoder_start_token_id: int | None = None
    """Id that the decoder of an `encoder-decoder` starts from; null for that which begins a text, or else the
    padding."""

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
        if self.is_encoder_decoder:
            self.fill_decoder_sizes()
        if self.embedding_norm is None:
            self.embedding_norm = self.norm_position == "post"
        if self.final_norm is None:
            self.final_norm = self.norm_position == "pre"
        if self.attention_output_bias is None:
            self.attention_output_bias = self.attention_bias
        if self.output_bias is None:
            self.output_bias = self.architecture == "encoder"
        if self.output_transform is None:
            self.output_transform = self.architecture == "encoder" and not self.two_stream
        if self.output_transform_act is None:
            self.output_transform_act = self.hidden_act
        if self.embedding_dropout is None:
            self.embedding_dropout = self.hidden_dropout
        if self.pooling is None:
            self.pooling = "last" if self.architecture != "encoder" else "first" if self.pooler else "mean"
        check_inherited(self, kwargs)
        super().__post_init__(**kwargs)
        check(self)  # here rather than in a validator of huggingface_hub, which would wrap the one line in two

    def fill_decoder_sizes(self) -> None:
        """The sizes of the decoder that were not given."""
        if self.decoder_intermediate_size is None:
            self.decoder_intermediate_size = self.intermediate_size
        heads, keys, width = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        if self.num_decoder_attention_heads is not None:
            heads = keys = self.num_decoder_attention_heads
            width = self.hidden_size // heads if heads > 0 and self.hidden_size % heads == 0 else None
        self.num_decoder_attention_heads = heads
        if self.num_decoder_key_value_heads is None:
            self.num_decoder_key_value_heads = keys
        if self.decoder_head_dim is None:
            self.decoder_head_dim = width

    @property
    def base_model_tp_plan(self) -> dict[str, str] | None:
        """How transformers divides the body's heads among processes."""
        return tensor_plan(self)

    @property
    def base_model_pp_plan(self) -> dict[str, tuple[list[str], list[str]]] | None:
        """In which order the parts of the body follow each other."""
        return pipeline_plan(self)

    @property
    def base_model_fsdp_plan(self) -> dict[str, str]:
        """Which modules of the body are gathered as one where parameters are sharded."""
        return sharding_plan(self)

    @property
    def num_all_layers(self) -> int:
        """Blocks of all stacks."""
        return self.num_hidden_layers + (self.num_decoder_layers or 0)

    @property
    def relative_types(self) -> bool:
        """Whether the types of tokens enter in the score, as segments that are the same or not."""
        return bool((self.position_options or {}).get("segments"))

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "AttnKitConfig":
        """What a stack, and transformers' cache, is built from: for the decoder of two stacks, with its own sizes in
        the places of the encoder's."""
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = copy.deepcopy(self)
        config.num_hidden_layers = self.num_decoder_layers
        config.num_attention_heads = self.num_decoder_attention_heads
        config.num_key_value_heads = self.num_decoder_key_value_heads
        config.head_dim = self.decoder_head_dim
        config.intermediate_size = self.decoder_intermediate_size
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


def make_config(**fields: Any) -> AttnKitConfig:
    """An `AttnKitConfig`; whatever is wrong with the fields, types too, raises `UsageError`."""
    try:
        return AttnKitConfig(**fields)
    except StrictDataclassError as error:
        raise UsageError(" ".join(str(error.__cause__ or error).split())) from error
