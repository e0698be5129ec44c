"""One class per text, or per pair of texts."""

from collections import Counter
from typing import Any, final

from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from attnkit.data.sources import DataConfig
from attnkit.errors import UsageError
from attnkit.tasks.base import Collator, Task, TaskConfig, tasks
from attnkit.tasks.examples import Column, read_examples
from attnkit.tasks.metrics import Accuracy, MacroF1


@tasks.register("classification")
@final
class Classification(Task):
    """p(class | text) = softmax(logits)[class], trained by cross-entropy, judged by accuracy and macro F1.

    The classes are the labels of the training examples, in alphabetical order (whole numbers in that of their value).
    They are saved in the model's config as `id2label` and `label2id`.

    Raises `UsageError` for fewer than two classes, and for held-out labels that no training example has.
    """

    auto_class = AutoModelForSequenceClassification
    guess = "majority class"

    def __init__(self, task: TaskConfig, *, data: DataConfig) -> None:
        columns = {
            "text": Column(name=data.text_column, setting="data.text_column"),
            "label": Column(name=task.label_column, setting="task.label_column"),
        }
        if task.text_pair_column is not None:
            columns["text_pair"] = Column(name=task.text_pair_column, setting="task.text_pair_column")
        self.train, self.held_out = read_examples(data, columns=columns)
        self.classes = class_names(self.train["label"][:])
        if len(self.classes) < 2:
            raise UsageError(
                f"task.label_column: every row of {task.label_column!r} is {self.classes[0]!r}; "
                "a classifier needs examples of two classes or more"
            )
        unseen = sorted(set(self.held_out["label"][:]) - set(self.classes))
        if unseen:
            raise UsageError(
                f"data.held_out_source: no training row has these labels of the held-out rows: "
                f"{', '.join(map(repr, unseen))}"
            )

    def describe(self) -> str:
        return f"one of {len(self.classes)} classes"

    def texts(self) -> list[str]:
        return [text for role in self.train.column_names if role != "label" for text in self.train[role][:]]

    def head_config(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self.classes)),
            "label2id": {name: number for number, name in enumerate(self.classes)},
            "problem_type": "single_label_classification",
        }

    def encode(self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> Dataset:
        pairs = examples["text_pair"][:] if "text_pair" in examples.column_names else None
        encoded = tokenizer(examples["text"][:], pairs, truncation=True, max_length=max_length)
        return Dataset.from_dict({**encoded, "labels": self.numbers(examples)})

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return DataCollatorWithPadding(tokenizer)

    def outcomes(self, rows: list[Any], *, batch: dict[str, Any], output: Any, model: Any) -> list[tuple[int, int]]:
        return list(zip(output.logits.argmax(dim=-1).tolist(), batch["labels"].tolist(), strict=True))

    def score(self, outcomes: list[tuple[int, int]]) -> dict[str, float]:
        predictions, labels = map(list, zip(*outcomes, strict=True))
        metrics: dict[str, float] = {}
        for metric in (Accuracy(), MacroF1()):
            metrics |= metric.compute(predictions=predictions, references=labels)
        return metrics

    def baseline(self) -> dict[str, float]:
        """Every held-out example is taken for the class that most training examples have."""
        ((majority, _),) = Counter(self.numbers(self.train)).most_common(1)
        return self.score([(majority, label) for label in self.numbers(self.held_out)])

    def numbers(self, examples: Dataset) -> list[int]:
        """The class of each example as a number."""
        number = {name: index for index, name in enumerate(self.classes)}
        return [number[label] for label in examples["label"][:]]


def class_names(labels: list[str]) -> list[str]:
    """The distinct labels in alphabetical order, or in that of their values where all are whole numbers."""
    names = set(labels)
    return sorted(names, key=lambda name: (int(name), name)) if all(map(str.isdecimal, names)) else sorted(names)
