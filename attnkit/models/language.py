"""Heads that predict tokens.

Shapes: B batch, N tokens, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput, Seq2SeqLMOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from attnkit.errors import UsageError
from attnkit.models.blocks import build_norm
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.generation import AttnKitGenerationMixin
from attnkit.models.loss import IGNORED, TokenLoss, label_loss, policy_loss
from attnkit.models.modeling_attnkit import AttnKitModel
from attnkit.models.pretrained import AttnKitPreTrainedModel
from attnkit.models.stack import renamed_cache


@runtime_checkable
class Gathers(Protocol):
    """What FSDP2 makes of a module: its parameters are whole only while it is called."""

    def unshard(self) -> Any: ...

    def reshard(self) -> Any: ...


class OutputEmbedding(nn.Linear):
    """Hidden states -> logits; with labels and a loss, that of `TokenLoss.of_states`, so that the logits of all tokens
    never exist, nor in a model whose weights are gathered for each call."""

    def forward(self, states: Tensor, labels: Tensor | None = None, *, loss: TokenLoss | None = None) -> Any:
        if labels is None or loss is None:
            return super().forward(states)
        if type(self.weight) is not nn.Parameter:  # divided in some other way as well
            return loss.of_logits(super().forward(states), labels)
        return loss.of_states(states, labels, weight=self.weight, bias=self.bias)


class Transform(nn.Module):
    """norm(act(W x + b)), between the blocks and the output embedding (Devlin 2019)."""

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.output_transform_act]
        self.norm = build_norm(config)

    def forward(self, states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(states)))


class LanguageModel(AttnKitPreTrainedModel):
    """A body and an output embedding. A class of this kind says for which architecture.

    Where `token_loss` is set, a pass with labels gives that loss and no logits: only tokens that are predicted meet the
    output embedding, a chunk of them at a time. Where it is None, the default, loss and logits are those that
    transformers gives. It belongs to a run, not to the model, and is not saved; `minimising` sets it.
    """

    architecture: str
    needs: tuple[str, str] | None = None
    """A field that has to be true, and what it is needed for."""
    token_loss: TokenLoss | None = None
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan: Any = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: AttnKitConfig, *, with_pooler: bool = False) -> None:
        self.check_config(config)
        super().__init__(config)
        self.model = AttnKitModel(config, with_pooler=with_pooler)
        self.transform = Transform(config) if config.output_transform else nn.Identity()
        self.lm_head = OutputEmbedding(config.hidden_size, config.vocab_size, bias=config.output_bias)

    @classmethod
    def check_config(cls, config: AttnKitConfig) -> None:
        """Raise `UsageError` for a config of which this class makes no model."""
        if config.architecture != cls.architecture:
            raise UsageError(f"{cls.__name__} is for architecture {cls.architecture!r}, not {config.architecture!r}")
        if cls.needs is not None and not vars(config)[cls.needs[0]]:
            raise UsageError(f"{cls.needs[1]}: set {cls.needs[0]} true")

    def init_parallel_plans(self) -> None:
        """As transformers does it, but an output embedding that may be tied is divided with the body or not at all."""
        super().init_parallel_plans()
        if self.config.base_model_tp_plan is None:
            self._tp_plan = {}

    def predict(
        self, states: Tensor, labels: Tensor | None, *, logits_to_keep: int | Tensor = 0, **kwargs: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Hidden states [B, N, hidden_size] -> loss and logits [B, N, V].

        The loss is the mean of -log p(label) over the labels that are not -100, in nats; None without labels. Logits
        are those of the last `logits_to_keep` positions only where it is not 0, or of the positions that it lists.
        """
        if labels is not None and self.token_loss is not None:
            return self.loss_of_states(states, labels, loss=self.token_loss, **kwargs), None
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(self.enter_head(states[:, kept]))
        if labels is None:
            return None, logits
        return self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs), logits

    def enter_head(self, states: Tensor) -> Tensor:
        """Hidden states -> what the output embedding reads."""
        states = self.transform(states)
        return states if self.config.output_scale == 1 else states * self.config.output_scale

    def loss_of_states(
        self,
        states: Tensor,
        labels: Tensor,
        *,
        loss: TokenLoss,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The mean of `loss` over the labels that are not -100, or its sum over `num_items_in_batch`."""
        if self.predicts_next:
            labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        predicted = labels != IGNORED
        states, chosen = self.enter_head(states[predicted]), labels[predicted]
        if is_plain(self.lm_head):
            total, nll = loss.of_states(states, chosen, weight=self.lm_head.weight, bias=self.lm_head.bias)
        elif isinstance(self.lm_head, OutputEmbedding) and isinstance(self.lm_head, Gathers):
            total, nll = self.lm_head(states, chosen, loss=loss)
        else:
            total, nll = loss.of_logits(self.lm_head(states), chosen)
        mean = total / (len(chosen) if num_items_in_batch is None else num_items_in_batch)
        draws = self.draws()
        if not draws:
            return mean
        row_sums = torch.zeros(len(labels), dtype=nll.dtype, device=nll.device)
        row_sums.index_add_(0, predicted.nonzero()[:, 0], nll)
        number = predicted.sum(-1)
        return mean + policy_loss(draws, row_sums / number, number=number, total=num_items_in_batch)


@contextmanager
def minimising(loss: TokenLoss | None, model: nn.Module) -> Iterator[None]:
    """Let a language model compute this loss for a while, without logits, or with None its loss and its logits; other
    models are left alone."""
    if not isinstance(model, LanguageModel):
        yield
        return
    before, model.token_loss = model.token_loss, loss
    try:
        yield
    finally:
        model.token_loss = before


def is_plain(head: nn.Module) -> bool:
    """Whether a layer is its matrix and nothing else: one that is wrapped, hooked or sharded has to be called. A matrix
    without values, of which only sizes are asked, is one too."""
    is_matrix = type(head) in (nn.Linear, OutputEmbedding) and type(head.weight) in (nn.Parameter, FakeTensor)
    return is_matrix and not head._forward_pre_hooks


class AttnKitForCausalLM(LanguageModel, AttnKitGenerationMixin):
    """A decoder that predicts the next token."""

    pipeline_tag = "text-generation"
    architecture = "decoder"
    predicts_next = True
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
            use_cache=use_cache if labels is None else bool(use_cache),  # a text with labels is not gone on with
            **(kwargs | {"return_dict": True}),
        )
        loss, logits = self.predict(outputs.last_hidden_state, labels, logits_to_keep=logits_to_keep, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AttnKitForMaskedLM(LanguageModel):
    """An encoder that predicts the tokens behind the masks (Devlin 2019)."""

    pipeline_tag = "fill-mask"
    architecture = "encoder"
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.loss_function = label_loss
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
        loss, logits = self.predict(outputs.last_hidden_state, labels, **kwargs)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class PreTrainingOutput(ModelOutput):
    """Outputs of masked language modelling with next-sentence prediction; `sentence_loss` is a part of `loss`."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    sentence_loss: Tensor | None = None


def loss_terms(output: Any) -> dict[str, Tensor]:
    """The terms of an output's loss, each a mean over labels of its own, by the name of these labels."""
    if not isinstance(output, PreTrainingOutput) or output.sentence_loss is None or output.loss is None:
        return {"labels": output.loss}
    return {"labels": output.loss - output.sentence_loss, "next_sentence_label": output.sentence_loss}


class AttnKitForPreTraining(LanguageModel):
    """An encoder that predicts the tokens behind the masks, and from its pooled state whether the second of two texts
    follows the first (Devlin 2019)."""

    architecture = "encoder"
    needs = ("pooler", "next-sentence prediction reads the pooled state")
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config, with_pooler=True)
        self.loss_function = label_loss
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
        loss, logits = self.predict(outputs.last_hidden_state, labels, **kwargs)
        sentence_logits = self.seq_relationship(outputs.pooler_output)
        sentence_loss = None
        if next_sentence_label is not None:
            # Draws of a normalizer learn from the tokens' loss where there is one.
            of_sentences = self.loss_function if labels is None else label_loss
            sentence_loss = of_sentences(sentence_logits, next_sentence_label)
            loss = sentence_loss if loss is None else loss + sentence_loss
        return PreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=sentence_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            sentence_loss=sentence_loss,
        )


class AttnKitForSeq2SeqLM(LanguageModel, AttnKitGenerationMixin):
    """An encoder-decoder that writes a target text for a source text (Vaswani 2017)."""

    pipeline_tag = "text2text-generation"
    architecture = "encoder-decoder"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embeddings.tokens.weight"}

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config)
        self.loss_function = label_loss  # labels stand where they are predicted: the decoder's input is shifted instead
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
            token_type_ids=token_type_ids,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache if labels is None else bool(use_cache),  # a text with labels is not gone on with
            **(kwargs | {"return_dict": True}),
        )
        loss, logits = self.predict(outputs.last_hidden_state, labels, logits_to_keep=logits_to_keep, **kwargs)
        named = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **named)


def shift_right(ids: Tensor, config: AttnKitConfig) -> Tensor:
    """Start token, then all ids but the last; -100 becomes padding. [B, N] -> [B, N]."""
    if config.decoder_start_token_id is None or config.pad_token_id is None:
        raise UsageError("the decoder's input is made with decoder_start_token_id and pad_token_id: set both")
    start = torch.full_like(ids[:, :1], config.decoder_start_token_id)
    shifted = torch.cat([start, ids[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, config.pad_token_id)
