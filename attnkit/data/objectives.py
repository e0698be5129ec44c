"""What a model is trained to predict: from rows of token ids to inputs and labels.

Shapes: B rows of a batch, N tokens of its longest row.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerBase

from attnkit.errors import UsageError
from attnkit.registry import Registry

IGNORED = -100
"""The label of a token that is not predicted."""


@dataclass(kw_only=True)
class ObjectiveConfig:
    """What the pretraining loss is."""

    name: str = "causal"
    """A name of the registry `attnkit.objectives`."""
    mask_rate: float = 0.15
    """`masked`: the part of the tokens that is predicted (Devlin 2019)."""


class Objective(ABC):
    """Makes a batch from rows: it is the collator of a pretraining run.

    A label is set where, and only where, a token is predicted, so `(labels != IGNORED).sum()` is the number of terms in
    the loss; every row has at least one. Rows are padded on the right to the longest, and only if one is shorter there
    is an attention mask. What is random is drawn from torch's generator.

    Raises `UsageError` if the tokenizer lacks a token that the objective needs, or a setting is out of range.
    """

    auto_class: ClassVar[Any]
    """The Auto class of the models that can be trained for it."""
    architectures: ClassVar[tuple[str, ...]]
    """The values of `model.architecture` that can be trained for it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig) -> None:
        self.pad_token_id = _needed(tokenizer.pad_token_id, "pad_token", objective)

    @final
    def check_architecture(self, architecture: str, *, name: str) -> None:
        """Raise `UsageError` if a model of that architecture cannot be trained for this objective, called `name`."""
        if architecture not in self.architectures:
            fitting = [other for other, objective in objectives.items() if architecture in objective.architectures]
            raise UsageError(
                f"objective.name: {name!r} trains model.architecture {' or '.join(self.architectures)}, not "
                f"{architecture!r}; objectives for {architecture!r}: {', '.join(sorted(fitting)) or 'none'}"
            )

    @final
    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Rows with `input_ids` -> `input_ids` and `labels` [B, N], and `attention_mask` [B, N] if one is shorter."""
        examples = [self.example(torch.as_tensor(row["input_ids"], dtype=torch.int64)) for row in rows]
        inputs = [tokens for tokens, _ in examples]
        labels = [predicted for _, predicted in examples]
        batch = {
            "input_ids": pad_sequence(inputs, batch_first=True, padding_value=self.pad_token_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        }
        lengths = torch.tensor([len(ids) for ids in inputs])
        longest = int(lengths.max())
        if int(lengths.min()) < longest:
            batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).to(torch.int64)
        return batch

    @abstractmethod
    def example(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of one row [N] -> its inputs [N] and labels [N]."""


objectives: Registry[Objective] = Registry("objective")


@objectives.register("causal")
@final
class Causal(Objective):
    """Each token from those before it: -Σ log p(token_i | token_1 … token_{i-1}) for i > 1.

    The labels are the tokens themselves (the model shifts them), but for the first, which nothing precedes.
    """

    auto_class = AutoModelForCausalLM
    architectures = ("decoder",)

    def example(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if len(tokens) < 2:
            raise ValueError(f"a row of {len(tokens)} tokens has none that is predicted from another")
        labels = tokens.clone()
        labels[0] = IGNORED
        return tokens, labels


@objectives.register("masked")
@final
class Masked(Objective):
    """Chosen tokens from all that is left: -Σ log p(token_i | masked row) for i chosen (Devlin 2019, §3.1).

    Each token is chosen with probability `mask_rate`, anew each time a row is seen; if none is, one at random. Of the
    chosen, 80% become the mask token, 10% a random token and 10% stay. Special tokens are neither chosen nor put in at
    random, but for the unknown token, which stands for text.
    """

    auto_class = AutoModelForMaskedLM
    architectures = ("encoder",)

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig) -> None:
        super().__init__(tokenizer, objective)
        if not 0 < objective.mask_rate <= 1:
            raise UsageError(f"objective.mask_rate: got {objective.mask_rate}; it has to lie above 0 and at most at 1")
        self.mask_rate = objective.mask_rate
        self.mask_token_id = _needed(tokenizer.mask_token_id, "mask_token", objective)
        token_ids = set(tokenizer.get_vocab().values())
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.text_tokens = torch.tensor(sorted(token_ids - special))
        self.is_text = torch.zeros(max(token_ids) + 1, dtype=torch.bool)  # [vocabulary]
        self.is_text[self.text_tokens] = True

    def example(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        is_text = self.is_text[tokens]
        chosen = is_text & (torch.rand(len(tokens)) < self.mask_rate)
        if not chosen.any():
            candidates = is_text.nonzero().squeeze(1)
            if len(candidates) == 0:
                raise ValueError("a row of special tokens has none that could be predicted")
            chosen[candidates[torch.randint(len(candidates), ())]] = True
        kind = torch.rand(len(tokens))
        random_tokens = self.text_tokens[torch.randint(len(self.text_tokens), (len(tokens),))]
        inputs = torch.where(chosen & (kind < 0.8), self.mask_token_id, tokens)
        inputs = torch.where(chosen & (kind >= 0.9), random_tokens, inputs)
        return inputs, torch.where(chosen, tokens, IGNORED)


def _needed(token_id: int | None, kind: str, objective: ObjectiveConfig) -> int:
    if token_id is None:
        raise UsageError(
            f"objective.name: {objective.name!r} needs a {kind}, which the tokenizer lacks; add one with "
            f'tokenizer.add_special_tokens({{"{kind}": ...}}), save it and give its folder as tokenizer.path'
        )
    return token_id
