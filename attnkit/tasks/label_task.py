"""Tasks whose answers are names from a list that the training examples give."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedConfig

from attnkit.errors import Fault
from attnkit.tasks.base import Task
from attnkit.tasks.examples import Example
from attnkit.tasks.fields import shown


class LabelTask(Task):  # abstract
    """A task with classes, saved in the model's config as `id2label` and `label2id`.

    The classes are `task.label_names`, or without it the labels of the training examples, in alphabetical order (whole
    numbers in that of their value).
    """

    classes: list[str]
    num_classes_needed = 2
    has_names = True

    @abstractmethod
    def labels_of(self, example: Example) -> Sequence[str]:
        """The labels of an example, in any order."""

    def stratum(self, example: Example) -> str:
        return "\n".join(sorted(set(self.labels_of(example))))

    def learn(self, train: Sequence[Example]) -> Iterator[str]:
        met = {label for example in train for label in self.labels_of(example)}
        self.classes = list(self.task.label_names or class_names(met))
        if len(met) < self.num_classes_needed:
            column = self.task.label_column
            found = f"every row of {column!r} is {min(met)!r}" if met else f"no row of {column!r} has a label"
            number = {1: "a label", 2: "two classes or more"}[self.num_classes_needed]
            yield f"task.label_column: {found}; a classifier needs examples of {number}"

    def unknown(self, examples: Sequence[Example]) -> Iterator[tuple[Example, Fault]]:
        known, before = set(self.classes), f"column {self.task.label_column!r} holds "
        remedy = ", which no training row has; correct it, or train on rows that have it"
        for example in examples:
            for label in dict.fromkeys(self.labels_of(example)):
                if label not in known:
                    yield example, Fault(before, found=shown(label), after=remedy)

    def untrained(self, train: Sequence[Example]) -> list[str]:
        met = {label for example in train for label in self.labels_of(example)}
        return [name for name in self.classes if name not in met]

    def restore(self, config: PreTrainedConfig) -> None:
        names = config.id2label or {}
        self.classes = [str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0]))]

    def head_config(self) -> dict[str, Any]:
        return {"id2label": dict(enumerate(self.classes)), "label2id": self.numbers()}

    def names(self) -> list[str]:
        # Before anything is learnt, metrics are made to see whether they can be.
        return self.classes if "classes" in vars(self) else []

    def numbers(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}


def class_names(labels: set[str]) -> list[str]:
    """The labels in alphabetical order, or in that of their values where all are whole numbers."""
    if all(map(str.isdecimal, labels)):
        return sorted(labels, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name))
    return sorted(labels)
