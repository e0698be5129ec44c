"""Prediction of hidden tokens."""

from typing import Any, final

from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from attnkit.data.objectives.base import Objective, ObjectiveConfig, objectives, tokens_of
from attnkit.data.objectives.masking import Masker
from attnkit.data.sources import PretrainDataConfig


@objectives.register("masked")
@final
class Masked(Objective):
    """Hidden tokens from all that is left: -Σ log p(token_i | masked row) for i hidden (Devlin 2019, section 3.1).

    What is hidden is drawn anew each time a row is seen (Liu 2019, section 4.1); see the keys of `objective`.
    """

    auto_class = AutoModelForMaskedLM
    architectures = ("encoder",)

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig, *, data: PretrainDataConfig
    ) -> None:
        super().__init__(tokenizer, objective, data=data)
        self.mask = Masker(tokenizer, objective)

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        inputs, labels = self.mask(tokens_of(row, "input_ids"))
        return {"input_ids": inputs, "labels": labels}
