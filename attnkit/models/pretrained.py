"""What all models share: configuration, initialisation, and what transformers may do with them."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.distributed import DistributedConfig
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.utils.output_capturing import OutputRecorder

from attnkit.attention import Attention, Normalizer, Pattern, Position, Scorer
from attnkit.attention.backends import BACKENDS as ALL_ATTENTION_FUNCTIONS
from attnkit.attention.choice import FASTEST_FIRST
from attnkit.attention.normalizers import Stochastic
from attnkit.errors import UsageError, nearest
from attnkit.models.blocks import Block
from attnkit.models.card import write_card
from attnkit.models.checks import backend_problems, common_backend, obstacles
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.loss import loss_with_policy
from attnkit.models.parallel import PER_HEAD, tensor_obstacle
from attnkit.models.per_head import PerHead

logger = logging.getLogger(__name__)
ALL_PARALLEL_STYLES.register(PER_HEAD, PerHead())


loss_of_head: Any = vars(PreTrainedModel)[
    "loss_function"
].fget  # what `super().loss_function` is, which no compiler follows


class AttnKitPreTrainedModel(PreTrainedModel):
    """What all AttnKit models share: configuration, initialisation, and what transformers may do with them."""

    config: AttnKitConfig
    config_class = AttnKitConfig
    base_model_prefix = "model"
    pipeline_tag: str | None = None
    """The hub's word for what a head is for."""
    predicts_next = False  # whether the label of a token is predicted from the token before it
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": Block,
        "attentions": OutputRecorder(Attention, index=1, layer_name="attention"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: AttnKitConfig, *args: Any, **kwargs: Any) -> None:
        self._supports_sdpa = not obstacles(config, "sdpa")  # transformers asks the model before it offers a backend
        self._supports_flex_attn = not obstacles(config, "flex_attention")
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_config(cls, config: AttnKitConfig) -> "AttnKitPreTrainedModel":
        """A model with random weights, as the Auto classes make one: for heads that none of them knows."""
        return cls._from_config(config)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The backend for this model: the fastest that can compute it where none is asked for, or the one asked for.

        Raises `UsageError` with the reason and a working backend if that one cannot compute the configured mathematics.
        """
        if requested_attention is None:
            backend = common_backend(self.config)
            reasons = obstacles(self.config, FASTEST_FIRST[0])
            logger.info("attention backend %r: %s", backend, reasons[0] if reasons else "it can compute every part")
            return backend
        known = ("eager", *ALL_ATTENTION_FUNCTIONS.valid_keys())
        if requested_attention not in known:
            said = f'Specified `attn_implementation="{requested_attention}"` is not supported'  # transformers' words
            raise UsageError(f"{said}: {nearest(requested_attention, known)}")
        problems = list(backend_problems(self.config, requested_attention))
        if problems:
            raise UsageError("; ".join(dict.fromkeys(problems)))
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, cache: Cache, **others: Any) -> Tensor | None:
        """The padding mask, as wide as the static cache, so that a compiled step meets one shape. The model makes its
        masks itself, with the patterns that transformers' own causal mask would leave out."""
        if attention_mask is None:
            return None
        return F.pad(attention_mask, (0, cache.get_max_length() - attention_mask.shape[1]))

    def _resolve_parallel_plans(self, distributed_config: DistributedConfig) -> tuple[dict, dict, dict]:
        """As transformers does it. Raises `UsageError` where the model cannot be divided in the way asked for."""
        if distributed_config.pp_size > 1:
            raise UsageError("pp_size: transformers splits a body that has `layers` itself; use tp_size or FSDP")
        obstacle = tensor_obstacle(self.config, distributed_config.tp_size)
        if distributed_config.tp_size > 1 and obstacle is not None:
            raise UsageError(f"tp_size {distributed_config.tp_size}: {obstacle}")
        return super()._resolve_parallel_plans(distributed_config)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As transformers does it. Raises `UsageError` where the padding would have no row any more."""
        padding = self.config.pad_token_id
        if new_num_tokens is not None and padding is not None and padding >= new_num_tokens:
            raise UsageError(
                f"new_num_tokens {new_num_tokens} leaves no row for pad_token_id {padding}: keep more than {padding}, "
                "or set config.pad_token_id first"
            )
        embeddings: nn.Embedding = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        return embeddings

    def _resize_token_embeddings(self, new_num_tokens: int, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As transformers does it, and the same to a decoder's own embeddings, which it does not know of."""
        embeddings: nn.Embedding = super()._resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if (stack := self.base_model.stack_apart) is not None:
            old = stack.get_input_embeddings()
            new = self._get_resized_embeddings(old, new_num_tokens, *args, **kwargs)
            stack.set_input_embeddings(new.requires_grad_(old.weight.requires_grad))
        return embeddings

    def save_pretrained(self, save_directory: str | Path, is_main_process: bool = True, **kwargs: Any) -> None:
        """As transformers saves a model, with a card beside it."""
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        if is_main_process:
            # A class that came with a folder's own code is loaded from the new folder as from the old.
            has_code = not type(self).__module__.startswith("attnkit.")
            write_card(self, save_directory, auto_map=getattr(self.config, "auto_map", None) if has_code else None)

    @property
    def loss_function(self) -> Callable[..., Tensor]:
        """The loss of the head, with what teaches the draws of a stochastic normalizer added to it."""
        loss, draws = loss_of_head(self), self.draws()
        return partial(loss_with_policy, loss, draws, self.predicts_next) if draws else loss

    @loss_function.setter
    def loss_function(self, value: Callable[..., Tensor]) -> None:
        self._loss_function = value

    def draws(self) -> list[Stochastic]:
        """The normalizers whose draws the loss has to teach."""
        return [module for module in self.modules() if isinstance(module, Stochastic) and module.training]

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """As transformers does it. Raises `UsageError` for checkpoints that would leave draws untaught."""
        reentrant = (activation_checkpointing_kwargs or {}).get("use_reentrant", False)
        if reentrant and any(isinstance(module, Stochastic) for module in self.modules()):
            raise UsageError(
                "use_reentrant: the pass before the loss then has no gradients, from which normalizer 'stochastic' "
                "learns; set it to False"
            )
        super().activation_checkpointing_enable(activation_checkpointing_kwargs, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Scorer | Position | Normalizer | Pattern):
            module.reset_parameters()
        else:
            super()._init_weights(module)
