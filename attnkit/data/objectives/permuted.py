"""Prediction in a random order.

Shapes: B rows of a batch, N tokens of its longest row, P targets of the row that has the most.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from attnkit.data.objectives.base import IGNORED, Objective, ObjectiveConfig, objectives, tokens_of
from attnkit.data.objectives.masking import TextTokens, num_noise, random_spans
from attnkit.data.sources import PretrainDataConfig


class PermutationHead:
    """`AttnKitForPermutationLM`, for which there is no Auto class, imported when it is asked for."""

    def __get__(self, objective: Objective | None, objective_class: type[Objective]) -> Any:
        from attnkit.models.permutation import AttnKitForPermutationLM  # here, as text is prepared without it

        return AttnKitForPermutationLM


@objectives.register("permuted")
@final
class Permuted(Objective):
    """Targets in a random order z, each from those before it and from all that is no target (Yang 2019):

        -Σ_t log p(token_{z_t} | token_j for j no target, token_{z_1}, …, token_{z_{t-1}})

    The targets are spans of text tokens, `mask_rate` of the row (sections 2.2 and 2.3; a sixth there). The model
    gets all tokens, and `perm_mask` [B, N, N] says which may not see which: nothing sees a target but targets that come
    after it in z. `target_mapping` [B, P, N] says where the targets stand. The model has to have two streams.
    """

    auto_class = PermutationHead()
    architectures = ("encoder",)

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig, *, data: PretrainDataConfig
    ) -> None:
        super().__init__(tokenizer, objective, data=data)
        self.objective = objective
        self.text = TextTokens(tokenizer)

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        """`turns` [N] is when a token is predicted, counted from 1, and 0 where it is not."""
        tokens = tokens_of(row, "input_ids")
        places = self.text(tokens)
        number = num_noise(len(places), self.objective.mask_rate)
        places = places[random_spans(len(places), number, span_length=self.objective.span_length)]
        turns = torch.zeros_like(tokens)
        turns[places] = torch.randperm(len(places)) + 1
        return {"input_ids": tokens, "turns": turns}

    def complete(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        turns = batch.pop("turns")
        is_target = turns > 0
        targets = [row.nonzero().squeeze(1) for row in is_target]
        batch["perm_mask"] = (is_target[:, None] & (turns[:, :, None] <= turns[:, None])).to(torch.int64)
        mapping = [F.one_hot(places, turns.shape[1]) for places in targets]
        batch["target_mapping"] = pad_sequence(mapping, batch_first=True)
        labels = [tokens[places] for tokens, places in zip(batch["input_ids"], targets, strict=True)]
        batch["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
        return batch
