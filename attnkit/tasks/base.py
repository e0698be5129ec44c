"""What a task is: how rows become tensors, which head reads them, which figures judge it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnkit.data.sources import DataConfig
from attnkit.registry import Registry

Collator = Callable[[list[dict[str, Any]]], dict[str, Tensor]]


@dataclass(kw_only=True)
class TaskConfig:
    """What a model is fine-tuned for; where its examples come from is said by `data`."""

    name: str = "classification"
    """A name of the registry `attnkit.tasks`."""
    label_column: str = "label"
    """The column that holds what is to be predicted."""
    text_pair_column: str | None = None
    """The column of a second text, for tasks about pairs of texts: the model reads both in one row."""


class Task(ABC):
    """One fine-tuning task: it reads its examples once, when it is made, and refuses what cannot be trained on.

    `train` and `held_out` are the examples, checked, in the order of their source.

    Raises `UsageError` for missing columns, empty rows, and whatever else the task cannot use.
    """

    auto_class: ClassVar[Any]
    """The Auto class of the head, e.g. `AutoModelForSequenceClassification`."""

    guess: ClassVar[str]
    """What the baseline predicts, in a few words, e.g. "majority class"."""

    train: Dataset
    held_out: Dataset

    @abstractmethod
    def __init__(self, task: TaskConfig, *, data: DataConfig) -> None: ...

    @abstractmethod
    def describe(self) -> str:
        """What is predicted, in a few words, e.g. "one of 3 classes"."""

    @abstractmethod
    def texts(self) -> list[str]:
        """All texts of the training examples, for a tokenizer to be trained on."""

    @abstractmethod
    def head_config(self) -> dict[str, Any]:
        """Fields of the model's config that the head needs; they are saved with the model."""

    @abstractmethod
    def encode(self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> Dataset:
        """Examples -> rows of at most `max_length` token ids with their labels, one per example and in their order."""

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Rows -> batch, padded to its longest row; labels that count for nothing are -100."""

    @abstractmethod
    def outcomes(self, rows: list[Any], *, batch: dict[str, Any], output: Any, model: Any) -> list[Any]:
        """What the head says of a batch, and what is true: one item per row, plain numbers that `score` reads."""

    @abstractmethod
    def score(self, outcomes: list[Any]) -> dict[str, float]:
        """The metrics, by name, of the outcomes of all held-out rows in their order."""

    @abstractmethod
    def baseline(self) -> dict[str, float]:
        """The metrics, by name, of a guess that reads no text."""


tasks: Registry[Task] = Registry("task")
