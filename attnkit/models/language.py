"""Heads that predict tokens.

Shapes: B batch, N tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput, Seq2SeqLMOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from attnkit.errors import UsageError
from attnkit.models.blocks import build_norm
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.modeling_attnkit import AttnKitModel
from attnkit.models.stack import AttnKitPreTrainedModel, renamed_cache


class LanguageModel(AttnKitPreTrainedModel):
    """A body and an output embedding. A class of this kind says for which architecture."""

    architecture: str

    def __init__(self, config: AttnKitConfig, *, with_pooler: bool = False) -> None:
        if config.architecture != self.architecture:
            raise UsageError(
                f"{type(self).__name__} is for architecture {self.architecture!r}, not {config.architecture!r}"
            )
        super().__init__(config)
        self.model = AttnKitModel(config, with_pooler=with_pooler)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)

    def predict(self, states: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
        """Hidden states [B, N, hidden_size] -> logits [B, N, V], of the last `logits_to_keep` positions only where it
        is not 0, or of the positions that it lists."""
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        states = states[:, kept]
        return self.lm_head(states if self.config.output_scale == 1 else states * self.config.output_scale)

    def loss_of(self, logits: Tensor, labels: Tensor | None, **kwargs: Any) -> Tensor | None:
        """Mean of -log p(label) over the labels that are not -100, in nats; None without labels."""
        if labels is None:
            return None
        return self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)


class AttnKitForCausalLM(LanguageModel, GenerationMixin):
    """A decoder that predicts the next token."""

    architecture = "decoder"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
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
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, N, V]; `labels` [B, N] are the input ids themselves (-100: not predicted), and the loss is over
        those of positions 1 … N-1."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.predict(outputs.last_hidden_state, logits_to_keep)
        return CausalLMOutputWithPast(
            loss=self.loss_of(logits, labels, **kwargs),
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class Transform(nn.Module):
    """norm(act(W x + b)), between an encoder and its output embedding (Devlin 2019)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = build_norm(config)

    def forward(self, states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(states)))


class AttnKitForMaskedLM(LanguageModel):
    """An encoder that predicts the tokens behind the masks (Devlin 2019)."""

    architecture = "encoder"
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.transform = Transform(config) if config.mlm_transform else nn.Identity()
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
        """Logits [B, N, V]; `labels` [B, N] are the true tokens where they were masked and -100 elsewhere."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.predict(self.transform(outputs.last_hidden_state))
        return MaskedLMOutput(
            loss=self.loss_of(logits, labels, **kwargs),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class PreTrainingOutput(ModelOutput):
    """Outputs of masked language modelling with next-sentence prediction."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class AttnKitForPreTraining(LanguageModel):
    """An encoder that predicts the tokens behind the masks, and from its pooled state whether the second of two texts
    follows the first (Devlin 2019)."""

    architecture = "encoder"
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        if not config.pooler:
            raise UsageError("next-sentence prediction reads the pooled state: set pooler true")
        super().__init__(config, with_pooler=True)
        self.loss_type = "ForMaskedLM"
        self.transform = Transform(config) if config.mlm_transform else nn.Identity()
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
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
        next_sentence_label: Tensor | None = None,
        **kwargs: Any,
    ) -> PreTrainingOutput:
        """Logits of tokens [B, N, V] and of sentences [B, 2] (0: follows); `labels` as in `AttnKitForMaskedLM`,
        `next_sentence_label` [B]. The loss is the sum of the mean over tokens and the mean over sentences."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.predict(self.transform(outputs.last_hidden_state))
        sentence_logits = self.seq_relationship(outputs.pooler_output)
        loss = self.loss_of(logits, labels, **kwargs)
        if next_sentence_label is not None:
            sentence_loss = F.cross_entropy(sentence_logits.float(), next_sentence_label.view(-1))
            loss = sentence_loss if loss is None else loss + sentence_loss
        return PreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=sentence_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AttnKitForPermutationLM(LanguageModel):
    """An encoder with two streams that predicts tokens from those before them in a random order (Yang 2019)."""

    architecture = "encoder"
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        if not config.two_stream:
            raise UsageError("a permutation language model has two streams: set two_stream true")
        super().__init__(config)
        self.loss_type = "ForMaskedLM"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the P targets [B, P, V], or of all tokens where no `target_mapping` [B, P, N] is given.

        `perm_mask` [B, N, N] is 1 where the first may not see the second, `labels` [B, P] are the targets' tokens
        (-100: not predicted). A `cache` is the memory: the keys and values of the text before.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            perm_mask=perm_mask,
            target_mapping=target_mapping,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.predict(outputs.last_hidden_state)
        return CausalLMOutputWithPast(
            loss=self.loss_of(logits, labels, **kwargs),
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AttnKitForSeq2SeqLM(LanguageModel, GenerationMixin):
    """An encoder-decoder that writes a target text for a source text (Vaswani 2017)."""

    architecture = "encoder-decoder"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # labels stand where they are predicted: the decoder's input is shifted instead
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input for `labels` [B, N]: what transformers' data collators call."""
        return shift_right(labels, self.config)

    @renamed_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [B, N, V] of the target; `labels` [B, N] are the target itself (-100: not predicted), from which the
        decoder's input is made where none is given."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shift_right(labels, self.config)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.predict(outputs.last_hidden_state, logits_to_keep)
        named = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=self.loss_of(logits, labels, **kwargs), logits=logits, **named)


def shift_right(ids: Tensor, config: AttnKitConfig) -> Tensor:
    """Start token, then all ids but the last; -100 becomes padding. [B, N] -> [B, N]."""
    if config.decoder_start_token_id is None or config.pad_token_id is None:
        raise UsageError("the decoder's input is made with decoder_start_token_id and pad_token_id: set both")
    start = torch.full_like(ids[:, :1], config.decoder_start_token_id)
    shifted = torch.cat([start, ids[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, config.pad_token_id)
