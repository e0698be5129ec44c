"""What all objectives share: the settings, the padding of rows to a batch, and the mask between documents.

Shapes: B rows of a batch, N tokens of its longest row.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from attnkit.data.packing import Packing, packings
from attnkit.data.rows import end_of_document
from attnkit.data.sources import PretrainDataConfig
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
    """`masked`, `next_sentence`, `permuted`, `denoising`: the part of the tokens that is predicted."""
    mask_unit: Literal["token", "word", "span"] = "token"
    """`masked`, `next_sentence`: what is chosen as a whole: a `token`, a `word` (Devlin 2019's whole word masking), or
    a `span` of `span_length` tokens in the mean (Joshi 2020)."""
    mask_token_rate: float = 0.8
    """`masked`, `next_sentence`: the part of the chosen tokens that becomes the mask token."""
    random_token_rate: float = 0.1
    """`masked`, `next_sentence`: the part of the chosen tokens that becomes a random token; the others stay."""
    span_length: float = 3.0
    """Tokens of a span in the mean, where spans are chosen."""
    target_column: str = "target"
    """`sequence_to_sequence`: the column of the text to write; `data.text_column` is that of the text to read."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line for each."""
        rules = {
            f"mask_rate: got {self.mask_rate}; it has to lie above 0 and at most at 1": 0 < self.mask_rate <= 1,
            f"mask_token_rate: got {self.mask_token_rate}; it has to be 0 or more": self.mask_token_rate >= 0,
            f"random_token_rate: got {self.random_token_rate}; it has to be 0 or more": self.random_token_rate >= 0,
            f"mask_token_rate: got {self.mask_token_rate}; with objective.random_token_rate {self.random_token_rate} "
            "it has to be at most 1": self.mask_token_rate + self.random_token_rate <= 1 + 1e-9,
            f"span_length: got {self.span_length}; it has to be 1 or more": self.span_length >= 1,
        }
        return [f"objective.{problem}" for problem, holds in rules.items() if not holds]


class Objective(ABC):
    """Makes a batch from rows: it is the collator of a pretraining run.

    A label is set where, and only where, a token is predicted, so `(labels != IGNORED).sum()` is the number of terms in
    the loss; every row has at least one. Rows are padded on the right to the longest, and only if one is shorter there
    is an attention mask. With `data.document_mask` there are position ids, which start at 0 with each document and
    so tell the model to keep documents apart. What is random is drawn from torch's generator.

    Raises `UsageError` if the tokenizer lacks a token that the objective needs, or a setting is out of range.
    """

    auto_class: ClassVar[Any]
    """The class that builds and loads the models that can be trained for it."""
    architectures: ClassVar[tuple[str, ...]]
    """The values of `model.architecture` that can be trained for it."""
    keeps_rows: ClassVar[bool] = True
    """Whether the model reads rows as they were packed, so that `data.document_mask` has a meaning."""
    only_tokens: ClassVar[bool] = True
    """Whether the loss is a mean over tokens, and its exponential a perplexity."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig, *, data: PretrainDataConfig
    ) -> None:
        problems = objective.problems() + data.problems()
        if problems:
            raise UsageError(*problems)
        if data.document_mask and not self.keeps_rows:
            raise UsageError(
                f"data.document_mask: objective.name {objective.name!r} keeps no row as it was packed, so there is "
                f"nothing to mask; set it to false, and data.packing to one_document"
            )
        self.pad_token_id = needed(tokenizer.pad_token_id, "pad_token", objective)
        self.end = end_of_document(tokenizer)
        self.data = data

    @classmethod
    def extra_tokens(cls, objective: ObjectiveConfig, *, data: PretrainDataConfig) -> list[str]:
        """Special tokens that a tokenizer trained for this objective has besides those that every tokenizer has."""
        return []

    @classmethod
    def target_column(cls, objective: ObjectiveConfig) -> str | None:
        """The column of a second text in each document, if there is one."""
        return None

    def packing(self) -> Packing:
        """What makes rows of documents."""
        return packings[self.data.packing](row_length=self.data.sequence_length)

    @final
    def check_architecture(self, architecture: str, *, name: str) -> None:
        """Raise `UsageError` if a model of that architecture cannot be trained for this objective, called `name`."""
        if architecture not in self.architectures:
            fitting = [other for other, objective in objectives.items() if architecture in objective.architectures]
            raise UsageError(
                f"objective.name: {name!r} trains model.architecture {' or '.join(self.architectures)}, not "
                f"{architecture!r}; objectives for {architecture!r}: {', '.join(sorted(fitting)) or 'none'}"
            )

    def check_model(self, config: PreTrainedConfig) -> None:  # noqa: B027 (most need nothing)
        """Raise `UsageError` if a model lacks something, beside its architecture, that the objective needs."""

    @final
    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Rows -> `input_ids` [B, N], `labels`, and what else the model takes."""
        examples = [self.example(row) for row in rows]
        batch = {
            name: pad_sequence(
                [example[name] for example in examples], batch_first=True, padding_value=self.padding(name)
            )
            for name in examples[0]
        }
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        longest = int(lengths.max())
        if int(lengths.min()) < longest:
            batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).to(torch.int64)
        if self.data.document_mask:
            positions = [document_positions(tokens_of(row, "input_ids"), end=self.end) for row in rows]
            batch["position_ids"] = pad_sequence(positions, batch_first=True)
        return self.complete(batch)

    @final
    def padding(self, name: str) -> int:
        """What a short row is filled up with."""
        return {"input_ids": self.pad_token_id, "labels": IGNORED}.get(name, 0)

    @abstractmethod
    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        """One row -> its `input_ids` [N], `labels`, and other inputs of the model, not yet padded."""

    def complete(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A padded batch -> what the model takes."""
        return batch


objectives: Registry[Objective] = Registry("objective", Objective)


def tokens_of(row: dict[str, Any], column: str) -> Tensor:
    """A column of a row as a tensor of its own, [N]."""
    return torch.as_tensor(row[column], dtype=torch.int64)


def document_positions(tokens: Tensor, *, end: int) -> Tensor:
    """The place of each token in its document, counted from 0 at the start of the row and after each `end`; [N]."""
    places = torch.arange(len(tokens))
    starts = torch.zeros_like(places)
    starts[1:] = torch.where(tokens[:-1] == end, places[1:], 0)
    return places - starts.cummax(0).values


def needed(token_id: int | None, kind: str, objective: ObjectiveConfig) -> int:
    """The id of a special token. Raises `UsageError` if the tokenizer has none of that kind."""
    if token_id is None:
        raise UsageError(
            f"objective.name: {objective.name!r} needs a {kind}, which the tokenizer lacks; add one with "
            f'tokenizer.add_special_tokens({{"{kind}": ...}}), save it and give its folder as tokenizer.path'
        )
    return token_id
