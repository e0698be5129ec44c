"""The AttnKit model without a head: one stack, or an encoder and a decoder.

Shapes: B batch, N tokens of the target (the only text of one stack), S tokens of the source.
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPoolingAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.pooling import Pooler, pool
from attnkit.models.pretrained import AttnKitPreTrainedModel
from attnkit.models.stack import Stack, renamed_cache


class AttnKitModel(AttnKitPreTrainedModel):
    """The bare model: token ids to hidden states.

    `config.architecture` "encoder" and "decoder" have the one stack of that name, "encoder-decoder" has both. The
    pooler of the config is left away where a head has no use for it.
    """

    pipeline_tag = "feature-extraction"

    def __init__(self, config: AttnKitConfig, *, with_pooler: bool = True) -> None:
        super().__init__(config)
        both = config.is_encoder_decoder
        if config.architecture != "decoder":
            self.encoder = Stack(config, num_layers=config.num_hidden_layers, causal=False)
        if config.architecture != "encoder":
            num_layers = config.num_decoder_layers if both else config.num_hidden_layers
            first_layer = config.num_hidden_layers if both else 0
            self.decoder = Stack(config, num_layers=num_layers, causal=True, cross=both, first_layer=first_layer)
        if both and config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"decoder.embeddings.tokens.weight": "encoder.embeddings.tokens.weight"}
        self.pooler = Pooler(config) if config.pooler and with_pooler else None
        self.post_init()

    @property
    def first_stack(self) -> Stack:
        """The stack that reads `input_ids`."""
        return self.decoder if self.config.architecture == "decoder" else self.encoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.first_stack.embeddings.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.first_stack.embeddings.tokens = value
        if self.config.is_encoder_decoder and self.config.share_encoder_decoder_embeddings:
            self.decoder.embeddings.tokens = value

    @property
    def stack_apart(self) -> Stack | None:
        """The stack whose embeddings are its own beside those of `get_input_embeddings`; None where there is none."""
        apart = self.config.is_encoder_decoder and not self.config.share_encoder_decoder_embeddings
        return self.decoder if apart else None

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The embeddings of both stacks are one where the config says so, whatever the output embedding is."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

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
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions | Seq2SeqModelOutput:
        """`input_ids` [B, N] -> hidden states [B, N, hidden_size]; with two stacks, `input_ids` [B, S] and
        `decoder_input_ids` [B, N] (or the `encoder_outputs` of an earlier call) -> the decoder's hidden states.

        Where no position ids are given, positions count as `config.position_counting` says. Position ids that restart
        inside a row mark packed documents.
        """
        if self.config.is_encoder_decoder:
            if encoder_outputs is None:
                encoder_outputs = self.encoder(
                    input_ids=input_ids,
                    attention_mask=attention_mask,
                    position_ids=position_ids,
                    token_type_ids=token_type_ids,
                    inputs_embeds=inputs_embeds,
                    **(kwargs | {"return_dict": True}),
                )
            return self.decode(
                as_output(encoder_outputs),
                source_mask=attention_mask,
                input_ids=decoder_input_ids,
                attention_mask=decoder_attention_mask,
                position_ids=decoder_position_ids,
                cache=cache,
                inputs_embeds=decoder_inputs_embeds,
                use_cache=use_cache,
                **kwargs,
            )
        if any(given is not None for given in (decoder_input_ids, decoder_inputs_embeds, encoder_outputs)):
            raise UsageError(f"architecture {self.config.architecture!r} has one stack and takes no decoder inputs")
        outputs = self.first_stack(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **(kwargs | {"return_dict": True}),
        )
        pooled = None
        if self.pooler is not None:
            states = outputs.last_hidden_state
            pooled = self.pooler(pool(states, self.config, input_ids=input_ids, attention_mask=attention_mask))
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=outputs.last_hidden_state,
            pooler_output=pooled,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def decode(
        self, encoder_outputs: BaseModelOutput, *, source_mask: Tensor | None, **inputs: Any
    ) -> Seq2SeqModelOutput:
        """Run the decoder on the states of the encoder; `inputs` are those of `Stack.forward`."""
        outputs = self.decoder(
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=source_mask,
            **(inputs | {"return_dict": True}),
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


def as_output(outputs: BaseModelOutput | tuple) -> BaseModelOutput:
    """The encoder's outputs by name: they may come back as the tuple (states, hidden states, attentions)."""
    if not isinstance(outputs, tuple | list):
        return outputs
    return BaseModelOutput(**dict(zip(("last_hidden_state", "hidden_states", "attentions"), outputs, strict=False)))
