"""Metrics of texts: those that SQuAD, rouge_score and sacrebleu mean by these names, and of how likely a text is."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from attnkit.tasks.metrics import MeanMetric, Metric, library, named

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def plain(text: str) -> str:
    """Lower case, without punctuation, articles and white space that only separates (Rajpurkar 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def overlap(said: str, true: str) -> float:
    """F1 of the words of two plain texts, as bags; 0 where they share none."""
    words, wanted = said.split(), true.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


class SpanMetric(MeanMetric):  # abstract
    """The best agreement with one of the right answers; a question without any is answered by no word."""

    judges = ("span",)
    agreement: ClassVar[Callable[[str, str], float]]

    def scores(self, predictions: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [
            max((float(type(self).agreement(plain(said), plain(true))) for true in answers), default=not plain(said))
            for said, answers in zip(predictions, references, strict=True)
        ]


@final
@named("exact_match")
class ExactMatch(SpanMetric):
    """The part of the questions whose answer is right to the word (Rajpurkar 2016)."""

    agreement = str.__eq__


@final
@named("answer_f1")
class AnswerF1(SpanMetric):
    """The mean over questions of the F1 of the words of the answer (Rajpurkar 2016)."""

    agreement = overlap


class Rouge(MeanMetric):  # abstract
    """The mean F-measure of ROUGE (Lin 2004), stemmed."""

    judges = ("text",)

    def scores(self, predictions: Sequence[Any], references: Sequence[Any]) -> list[float]:
        scorer = library("rouge_score.rouge_scorer").RougeScorer([self.key], use_stemmer=True)
        pairs = zip(predictions, references, strict=True)
        return [scorer.score(target=true, prediction=said)[self.key].fmeasure for said, true in pairs]


@final
@named("rouge1")
class Rouge1(Rouge):
    """ROUGE-1 (Lin 2004): single words."""


@final
@named("rouge2")
class Rouge2(Rouge):
    """ROUGE-2 (Lin 2004): pairs of neighbouring words."""


@final
@named("rougeL")
class RougeL(Rouge):
    """ROUGE-L (Lin 2004): the longest common subsequence."""


@final
@named("rougeLsum")
class RougeLSum(Rouge):
    """ROUGE-L of summaries (Lin 2004): the longest common subsequences of their lines."""


class Sacrebleu(Metric):  # abstract
    """A corpus metric of sacrebleu (Post 2018), from 0 to 100; the statistics of a row are the library's own."""

    judges = ("text",)
    name_there: ClassVar[str]

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        return self.scorer()._extract_corpus_statistics(list(predictions), [list(references)])

    def figure(self, sums: np.ndarray) -> np.ndarray:
        scorer = self.scorer()
        flat = sums.reshape(-1, sums.shape[-1]).astype(int).tolist()
        return np.array([scorer._compute_score_from_stats(row).score for row in flat]).reshape(sums.shape[:-1])

    def scorer(self) -> Any:
        """The library's metric; its public call sums over the corpus at once and would hide the rows."""
        return vars(library("sacrebleu.metrics"))[self.name_there]()


@final
@named("bleu")
class Bleu(Sacrebleu):
    """BLEU (Papineni 2002) with the tokenizer `13a`."""

    name_there = "BLEU"


@final
@named("chrf")
class Chrf(Sacrebleu):
    """chrF2 (Popović 2015): F of character n-grams up to 6."""

    name_there = "CHRF"


class LikelihoodMetric(Metric):  # abstract
    """A figure of how likely the right tokens are: nats, number of tokens, and how many are the likeliest.

    A row that was cut before the first of them has none, and does not count.
    """

    judges = ("likelihood",)

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
        return [(said["nats"], said["tokens"], said["correct"]) for said in predictions if said["tokens"]]


@final
@named("perplexity")
class Perplexity(LikelihoodMetric):
    """exp(Σ nats / Σ tokens)."""

    mode = "min"

    def figure(self, sums: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # of a model that has learnt nothing but wrong things it is infinite
            return np.exp(sums[..., 0] / sums[..., 1])


@final
@named("token_accuracy")
class TokenAccuracy(LikelihoodMetric):
    """The part of the tokens that are the likeliest at their place."""

    def figure(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 2] / sums[..., 1]
