"""What the tests of data share: some text, and a tokenizer of each algorithm trained on it."""

import pytest
from invented_text import ALGORITHMS, sentences
from transformers import PreTrainedTokenizerFast

from attnkit.data import TokenizerConfig, train_tokenizer


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sentences(200)


@pytest.fixture(scope="session")
def tokenizers(texts: list[str]) -> dict[str, PreTrainedTokenizerFast]:
    sizes = {"bpe": 300, "unigram": 300, "wordpiece": 100}
    return {
        algorithm: train_tokenizer(texts, TokenizerConfig(algorithm=algorithm, vocab_size=sizes[algorithm]))
        for algorithm in ALGORITHMS
    }


@pytest.fixture(scope="session")
def tokenizer(tokenizers: dict[str, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    return tokenizers["bpe"]
