"""The AttnKit models: embeddings, one stack of blocks, and a head.

Shapes: B batch, N tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutputWithPast,
)
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from attnkit.attention import Attention, PairwiseScorer, Position, Scorer, positions, scorers
from attnkit.attention.backends import BACKENDS as ALL_ATTENTION_FUNCTIONS
from attnkit.attention.backends import eager_attention
from attnkit.attention.patterns import build_mask, find_documents
from attnkit.errors import UsageError
from attnkit.models.blocks import NORMS, Block
from attnkit.models.configuration_attnkit import AttnKitConfig

renamed_cache = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


class AttnKitPreTrainedModel(PreTrainedModel):
    """What all AttnKit models share: configuration, initialisation, and what transformers may do with them."""

    config: AttnKitConfig
    config_class = AttnKitConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": Block, "attentions": OutputRecorder(Attention, index=1)}

    def __init__(self, config: AttnKitConfig, *args: Any, **kwargs: Any) -> None:
        if uses_pairwise_scorer(config):  # before transformers decides which backend the model gets
            self._supports_sdpa = self._supports_flex_attn = False
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Scorer | Position):
            module.reset_parameters()
        else:
            super()._init_weights(module)


def uses_pairwise_scorer(config: AttnKitConfig) -> bool:
    names = {config.scorer_of_layer(layer_idx)[0] for layer_idx in range(config.num_hidden_layers)}
    return any(issubclass(scorers[name], PairwiseScorer) for name in names)


class Embeddings(nn.Module):
    """Token, position and token-type vectors, summed."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.types = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.position = positions[config.position](
            hidden_size=config.hidden_size,
            head_dim=config.head_dim,
            max_positions=config.max_position_embeddings,
            **(config.position_options or {}),
        )
        # Before the first block of a pre-norm model there is no norm to need; a post-norm model has one here.
        self.norm = (
            NORMS[config.norm](config.hidden_size, eps=config.norm_eps) if config.norm_position == "post" else None
        )
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, states: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Token vectors [B, N, hidden_size] and positions [B, N] -> [B, N, hidden_size]."""
        order = self.position.embed(position_ids)
        if order is not None:
            states = states + order.to(states.dtype)
        if self.types is not None:
            types = torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            states = states + self.types(types)
        elif token_type_ids is not None and token_type_ids.any():
            raise UsageError("the model has no token types: set type_vocab_size, or leave token_type_ids away")
        return self.dropout(states if self.norm is None else self.norm(states))


class AttnKitModel(AttnKitPreTrainedModel):
    """The bare model: token ids to hidden states. `config.architecture` "decoder" is causal, "encoder" is not."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.causal = config.architecture == "decoder"
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            Block(config, layer_idx=layer_idx, causal=self.causal) for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = (
            NORMS[config.norm](config.hidden_size, eps=config.norm_eps) if config.norm_position == "pre" else None
        )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.tokens = value

    @renamed_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """`input_ids` [B, N] or `inputs_embeds` [B, N, hidden_size] -> hidden states [B, N, hidden_size].

        Position ids that restart inside a row mark packed documents, which do not attend to each other. Where none are
        given, positions count the real tokens of `attention_mask` [B, past + N], so that padding may be on either side.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        states = self.embeddings.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.causal and use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        past = cache.get_seq_length() if cache is not None else 0
        documents = find_documents(position_ids, attention_mask) if cache is None or past == 0 else None
        if position_ids is None:
            position_ids = count_real_tokens(states, attention_mask, past)
        self.check_length(past, states)
        rotation = self.embeddings.position.rotation(position_ids)
        mask = build_mask(
            self.config._attn_implementation,
            states=states,
            attention_mask=attention_mask,
            causal=self.causal,
            cache=cache,
            documents=documents,
        )
        backend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        states = self.embeddings(states, position_ids, token_type_ids)
        for layer in self.layers:
            states = layer(states, positions=position_ids, rotation=rotation, mask=mask, cache=cache, backend=backend)
        if self.norm is not None:
            states = self.norm(states)
        return BaseModelOutputWithPast(last_hidden_state=states, cache=cache)

    def check_length(self, past: int | Tensor, states: Tensor) -> None:
        limit = self.embeddings.position.max_trained
        if limit is not None and isinstance(past, int) and past + states.shape[1] > limit:
            raise UsageError(
                f"{past + states.shape[1]} tokens, but position {self.config.position!r} has {limit} positions: raise "
                "max_position_embeddings, or shorten the input"
            )


def count_real_tokens(states: Tensor, attention_mask: Tensor | None, past: int | Tensor) -> Tensor:
    """Positions [B, N] that start at 0 with the first real token of each row."""
    num_tokens = states.shape[1]
    if attention_mask is None or attention_mask.ndim != 2:
        return (torch.arange(num_tokens, device=states.device) + past).expand(states.shape[0], -1)
    counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    return counted[:, -num_tokens:]


class AttnKitForCausalLM(AttnKitPreTrainedModel, GenerationMixin):
    """A decoder that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        if config.architecture != "decoder":
            raise UsageError(f"a causal language model is a decoder: architecture is {config.architecture!r}")
        super().__init__(config)
        self.model = AttnKitModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @renamed_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, N, V]; `labels` [B, N] are the input ids themselves (-100: not predicted), the loss is the mean over
        the labels of positions 1 … N-1 of -log p(label | tokens before), in nats."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AttnKitForMaskedLM(AttnKitPreTrainedModel):
    """An encoder that predicts the tokens behind the masks (Devlin 2019), through a dense layer, a norm and the tied
    embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        if config.architecture != "encoder":
            raise UsageError(f"a masked language model is an encoder: architecture is {config.architecture!r}")
        super().__init__(config)
        self.model = AttnKitModel(config)
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = NORMS[config.norm](config.hidden_size, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits [B, N, V]; `labels` [B, N] are the true tokens where they were masked and -100 elsewhere; the loss is the
        mean of -log p(label), in nats."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.lm_head(self.norm(self.activation(self.transform(outputs.last_hidden_state))))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class AttnKitForSequenceClassification(AttnKitPreTrainedModel):
    """A label for a whole text, from its pooled hidden state: a decoder's last real token, an encoder's mean over its
    real tokens."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = AttnKitModel(config)
        self.dropout = nn.Dropout(config.output_dropout)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @renamed_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Logits [B, num_labels]; `labels` [B] are classes, or numbers where `config.problem_type` is "regression"."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        pooled = self.pool(outputs.last_hidden_state, self.real_tokens(input_ids, attention_mask))
        logits = self.score(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def real_tokens(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """[B, N], True where a token is no padding; None where nothing says that some are."""
        if attention_mask is not None and attention_mask.ndim == 2:
            return attention_mask.bool()
        if input_ids is not None and self.config.pad_token_id is not None:
            return input_ids != self.config.pad_token_id
        return None

    def pool(self, states: Tensor, real: Tensor | None) -> Tensor:
        """[B, N, hidden_size] -> [B, hidden_size]."""
        if self.config.architecture == "encoder":
            if real is None:
                return states.mean(dim=1)
            weight = real.to(states.dtype)[..., None]
            return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        if real is None:
            return states[:, -1]
        order = torch.arange(states.shape[1], device=states.device)
        last = (order * real).argmax(dim=-1)
        return states[torch.arange(states.shape[0], device=states.device), last]
