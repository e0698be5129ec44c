"""Prediction of the next token."""

from typing import Any, final

from torch import Tensor
from transformers import AutoModelForCausalLM

from attnkit.data.objectives.base import IGNORED, Objective, objectives, tokens_of


@objectives.register("causal")
@final
class Causal(Objective):
    """Each token from those before it: -Σ log p(token_i | token_1 … token_{i-1}) for i > 1 (Radford 2018, section 3.1).

    The labels are the tokens themselves (the model shifts them), but for the first, which nothing precedes.
    """

    auto_class = AutoModelForCausalLM
    architectures = ("decoder",)

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        tokens = tokens_of(row, "input_ids")
        if len(tokens) < 2:
            raise ValueError(f"a row of {len(tokens)} tokens has none that is predicted from another")
        labels = tokens.clone()
        labels[0] = IGNORED
        return {"input_ids": tokens, "labels": labels}
