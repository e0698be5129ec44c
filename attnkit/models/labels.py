"""Heads that predict labels of a text, of its tokens, of a span in it, or of a choice among several.

An encoder-decoder reads the text twice, like Lewis 2020 (section 3): the encoder as it is, the decoder shifted to the
right by the start token; the states are the decoder's. What a head does not name itself goes to `AttnKitModel.forward`
as it is.

Shapes: B batch, C choices, N tokens.
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqQuestionAnsweringModelOutput,
    Seq2SeqSequenceClassifierOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from transformers.utils.generic import ModelOutput, can_return_tuple

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.language import shift_right
from attnkit.models.loss import label_loss
from attnkit.models.modeling_attnkit import AttnKitModel
from attnkit.models.pooling import pool
from attnkit.models.pretrained import AttnKitPreTrainedModel
from attnkit.models.stack import renamed_cache


class LabelModel(AttnKitPreTrainedModel):
    """A body whose states a linear layer reads."""

    def __init__(self, config: AttnKitConfig, *, with_pooler: bool) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = AttnKitModel(config, with_pooler=with_pooler)
        self.dropout = nn.Dropout(config.output_dropout)

    def read(self, **inputs: Any) -> Any:
        """The body's outputs; `inputs` are those of `AttnKitModel.forward`."""
        decoded = [inputs.get(name) for name in ("decoder_input_ids", "decoder_inputs_embeds")]
        if self.config.is_encoder_decoder and all(given is None for given in decoded):
            if inputs["input_ids"] is None:
                raise UsageError("the decoder's input is made from input_ids: with inputs_embeds, give it too")
            mask = inputs["attention_mask"]
            inputs["decoder_input_ids"] = repeat_for_decoder(inputs["input_ids"], mask, self.config)
            inputs["decoder_attention_mask"] = mask
        return self.model(**(inputs | {"return_dict": True}))

    def pooled(self, outputs: Any, *, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """One vector per text, [B, hidden_size]; the tokens and the mask are those of the states."""
        if self.model.pooler is not None and not self.config.is_encoder_decoder:
            return outputs.pooler_output
        states = pool(outputs.last_hidden_state, self.config, input_ids=input_ids, attention_mask=attention_mask)
        return states if self.model.pooler is None else self.model.pooler(states)


def repeat_for_decoder(input_ids: Tensor, mask: Tensor | None, config: AttnKitConfig) -> Tensor:
    """The text shifted to the right, the start token in place of the first real one. [B, N] -> [B, N]."""
    shifted = shift_right(input_ids, config)
    if mask is None or mask.ndim != 2:
        return shifted
    first = mask.bool() & (mask.cumsum(-1) == 1)
    return shifted.masked_fill(first, config.decoder_start_token_id)


def inner_states(outputs: ModelOutput, names: tuple[str, ...]) -> dict[str, Any]:
    """The named hidden states, attentions and cache of a body's outputs."""
    return {name: outputs[name] for name in names if name in outputs}


ONE_STACK = ("cache", "hidden_states", "attentions")
TWO_STACKS = (
    "cache",
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "encoder_attentions",
)


class AttnKitForSequenceClassification(LabelModel):
    """A label for a whole text, from its pooled state (`config.pooling`, `config.pooler`)."""

    pipeline_tag = "text-classification"

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config, with_pooler=True)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast | Seq2SeqSequenceClassifierOutput:
        """Logits [B, num_labels]; `labels` [B] are classes, or numbers where `config.problem_type` is "regression"."""
        outputs = self.read(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        if decoder_input_ids is not None or kwargs.get("decoder_inputs_embeds") is not None:
            input_ids, attention_mask = decoder_input_ids, decoder_attention_mask
        pooled = self.pooled(outputs, input_ids=input_ids, attention_mask=attention_mask)
        logits = self.score(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        if self.config.is_encoder_decoder:
            return Seq2SeqSequenceClassifierOutput(loss=loss, logits=logits, **inner_states(outputs, TWO_STACKS))
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, **inner_states(outputs, ONE_STACK))


class AttnKitForTokenClassification(LabelModel):
    """A label for each token."""

    pipeline_tag = "token-classification"

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config, with_pooler=False)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = label_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """Logits [B, N, num_labels]; `labels` [B, N], -100 where a token has none."""
        outputs = self.read(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels)
        if self.config.is_encoder_decoder:
            return Seq2SeqSequenceClassifierOutput(loss=loss, logits=logits, **inner_states(outputs, TWO_STACKS))
        return TokenClassifierOutput(loss=loss, logits=logits, **inner_states(outputs, ONE_STACK[1:]))


class AttnKitForQuestionAnswering(LabelModel):
    """The first and the last token of the answer in a text (Devlin 2019, section 4.2)."""

    pipeline_tag = "question-answering"

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config, with_pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput | Seq2SeqQuestionAnsweringModelOutput:
        """Logits of the first and of the last token [B, N]; the loss is the mean of both cross-entropies.

        `start_positions` and `end_positions` are [B]; one at N or beyond says that there is no answer, and is left out.
        """
        outputs = self.read(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        start_logits, end_logits = self.qa_outputs(self.dropout(outputs.last_hidden_state)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        logits = {"loss": loss, "start_logits": start_logits.contiguous(), "end_logits": end_logits.contiguous()}
        if self.config.is_encoder_decoder:
            return Seq2SeqQuestionAnsweringModelOutput(**logits, **inner_states(outputs, TWO_STACKS))
        return QuestionAnsweringModelOutput(**logits, **inner_states(outputs, ONE_STACK[1:]))


class AttnKitForMultipleChoice(LabelModel):
    """One of several texts, each scored by its pooled state (Radford 2018, section 3.3)."""

    pipeline_tag = "multiple-choice"

    def __init__(self, config: AttnKitConfig) -> None:
        super().__init__(config, with_pooler=True)
        self.score = nn.Linear(config.hidden_size, 1)
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
    ) -> MultipleChoiceModelOutput | Seq2SeqSequenceClassifierOutput:
        """`input_ids` [B, C, N] -> logits [B, C]; `labels` [B] are the right choices."""
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "token_type_ids": token_type_ids,
            "inputs_embeds": inputs_embeds,
        }
        num_choices = (inputs_embeds if input_ids is None else input_ids).shape[1]
        flat = {name: None if states is None else states.flatten(0, 1) for name, states in given.items()}
        outputs = self.read(**flat, **kwargs)
        pooled = self.pooled(outputs, input_ids=flat["input_ids"], attention_mask=flat["attention_mask"])
        logits = self.score(self.dropout(pooled)).view(-1, num_choices)
        loss = None if labels is None else self.loss_function(logits, labels)
        if self.config.is_encoder_decoder:
            return Seq2SeqSequenceClassifierOutput(loss=loss, logits=logits, **inner_states(outputs, TWO_STACKS))
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **inner_states(outputs, ONE_STACK[1:]))
