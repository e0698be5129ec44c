"""Metrics of labels, numbers and tags: those that scikit-learn, scipy and seqeval mean by these names."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
from scipy.stats import rankdata

from attnkit.tasks.metrics import MeanMetric, Metric, library, named

MISSED = ""
"""The tag of a word that the model never saw, which is no name of a label: it is wrong, whatever the word is."""


@final
@named("accuracy")
class Accuracy(MeanMetric):
    """The part of the rows whose label, whole set of labels or right choice is predicted."""

    judges = ("label", "labels", "place")

    def scores(self, predictions: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [float(said == true) for said, true in zip(predictions, references, strict=True)]


@final
@named("tag_accuracy")
class TagAccuracy(Metric):
    """The part of the words whose tag is predicted; words that were cut off are wrong."""

    judges = ("tags",)

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        pairs = zip(predictions, references, strict=True)
        return [(sum(map(str.__eq__, said, true)), len(true)) for said, true in pairs]

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., 1]


class ClassMetric(Metric):  # abstract
    """A figure of what was said and what is true of each class; statistics: both, three times [N, classes]."""

    judges: ClassVar[tuple[str, ...]] = ("label", "labels")

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        said, true = self.marked(predictions), self.marked(references)
        return np.concatenate([said * true, said, true], axis=1)

    def marked(self, rows: Sequence[Any]) -> np.ndarray:
        """[N, classes], 1 where a row has a class."""
        number = {name: index for index, name in enumerate(self.names)}
        marks = np.zeros((len(rows), len(number)))
        for index, row in enumerate(rows):
            marks[index, [number[name] for name in ([row] if isinstance(row, str) else row)]] = 1
        return marks

    def counts(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows rightly said to have each class, said to have it, and having it: [..., classes] each."""
        right, said, true = np.split(sums, 3, axis=-1)
        return right, said, true


@final
@named("macro_f1")
class MacroF1(ClassMetric):
    """The mean of F1 = 2 · precision · recall / (precision + recall) over the classes that occur or are predicted.

    A class that occurs but is never predicted, or is predicted but never occurs, has F1 = 0.
    """

    def figure(self, sums: np.ndarray) -> np.ndarray:
        right, said, true = self.counts(sums)
        met = (said + true) > 0
        return ratio((ratio(2 * right, said + true) * met).sum(-1), met.sum(-1))


@final
@named("micro_f1")
class MicroF1(ClassMetric):
    """F1 of all decisions about rows and classes together."""

    def figure(self, sums: np.ndarray) -> np.ndarray:
        right, said, true = (counts.sum(-1) for counts in self.counts(sums))
        return ratio(2 * right, said + true)


@final
@named("f1")
class F1(ClassMetric):
    """F1 of the last class, as of `1` among `0` and `1`."""

    judges = ("label",)

    def figure(self, sums: np.ndarray) -> np.ndarray:
        right, said, true = (counts[..., -1] for counts in self.counts(sums))
        return ratio(2 * right, said + true)


@final
@named("matthews_correlation")
class MatthewsCorrelation(ClassMetric):
    """The correlation of predicted and true classes (Gorodkin 2004); 0 where one of both never changes."""

    judges = ("label",)

    def figure(self, sums: np.ndarray) -> np.ndarray:
        right, said, true = self.counts(sums)
        num = true.sum(-1)
        covariance = right.sum(-1) * num - (said * true).sum(-1)
        spread = (num**2 - (said**2).sum(-1)) * (num**2 - (true**2).sum(-1))
        return ratio(covariance, np.sqrt(spread))


@final
@named("pearson")
class Pearson(Metric):
    """cov(x, y) / (sd(x) · sd(y)) of predicted and true numbers; 0 where one of both never changes."""

    judges = ("number",)

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        # Centred, which changes nothing but the rounding.
        x, y = (np.asarray(values, dtype=float) - np.mean(values) for values in (predictions, references))
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)

    def figure(self, sums: np.ndarray) -> np.ndarray:
        num, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        spread = np.clip(num * xx - x * x, 0, None) * np.clip(num * yy - y * y, 0, None)
        return ratio(num * xy - x * y, np.sqrt(spread))


class ErrorMetric(MeanMetric):  # abstract
    """The mean of a function of predicted − true numbers."""

    judges = ("number",)
    mode = "min"

    def scores(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        return self.size(np.asarray(predictions, dtype=float) - np.asarray(references, dtype=float))

    @abstractmethod
    def size(self, errors: np.ndarray) -> np.ndarray:
        """[N] -> [N]"""


@final
@named("mse")
class MeanSquaredError(ErrorMetric):
    """The mean of (predicted − true)², in squared units of the numbers."""

    def size(self, errors: np.ndarray) -> np.ndarray:
        return errors**2


@final
@named("mae")
class MeanAbsoluteError(ErrorMetric):
    """The mean of |predicted − true|, in units of the numbers."""

    def size(self, errors: np.ndarray) -> np.ndarray:
        return np.abs(errors)


@final
@named("spearman")
class Spearman(Metric):
    """The Pearson correlation of the ranks; ties have their mean rank. The interval keeps the ranks of all rows."""

    judges = ("number",)
    figure = Pearson.figure

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        return Pearson.statistics(self, rankdata(predictions), rankdata(references))


class EntityMetric(Metric):  # abstract
    """A figure of entities in BIO tags; one is found where its class, first and last word are (Tjong Kim Sang 2003)."""

    judges = ("tags",)

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        entities = library("seqeval.metrics.sequence_labeling").get_entities
        rows = []
        for said, true in zip(predictions, references, strict=True):
            found = set(entities(["O" if tag == MISSED else tag for tag in said]))
            there = set(entities(list(true)))
            rows.append((len(found & there), len(found), len(there)))
        return rows


@final
@named("entity_precision")
class EntityPrecision(EntityMetric):
    """The part of the predicted entities that are there."""

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return ratio(sums[..., 0], sums[..., 1])


@final
@named("entity_recall")
class EntityRecall(EntityMetric):
    """The part of the entities that are predicted."""

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return ratio(sums[..., 0], sums[..., 2])


@final
@named("entity_f1")
class EntityF1(EntityMetric):
    """F1 of the entities of all classes together."""

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """The quotient, and 0 where there is nothing to divide by."""
    out = np.zeros(np.broadcast(numerator, denominator).shape)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
