"""The metrics are those that scikit-learn and evaluate mean by their names, and need no hub."""

import pytest

from attnkit.tasks.metrics import Accuracy, MacroF1


def test_accuracy_is_the_part_that_is_right() -> None:
    assert Accuracy().compute(predictions=[0, 1, 2, 1], references=[0, 1, 1, 1]) == {"accuracy": 0.75}


def test_macro_f1_is_the_mean_over_classes() -> None:
    # Class 0: precision 1, recall 1/2. Class 1: precision 1/2, recall 1. Class 2: predicted once and never right.
    value = MacroF1().compute(predictions=[0, 1, 1, 2], references=[0, 0, 1, 0])["macro_f1"]
    assert value == pytest.approx((2 * 1 * (1 / 3) / (4 / 3) + 2 / 3 + 0) / 3)


def test_a_class_that_is_never_met_counts_not() -> None:
    assert MacroF1().compute(predictions=[0, 3], references=[0, 3]) == {"macro_f1": 1.0}


def test_rows_may_come_in_batches() -> None:
    metric = Accuracy()
    metric.add_batch(predictions=[0, 1], references=[0, 0])
    metric.add_batch(predictions=[1], references=[1])
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}
