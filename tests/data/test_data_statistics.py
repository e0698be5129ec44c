"""The loss of a model of token frequencies."""

import math
from collections import Counter
from itertools import chain

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data import unigram_loss
from attnkit.errors import UsageError

rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=8)


def dataset(*token_ids: list[int]) -> Dataset:
    return Dataset.from_dict({"input_ids": list(token_ids)})


def test_the_worked_example() -> None:
    # p = (3 + 1, 1 + 1, 0 + 1) / (4 + 3) for the tokens 0, 1, 2
    loss = unigram_loss(dataset([0, 0], [1, 0]), dataset([0, 2]), vocab_size=3)
    assert loss == pytest.approx(-(math.log(4 / 7) + math.log(1 / 7)) / 2)


@given(train=rows, held_out=rows)
def test_it_is_the_cross_entropy_of_smoothed_counts(train: list[list[int]], held_out: list[list[int]]) -> None:
    counts, size = Counter(chain.from_iterable(train)), sum(map(len, train))
    tokens = [*chain.from_iterable(held_out)]
    expected = -sum(math.log((counts[token] + 1) / (size + 12)) for token in tokens) / len(tokens)
    assert unigram_loss(dataset(*train), dataset(*held_out), vocab_size=12) == pytest.approx(expected)


def test_rows_that_were_selected_are_the_ones_that_count() -> None:
    chosen = dataset([1], [2, 2], [3]).select([1])
    assert unigram_loss(chosen, chosen, vocab_size=5) == unigram_loss(dataset([2, 2]), dataset([2, 2]), vocab_size=5)


def test_nothing_and_unknown_tokens_are_refused() -> None:
    some, none = dataset([1, 2]), dataset([1]).select([])
    for train, held_out in ((some, none), (none, some)):
        with pytest.raises(UsageError, match="the rows hold no tokens; give more text"):
            unigram_loss(train, held_out, vocab_size=5)
    with pytest.raises(UsageError, match="token id 2 does not fit a vocabulary of 2"):
        unigram_loss(some, some, vocab_size=2)
