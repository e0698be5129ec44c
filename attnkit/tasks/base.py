"""What a task is: how an example becomes rows of tensors, which head reads them, which metrics judge what it says."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.attention.options import option_problems
from attnkit.errors import Fault, UsageError, nearest, repeated
from attnkit.registry import Registry
from attnkit.tasks.examples import Example, ExamplesConfig
from attnkit.tasks.fields import Field
from attnkit.tasks.metrics import Metric, interval, metrics
from attnkit.tasks.rows import Collator, Padding, Row, predicts

Answer = dict[str, Any]
"""What a model says to one example: `prediction`, perhaps its `probability`, and what else a metric reads."""
WRITTEN = ("gold", "prediction", "probability", "likelihood", "num_best")
"""What files of predictions call the truth and the parts of answers."""


@dataclass(kw_only=True)
class TaskConfig:
    """What a model is fine-tuned for; where its examples come from is said by `data`."""

    name: str = "classification"
    """A name of the registry `attnkit.tasks`."""
    label_column: str = "label"
    """The column that holds what is to be predicted."""
    text_pair_column: str | None = None
    """The column of a second text, for tasks about pairs of texts: the model reads both in one row."""
    label_names: list[str] | None = None
    """Names of labels that are stored as whole numbers from 0; without it the numbers are their names."""
    metrics: list[str] | None = None
    """What is measured, besides the loss; without it what is usual for the task."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the task's class, such as `num_beams`; `help(attnkit.tasks[name])` says which."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        empty = "task.label_names: is an empty list; name the labels in the order of their numbers, or leave it out"
        found = [empty] if self.label_names == [] else []
        for name, values in {"label_names": self.label_names, "metrics": self.metrics}.items():
            found += [f"task.{name}: {value!r} is there twice; give it once" for value in repeated(values or [])]
        blank = [name for name in self.label_names or [] if not name.strip()]
        return found + [f"task.label_names: {name!r} is no name; give one" for name in blank]


class Task(ABC):
    """One fine-tuning task. It knows the columns of its examples, and after `learn` or `restore` all that they teach.

    An example is a dictionary by role (`text`, `label`, …), as `fields` read it from its columns; an example whose
    answer is asked for lacks the fields that are answers. Raises `UsageError` for options that cannot be.
    """

    auto_class: ClassVar[Any]
    """The Auto class of the head, e.g. `AutoModelForSequenceClassification`."""
    judged: ClassVar[dict[str, str]]
    """The kinds of answers that the task gives (see `Metric.judges`), each with the key of an `Answer` that has it."""
    usual_metrics: ClassVar[tuple[str, ...]]
    guess: ClassVar[str]
    """What the baseline predicts, in a few words, e.g. "majority class"."""
    has_names: ClassVar[bool] = False
    """Whether `task.label_names` can name its answers."""
    reads_whole: ClassVar[bool] = False
    """Whether the head reads one state of a row: rows are then padded on the `padding_side` of the tokenizer."""
    is_generated: ClassVar[bool] = False
    """Whether predictions are texts that the model writes."""

    def __init__(self, task: TaskConfig, data: ExamplesConfig) -> None:
        self.task, self.data = task, data
        self.metric_names = list(self.usual_metrics if task.metrics is None else task.metrics)

    # ------------------------------------------------------------------------------------------------ examples

    @abstractmethod
    def fields(self) -> dict[str, Field]:
        """Which column is read for each role, and how."""

    def check(self, example: Example) -> Iterator[Fault]:
        """What is wrong with one example as a whole, e.g. a span that lies outside the text."""
        return iter(())

    def question(self, example: Example) -> str:
        """All that is asked in an example, by which it is known again."""
        return json.dumps([example[role] for role, it in self.fields().items() if not it.is_answer])

    def unanswered(self, example: Example) -> Example:
        """An example without its answer, where a column holds both."""
        return example

    def key(self, example: Example) -> str:
        """Examples with equal keys stay on one side when examples are held out."""
        return self.question(example)

    def stratum(self, example: Example) -> str:
        """Of each stratum the same part is held out."""
        return ""

    def texts(self, examples: Sequence[Example]) -> list[str]:
        """All texts of some examples, for a tokenizer to be trained on."""
        return [value for it in examples for role, value in it.items() if role in ("text", "text_pair")]

    def learn(self, train: Sequence[Example]) -> Iterator[str]:
        """Take from the training examples what the task has to know, and yield what makes them useless."""
        return iter(())

    def unknown(self, examples: Sequence[Example]) -> Iterator[tuple[Example, Fault]]:
        """The examples with something that the training examples do not know, and what that is."""
        return iter(())

    def untrained(self, train: Sequence[Example]) -> list[str]:
        """The classes of which no training example is."""
        return []

    def restore(self, config: PreTrainedConfig) -> None:
        """Take what `learn` found out from the config of a model that was saved with it."""
        return

    # --------------------------------------------------------------------------------------------------- model

    def head_config(self) -> dict[str, Any]:
        """Fields of the model's config that the head needs; they are saved with the model."""
        return {}

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Give the tokenizer what the task needs, or raise `UsageError` if it cannot have it."""
        return

    def prepare_model(self, model: PreTrainedModel, train: Sequence[Example]) -> None:
        """Give the model what the task needs, or raise `UsageError` if it cannot have it."""
        return

    @abstractmethod
    def describe(self) -> str:
        """What is predicted, in a few words, e.g. "one of 3 classes"."""

    def code(self) -> str | None:
        """Lines of Python by which transformers asks the model in `folder`; None where it has nothing that does."""
        return None

    # ---------------------------------------------------------------------------------------------------- rows

    @abstractmethod
    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        """Examples -> rows of at most `max_length` token ids, in their order; see `rows.Row`."""

    def notes(self, rows: Sequence[Row], *, sequence_length: int) -> list[str]:
        """What of the examples is not read, in words."""
        cut, idle = sum(row["cut"] for row in rows), sum(not predicts(row) for row in rows)
        limit = f"data.sequence_length: {sequence_length}"
        said = [f"{cut:,} of {len(rows):,} texts are longer than {limit} and were cut"] if cut else []
        if idle:
            said.append(f"{idle:,} of {len(rows):,} rows have nothing left to predict, and no part in the loss")
        return said

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Rows -> batch, padded to its longest row; labels that count for nothing are -100."""
        return Padding(tokenizer)

    @abstractmethod
    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Any]:
        """What the head says of a batch, one item per row: plain numbers and texts that `answers` reads."""

    def answers(self, examples: Sequence[Example], *, rows: Sequence[Row], outcomes: Sequence[Any]) -> list[Answer]:
        """The outcomes of all rows as one answer to each example."""
        return list(outcomes)

    # ------------------------------------------------------------------------------------------------- metrics

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """What is true of an example, in the form of a prediction (or of what a metric compares with one)."""

    def names(self) -> list[str]:
        """The names of the classes, for metrics that need them."""
        return []

    def metrics(self) -> dict[str, tuple[Metric, str]]:
        """The metrics by name, each with the key of the answers that it judges. Raises `UsageError` for unfit ones."""
        chosen, problems = {}, []
        for name in self.metric_names:
            kinds = [kind for kind in self.judged if name in metrics and kind in metrics[name].judges]
            if not kinds:
                fit = [known for known, metric in metrics.items() if set(metric.judges) & self.judged.keys()]
                problems.append(f"task.metrics: no metric {name!r} for task {self.task.name!r}: {nearest(name, fit)}")
                continue
            chosen[name] = (metrics[name](kind=kinds[0], names=self.names()), self.judged[kinds[0]])
        if problems:
            raise UsageError(*problems)
        return chosen

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, float]:
        """The metrics, by name, of the answers to all examples; without those that judge what no answer holds."""
        figures: dict[str, float] = {}
        for metric, key in self.metrics().values():
            if key in answers[0]:
                predictions, references = [answer[key] for answer in answers], list(map(self.gold, examples))
                figures |= metric.compute(predictions=predictions, references=references)
        return figures

    def intervals(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, tuple[float, float]]:
        """The bootstrap interval of each metric, by name; see `metrics.interval`."""
        found = {}
        for name, (metric, key) in self.metrics().items():
            predictions, references = [answer[key] for answer in answers], list(map(self.gold, examples))
            found[name] = interval(metric, np.asarray(metric.statistics(predictions, references), dtype=float))
        return found

    def guesses(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Any]:
        """Predictions that read no text: what most training examples have."""
        ((most_common, _),) = Counter(json.dumps(self.gold(example)) for example in train).most_common(1)
        return [json.loads(most_common)] * len(examples)

    def baseline(
        self, train: Sequence[Example], examples: Sequence[Example], *, likelihoods: Sequence[Answer] = ()
    ) -> dict[str, float]:
        """The metrics, by name, of the guesses, and of `likelihoods` that were found without reading the text."""
        answers: list[Answer] = [{"prediction": guess} for guess in self.guesses(train, examples)]
        for answer, likelihood in zip(answers, likelihoods, strict=False):
            answer["likelihood"] = likelihood
        return self.score(examples, answers)


def pipeline_code(kind: str, *, asks: str, settings: str = "") -> str:
    """Lines of Python that ask a pipeline of transformers something."""
    return f'from transformers import pipeline\n\nask = pipeline("{kind}", folder{settings})\nprint(ask({asks}))'


tasks: Registry[Task] = Registry("task", Task)


def make_task(task: TaskConfig, data: ExamplesConfig) -> Task:
    """The task that a run names. Raises `UsageError` for unknown tasks, options and metrics."""
    task_class = tasks[task.name]
    problems = task.problems()
    for key, value in task.options.items():
        found = option_problems(task_class, key, value, besides=("task", "data"))
        problems += [f"task.options: {problem}" for problem in found]
    if problems:
        raise UsageError(*problems)
    made = task_class(task, data, **task.options)
    made.metrics()
    settings_of: dict[str, list[str]] = {}
    for it in made.fields().values():
        settings_of.setdefault(it.column, []).append(it.setting)
    if task.label_names is not None and not made.has_names:
        raise UsageError(f"task.label_names: task {task.name!r} has no names of labels: leave it out")
    if task.text_pair_column is not None and not any("task.text_pair_column" in it for it in settings_of.values()):
        raise UsageError(f"task.text_pair_column: task {task.name!r} reads no second text here: leave it out")
    for name in data.kept_columns:
        settings_of.setdefault(name, ["data.kept_columns"])
    for name in WRITTEN:
        if name in settings_of and name != task.label_column:
            setting = " and ".join(settings_of[name])
            raise UsageError(
                f"{setting}: files of predictions call something else {name!r}: give the column another name"
            )
    for name, settings in settings_of.items():
        if len(settings) > 1:
            raise UsageError(f"{' and '.join(settings)} name the same column, {name!r}; give each its own")
    return made
