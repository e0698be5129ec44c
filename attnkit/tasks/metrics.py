"""Figures of fine-tuned models, as `evaluate.Metric`s that need no hub: the arithmetic is scikit-learn's."""

from typing import Any, final

import datasets
import evaluate
from sklearn.metrics import accuracy_score, f1_score


class ClassMetric(evaluate.Metric):  # abstract
    """A figure of predicted against true classes, both given as numbers: one number per row."""

    def __init__(self) -> None:
        # In memory: rows come from all processes already, so nothing has to pass through files between them.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions and references: class numbers, one per row",
            features=datasets.Features({"predictions": number, "references": number}),
        )


@final
class Accuracy(ClassMetric):
    """The part of the rows whose class is predicted."""

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, Any]:
        return {"accuracy": float(accuracy_score(references, predictions))}


@final
class MacroF1(ClassMetric):
    """The mean of F1 = 2 · precision · recall / (precision + recall) over the classes that occur or are predicted.

    A class that occurs but is never predicted, or is predicted but never occurs, has F1 = 0.
    """

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, Any]:
        return {"macro_f1": float(f1_score(references, predictions, average="macro", zero_division=0))}
