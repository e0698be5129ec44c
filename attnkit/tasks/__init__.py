"""Fine-tuning tasks: how a row becomes tensors, which head, which metrics.

`attnkit.tasks` is both this package and the public registry of tasks, so the package answers as the registry does:
`attnkit.tasks["classification"]`, `"classification" in attnkit.tasks`, `list(attnkit.tasks)`, `attnkit.tasks.register`.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from attnkit.registry import C
from attnkit.tasks import metrics_of_labels, metrics_of_texts  # register themselves
from attnkit.tasks.base import Answer, Task, TaskConfig, make_task, tasks
from attnkit.tasks.classification import Classification, MultiLabel, Regression
from attnkit.tasks.examples import Example, ExamplesConfig, load_examples
from attnkit.tasks.instruction import Instruction
from attnkit.tasks.multiple_choice import MultipleChoice
from attnkit.tasks.question_answering import QuestionAnswering
from attnkit.tasks.sequence_to_sequence import SequenceToSequence
from attnkit.tasks.token_classification import TokenClassification

__all__ = [
    "Answer",
    "Classification",
    "Example",
    "ExamplesConfig",
    "Instruction",
    "MultiLabel",
    "MultipleChoice",
    "QuestionAnswering",
    "Regression",
    "SequenceToSequence",
    "Task",
    "TaskConfig",
    "TokenClassification",
    "load_examples",
    "make_task",
    "metrics_of_labels",
    "metrics_of_texts",
    "tasks",
]


class RegistryPackage(ModuleType):
    """A package that can be read like the registry it holds. Importing a submodule of it never hides the registry."""

    def __getitem__(self, name: str) -> type[Task]:
        return tasks[name]

    def __contains__(self, name: object) -> bool:
        return name in tasks

    def __iter__(self) -> Iterator[str]:
        return iter(tasks)

    def __len__(self) -> int:
        return len(tasks)

    def register(self, name: str) -> Callable[[C], C]:
        """Add a task of one's own: `@attnkit.tasks.register("name")`."""
        return tasks.register(name)


sys.modules[__name__].__class__ = RegistryPackage
