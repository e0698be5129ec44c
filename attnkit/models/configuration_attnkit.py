"""The configuration of every AttnKit model: shapes and function, nothing else."""

import inspect
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from attnkit.attention import positions, scorers
from attnkit.errors import UsageError, nearest

SHAPE = {"num_heads", "num_key_value_heads", "head_dim", "max_positions", "hidden_size"}


@strict
class AttnKitConfig(PreTrainedConfig):
    """Shapes and function of a transformer whose attention score is a part by name.

    `scorer` and `position` are names of `attnkit.scorers` and `attnkit.positions`; `scorer_options` and
    `position_options` are the arguments of those classes. `layer_scorers` gives each layer its own scorer: a list of
    names, or of one-key mappings from a name to its options.

    Raises `UsageError` (a `ValueError`) that names the field, the value and the values allowed.
    """

    model_type = "attnkit"
    keys_to_ignore_at_inference = ["cache"]

    architecture: Literal["encoder", "decoder"] = "decoder"
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 0

    scorer: str = "scaled_dot"
    scorer_options: dict[str, Any] | None = None
    layer_scorers: list[str | dict] | None = None
    position: str = "rope"
    position_options: dict[str, Any] | None = None

    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_position: Literal["pre", "post"] = "pre"
    norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: bool = True
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    output_dropout: float | int = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        super().__post_init__(**kwargs)

    def scorer_of_layer(self, layer_idx: int) -> tuple[str, dict[str, Any]]:
        """Name and options of the scorer of one layer."""
        if self.layer_scorers is None:
            return self.scorer, self.scorer_options or {}
        entry = self.layer_scorers[layer_idx]
        if isinstance(entry, str):
            return entry, {}
        ((name, options),) = entry.items()
        return name, options or {}

    def validate_shapes(self) -> None:
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
            if getattr(self, key) < 1:
                raise UsageError(f"{key} must be at least 1, not {getattr(self, key)}")
        if self.head_dim * self.num_attention_heads != self.hidden_size and self.hidden_size % self.num_attention_heads:
            raise UsageError(
                f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {self.num_attention_heads}: "
                "change one of them, or give head_dim"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise UsageError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )

    def validate_parts(self) -> None:
        if self.layer_scorers is not None and len(self.layer_scorers) != self.num_hidden_layers:
            raise UsageError(
                f"layer_scorers has {len(self.layer_scorers)} entries for {self.num_hidden_layers} layers: one each"
            )
        for layer_idx in range(self.num_hidden_layers if self.layer_scorers else 1):
            name, options = self.scorer_of_layer(layer_idx)
            check_options("scorer", scorers[name], options)
        check_options("position", positions[self.position], self.position_options or {})
        if self.position == "rope" and self.head_dim % 2:
            raise UsageError(f"position 'rope' turns pairs of dimensions, and head_dim {self.head_dim} is odd")


def check_options(family: str, part: type, options: dict[str, Any]) -> None:
    """Refuse options that the class does not take, before any weight exists."""
    parameters = inspect.signature(part.__init__).parameters.values()
    allowed = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - SHAPE
    for key in options:
        if key not in allowed:
            remedy = nearest(key, allowed) if allowed else "(it takes none)"
            raise UsageError(f"{family}_options: {part.__qualname__} takes no option {key!r}: {remedy}")
