"""Something about a text, or about a pair of texts: one class, several labels, or a number."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.errors import UsageError
from attnkit.tasks.base import Answer, Task, TaskConfig, pipeline_code, tasks
from attnkit.tasks.examples import Example, ExamplesConfig
from attnkit.tasks.fields import Field, label, labels, number, text
from attnkit.tasks.label_task import LabelTask
from attnkit.tasks.rows import Collator, Padding, Row, tokenize


class TextTask(Task):  # abstract
    """A task about one text, or a pair of texts that is read in one row."""

    auto_class = AutoModelForSequenceClassification
    reads_whole = True

    def text_fields(self) -> dict[str, Field]:
        """The columns of the texts."""
        fields = {"text": Field(column=self.data.text_column, setting="data.text_column", read=text)}
        if self.task.text_pair_column is not None:
            fields["text_pair"] = Field(column=self.task.text_pair_column, setting="task.text_pair_column", read=text)
        return fields

    def answer_field(self, read: Any) -> Field:
        """The column of the answers."""
        return Field(column=self.task.label_column, setting="task.label_column", read=read, is_answer=True)

    def code(self) -> str:
        return pipeline_code("text-classification", asks=self.asked(), settings=", truncation=True")

    def asked(self) -> str:
        """What a pipeline is given."""
        is_pair = self.task.text_pair_column is not None
        return '{"text": "a text", "text_pair": "another one"}' if is_pair else '"a text"'

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return Padding(tokenizer, side=tokenizer.padding_side)

    def encode_texts(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int
    ) -> list[Row]:
        """The rows without their labels."""
        pairs = [it["text_pair"] for it in examples] if self.task.text_pair_column is not None else None
        return tokenize(tokenizer, [it["text"] for it in examples], pairs, max_length=max_length)


@tasks.register("classification")
@final
class Classification(LabelTask, TextTask):
    """p(class | text) = softmax(logits)[class], trained by cross-entropy, judged by accuracy and macro F1.

    `balanced` weighs the training loss of each example by n / (classes · n of its class), so that every class has the
    same say.

    Raises `UsageError` for fewer than two classes, and for held-out labels that no training example has.
    """

    judged = {"label": "prediction"}
    usual_metrics = ("accuracy", "macro_f1")
    guess = "majority class"

    def __init__(self, task: TaskConfig, data: ExamplesConfig, *, balanced: bool = False) -> None:
        super().__init__(task, data)
        self.balanced = balanced

    def fields(self) -> dict[str, Field]:
        return {**self.text_fields(), "label": self.answer_field(label(self.task.label_names))}

    def labels_of(self, example: Example) -> list[str]:
        return [example["label"]]

    def describe(self) -> str:
        return f"one of {len(self.classes)} classes"

    def head_config(self) -> dict[str, Any]:
        return {**super().head_config(), "problem_type": "single_label_classification"}

    def prepare_model(self, model: PreTrainedModel, train: Sequence[Example]) -> None:
        if not self.balanced or not train:
            return
        counts = Counter(example["label"] for example in train)
        weights = torch.tensor([len(train) / (len(counts) * max(counts[name], 1)) for name in self.classes])

        def weigh(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> Any:
            if module.training:
                logits, true = output.logits.float(), inputs["labels"]
                weighed = F.cross_entropy(logits, true, weight=weights.to(logits.device), reduction="none")
                output.loss = weighed.mean()
            return output

        model.register_forward_hook(weigh, with_kwargs=True)

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        rows, numbers = self.encode_texts(examples, tokenizer, max_length=max_length), self.numbers()
        for row, example in zip(rows, examples, strict=True):
            if "label" in example:
                row["labels"] = numbers[example["label"]]
        return rows

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        probabilities, numbers = output.logits.float().softmax(dim=-1).max(dim=-1)
        pairs = zip(numbers.tolist(), probabilities.tolist(), strict=True)
        return [{"prediction": self.classes[number], "probability": probability} for number, probability in pairs]

    def gold(self, example: Example) -> str:
        return str(example["label"])


@tasks.register("multi_label")
@final
class MultiLabel(LabelTask, TextTask):
    """p(label | text) = sigmoid(logit of the label), each for itself, trained by binary cross-entropy.

    The labels of a text are a list, or a text with `separator` between them; there may be none. Predicted are those
    whose probability is more than `threshold`. Judged by micro and macro F1, and by the part of the texts whose labels
    are all right.
    """

    judged = {"labels": "prediction"}
    usual_metrics = ("micro_f1", "macro_f1", "accuracy")
    guess = "the commonest set"
    num_classes_needed = 1

    def __init__(self, task: TaskConfig, data: ExamplesConfig, *, separator: str = ",", threshold: float = 0.5) -> None:
        super().__init__(task, data)
        if not separator:
            raise UsageError("task.options.separator is empty: give what stands between two labels")
        if not 0 < threshold < 1:
            raise UsageError(f"task.options.threshold must lie between 0 and 1, not {threshold}")
        self.separator, self.threshold = separator, threshold

    def fields(self) -> dict[str, Field]:
        read = labels(self.task.label_names, separator=self.separator)
        return {**self.text_fields(), "labels": self.answer_field(read)}

    def labels_of(self, example: Example) -> list[str]:
        return list(example["labels"])

    def describe(self) -> str:
        return f"any of {len(self.classes)} labels"

    def head_config(self) -> dict[str, Any]:
        return {**super().head_config(), "problem_type": "multi_label_classification"}

    def code(self) -> str:
        # All labels with their probabilities: by default a pipeline says the likeliest alone.
        return pipeline_code("text-classification", asks=self.asked(), settings=", truncation=True, top_k=None")

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        rows = self.encode_texts(examples, tokenizer, max_length=max_length)
        for row, example in zip(rows, examples, strict=True):
            if "labels" in example:
                row["labels"] = [float(name in example["labels"]) for name in self.classes]
        return rows

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        answers = []
        for probabilities in output.logits.float().sigmoid().tolist():
            by_name = dict(zip(self.classes, probabilities, strict=True))
            chosen = sorted(name for name, probability in by_name.items() if probability > self.threshold)
            answers.append({"prediction": chosen, "probability": by_name})
        return answers

    def gold(self, example: Example) -> list[str]:
        return list(example["labels"])


@tasks.register("regression")
@final
class Regression(TextTask):
    """A number from a text: the one logit, trained by the mean of (logit − number)², judged by correlations."""

    judged = {"number": "prediction"}
    usual_metrics = ("pearson", "spearman")
    guess = "the mean"

    def fields(self) -> dict[str, Field]:
        return {**self.text_fields(), "label": self.answer_field(number)}

    def describe(self) -> str:
        return "a number"

    def head_config(self) -> dict[str, Any]:
        column = self.task.label_column  # by which a pipeline calls the number
        return {"id2label": {0: column}, "label2id": {column: 0}, "problem_type": "regression"}

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        rows = self.encode_texts(examples, tokenizer, max_length=max_length)
        for row, example in zip(rows, examples, strict=True):
            if "label" in example:
                row["labels"] = example["label"]
        return rows

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        return [{"prediction": value} for value in output.logits.float().squeeze(-1).tolist()]

    def gold(self, example: Example) -> float:
        return float(example["label"])

    def guesses(self, train: Sequence[Example], examples: Sequence[Example]) -> list[float]:
        return [sum(map(self.gold, train)) / len(train)] * len(examples)
