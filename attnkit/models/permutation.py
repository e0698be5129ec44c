"""The head that predicts tokens in a random order.

Shapes: B batch, N tokens, P targets, V vocabulary.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.language import LanguageModel
from attnkit.models.loss import label_loss


class AttnKitForPermutationLM(LanguageModel):
    """An encoder with two streams that predicts tokens from those before them in a random order (Yang 2019)."""

    architecture = "encoder"
    needs = ("two_stream", "a permutation language model has two streams")
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
        loss, logits = self.predict(outputs.last_hidden_state, labels, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
