"""The metrics are those that scikit-learn, scipy, seqeval, SQuAD, rouge_score and sacrebleu mean by their names."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import seqeval.metrics
import sklearn.metrics
from rouge_score.rouge_scorer import RougeScorer

from attnkit.errors import UsageError
from attnkit.tasks.metrics import interval, metrics

NAMES = ["a", "b", "c", "d"]
DRAW = np.random.default_rng(0)
LABELS = [[NAMES[number] for number in DRAW.integers(4, size=80)] for _ in range(2)]
SETS = [[[name for name in NAMES if DRAW.random() < 0.4] for _ in range(40)] for _ in range(2)]
NUMBERS = [DRAW.normal(size=50).round(1).tolist() for _ in range(2)]
NUMBERS[1] = [x + y for x, y in zip(*NUMBERS, strict=True)]
TAGS = [[DRAW.choice(["O", "B-x", "I-x", "B-y", "I-y"], size=9).tolist() for _ in range(30)] for _ in range(2)]
WORDS = ["the", "cats", "sat", "on", "a", "mat", "today", "."]
TEXTS = [[" ".join(DRAW.choice(WORDS, size=12)) for _ in range(30)] for _ in range(2)]
SAID = ["the", "The", "cat", "Cat!", "a", "an", "anger", "red-ish", "redish", "(dog)", "dog", "--"]
SPANS = [
    [" ".join(DRAW.choice(SAID, size=DRAW.integers(4))) for _ in range(60)],
    [[" ".join(DRAW.choice(SAID, size=DRAW.integers(1, 4))) for _ in range(DRAW.integers(3))] for _ in range(60)],
]
LIKELIHOODS = [[{"nats": float(n), "tokens": n, "correct": n - 1} for n in range(1, 9)], [""] * 8]
ROWS = {
    "label": LABELS,
    "place": LABELS,
    "labels": SETS,
    "number": NUMBERS,
    "tags": TAGS,
    "text": TEXTS,
    "span": SPANS,
    "likelihood": LIKELIHOODS,
}
KINDS = [(name, kind) for name, metric in metrics.items() for kind in metric.judges]


def compute(name: str, kind: str, rows: list[Any]) -> float:
    metric = metrics[name](kind=kind, names=NAMES)
    return metric.compute(predictions=rows[0], references=rows[1])[name]


def marked(rows: list[list[str]]) -> np.ndarray:
    return np.array([[name in row for name in NAMES] for row in rows])


def rouge(name: str) -> float:
    scorer = RougeScorer([name], use_stemmer=True)
    return float(np.mean([scorer.score(true, said)[name].fmeasure for said, true in zip(*TEXTS, strict=True)]))


def squad(agreement: Callable[[list[str], list[str]], float]) -> float:
    """The mean over questions of the best agreement with an answer, as Rajpurkar 2016, section 6, has it."""

    def words(text: str) -> list[str]:
        letters = "".join(letter for letter in text.lower() if letter.isalnum() or letter.isspace())
        return [word for word in letters.split() if word not in ("a", "an", "the")]

    pairs = [(words(said), [words(true) for true in answers]) for said, answers in zip(*SPANS, strict=True)]
    best = [max((agreement(said, true) for true in answers), default=not said) for said, answers in pairs]
    return float(np.mean(best))


def f1_of_words(said: list[str], true: list[str]) -> float:
    left = list(true)
    found = [left.remove(word) for word in said if word in left]
    if not found:
        return 0.0
    precision, recall = len(found) / len(said), len(found) / len(true)
    return 2 * precision * recall / (precision + recall)


THEIRS = {
    ("accuracy", "label"): lambda: sklearn.metrics.accuracy_score(*LABELS),
    ("accuracy", "place"): lambda: sklearn.metrics.accuracy_score(*LABELS),
    ("accuracy", "labels"): lambda: sklearn.metrics.accuracy_score(*map(marked, SETS)),
    ("macro_f1", "label"): lambda: sklearn.metrics.f1_score(LABELS[1], LABELS[0], average="macro"),
    ("macro_f1", "labels"): lambda: sklearn.metrics.f1_score(marked(SETS[1]), marked(SETS[0]), average="macro"),
    ("micro_f1", "label"): lambda: sklearn.metrics.f1_score(LABELS[1], LABELS[0], average="micro"),
    ("micro_f1", "labels"): lambda: sklearn.metrics.f1_score(marked(SETS[1]), marked(SETS[0]), average="micro"),
    ("f1", "label"): lambda: sklearn.metrics.f1_score(LABELS[1], LABELS[0], average=None, labels=["d"])[0],
    ("matthews_correlation", "label"): lambda: sklearn.metrics.matthews_corrcoef(LABELS[1], LABELS[0]),
    ("pearson", "number"): lambda: scipy.stats.pearsonr(*NUMBERS).statistic,
    ("spearman", "number"): lambda: scipy.stats.spearmanr(*NUMBERS).statistic,
    ("mse", "number"): lambda: sklearn.metrics.mean_squared_error(NUMBERS[1], NUMBERS[0]),
    ("mae", "number"): lambda: sklearn.metrics.mean_absolute_error(NUMBERS[1], NUMBERS[0]),
    ("entity_f1", "tags"): lambda: seqeval.metrics.f1_score(TAGS[1], TAGS[0]),
    ("entity_precision", "tags"): lambda: seqeval.metrics.precision_score(TAGS[1], TAGS[0]),
    ("entity_recall", "tags"): lambda: seqeval.metrics.recall_score(TAGS[1], TAGS[0]),
    ("tag_accuracy", "tags"): lambda: seqeval.metrics.accuracy_score(TAGS[1], TAGS[0]),
    ("exact_match", "span"): lambda: squad(lambda said, true: float(said == true)),
    ("answer_f1", "span"): lambda: squad(f1_of_words),
    ("rouge1", "text"): lambda: rouge("rouge1"),
    ("rouge2", "text"): lambda: rouge("rouge2"),
    ("rougeL", "text"): lambda: rouge("rougeL"),
    ("rougeLsum", "text"): lambda: rouge("rougeLsum"),
    ("bleu", "text"): lambda: sacrebleu.corpus_bleu(TEXTS[0], [TEXTS[1]]).score,
    ("chrf", "text"): lambda: sacrebleu.corpus_chrf(TEXTS[0], [TEXTS[1]]).score,
    ("perplexity", "likelihood"): lambda: math.e,  # a nat per token
    ("token_accuracy", "likelihood"): lambda: 28 / 36,
}


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_figure_is_that_of_the_library(name: str, kind: str) -> None:
    assert compute(name, kind, ROWS[kind]) == pytest.approx(float(THEIRS[name, kind]()), abs=1e-12, rel=1e-12)


def test_a_class_that_is_never_met_counts_not() -> None:
    assert compute("macro_f1", "label", [["a", "d"], ["a", "d"]]) == 1.0
    assert compute("f1", "label", [["d", "d", "a"], ["d", "a", "a"]]) == pytest.approx(2 / 3)


def test_rows_may_come_in_batches() -> None:
    metric = metrics["accuracy"]()
    metric.add_batch(predictions=["a", "b"], references=["a", "a"])
    metric.add_batch(predictions=["b"], references=["b"])
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}


def test_squad_compares_words_without_articles_and_punctuation() -> None:
    rows = [["The red house.", "blue", "big boat"], [["red house"], ["green", "blue"], ["the boat"]]]
    assert compute("exact_match", "span", rows) == pytest.approx(2 / 3)
    assert compute("answer_f1", "span", rows) == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert compute("exact_match", "span", [["x", ""], [[], []]]) == 0.5


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_interval_holds_the_figure_and_repeats(name: str, kind: str) -> None:
    metric = metrics[name](kind=kind, names=NAMES)
    statistics = np.asarray(metric.statistics(*ROWS[kind]), dtype=float)
    low, high = interval(metric, statistics)
    assert (low, high) == interval(metric, statistics)
    assert low <= compute(name, kind, ROWS[kind]) + 1e-9
    assert high >= compute(name, kind, ROWS[kind]) - 1e-9


def test_the_interval_is_that_of_scipy() -> None:
    metric = metrics["accuracy"]()
    statistics = np.asarray(metric.statistics(*LABELS), dtype=float)
    theirs = scipy.stats.bootstrap(
        (statistics[:, 0],), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    # Both are drawn: an end differs by about a row of 80.
    assert interval(metric, statistics, num_resamples=4000) == pytest.approx(tuple(theirs), abs=1.5 / 80)


def test_resamples_are_drawn_in_parts_that_fit_into_memory() -> None:
    metric = metrics["pearson"]()
    statistics = np.asarray(metric.statistics(*NUMBERS), dtype=float)
    repeated = np.tile(statistics, (2500, 1))  # more rows than two million numbers hold twenty times
    low, high = interval(metric, repeated, num_resamples=40)
    assert low < metric.figure(statistics.sum(axis=0)) < high
    assert high - low < 0.02


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics.sequence_labeling", None)
    with pytest.raises(UsageError, match=r"needs the package 'seqeval.*pip install 'attnkit\[metrics\]'"):
        compute("entity_f1", "tags", TAGS)
