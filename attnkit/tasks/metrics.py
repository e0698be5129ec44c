"""Figures of fine-tuned models, as `evaluate.Metric`s that need no hub, each with a bootstrap interval.

A metric is a function of sums over rows: every row has a few numbers, its statistics, and the figure follows from the
sums of these. So the figure of any resample of the rows is one product of matrices away, and no two definitions of one
metric, for the figure and for its interval, can differ. The rows of a corpus metric such as BLEU are its sentences.

Shapes: N rows, K statistics, R resamples.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from attnkit.errors import UsageError
from attnkit.registry import C, Registry

TEXT, NUMBER, COUNT = datasets.Value("string"), datasets.Value("float64"), datasets.Value("int64")
LIKELIHOOD = {"nats": NUMBER, "tokens": COUNT, "correct": COUNT}
# What predictions of each kind of answer are, and what they are compared with.
FEATURES: dict[str, tuple[Any, Any]] = {
    "label": (TEXT, TEXT),
    "place": (TEXT, TEXT),
    "labels": (datasets.List(TEXT), datasets.List(TEXT)),
    "tags": (datasets.List(TEXT), datasets.List(TEXT)),
    "number": (NUMBER, NUMBER),
    "span": (TEXT, datasets.List(TEXT)),
    "text": (TEXT, TEXT),
    "likelihood": (LIKELIHOOD, TEXT),
}


class Metric(evaluate.Metric):  # abstract
    """One figure. `kind` is that of the predictions (see `judges`), `names` are the classes where there are some."""

    key: ClassVar[str]
    """Its name in the registry and in what it returns."""
    judges: ClassVar[tuple[str, ...]]
    """The kinds of answers that it judges, of `FEATURES`."""
    mode: ClassVar[str] = "max"
    """Whether a higher or a lower figure is better."""

    def __init__(self, *, kind: str | None = None, names: Sequence[str] = ()) -> None:
        self.kind = kind or self.judges[0]
        self.names = list(names)
        # In memory: rows come from all processes already, so nothing has to pass through files between them.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        predictions, references = FEATURES[self.kind]
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions and references, one of each per row",
            features=datasets.Features({"predictions": predictions, "references": references}),
        )

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        statistics = np.asarray(self.statistics(predictions, references), dtype=float)
        return {self.key: float(self.figure(statistics.sum(axis=0)))}

    @abstractmethod
    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        """[N, K], N being the rows that count: a resample of rows that do not would have no figure."""

    @abstractmethod
    def figure(self, sums: np.ndarray) -> np.ndarray:
        """[..., K] -> [...]"""


metrics: Registry[Metric] = Registry("metric", Metric)


def named(key: str) -> Callable[[C], C]:
    """Register a metric under the name that its figure has."""

    def add(metric: C) -> C:
        metric.key = key  # type: ignore[attr-defined]
        return metrics.register(key)(metric)

    return add


class MeanMetric(Metric):  # abstract
    """The mean of a score of each row."""

    @abstractmethod
    def scores(self, predictions: Sequence[Any], references: Sequence[Any]) -> Sequence[float]:
        """[N]"""

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        scores = self.scores(predictions, references)
        return np.stack([np.asarray(scores, dtype=float), np.ones(len(scores))], axis=1)

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., 1]


def interval(
    metric: Metric, statistics: np.ndarray, *, num_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a figure (Efron 1979), from its statistics [N, K].

    Rows are drawn N at a time with replacement. Rows with equal statistics are told apart by nobody, so a resample is
    the number of times that each distinct row of statistics was drawn.
    """
    distinct, inverse = np.unique(statistics, axis=0, return_inverse=True)
    inverse, num_rows = inverse.reshape(-1), len(statistics)
    generator = np.random.default_rng(seed)
    figures = []
    at_once = max(1, 2_000_000 // num_rows)  # bounds the memory
    for start in range(0, num_resamples, at_once):
        num = min(at_once, num_resamples - start)
        drawn = inverse[generator.integers(num_rows, size=(num, num_rows))]
        offsets = np.arange(num)[:, None] * len(distinct)
        counts = np.bincount((drawn + offsets).ravel(), minlength=num * len(distinct)).reshape(num, len(distinct))
        figures.append(metric.figure(counts @ distinct))
    low, high = np.quantile(np.concatenate(figures), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def library(name: str) -> ModuleType:
    """A library that only some metrics need. Raises `UsageError` that names the extra if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"task.metrics: a metric of this run needs the package {name!r}; install the extra: "
            "pip install 'attnkit[metrics]'"
        ) from error
