"""What the tests of data share: some text, and a tokenizer of each algorithm trained on it."""

import random
from typing import get_args, get_type_hints

import pytest
from transformers import PreTrainedTokenizerFast

from attnkit.data import TokenizerConfig, train_tokenizer

ALGORITHMS = get_args(get_type_hints(TokenizerConfig)["algorithm"])
SMALLEST = 262  # special tokens and bytes


def sentences(number: int, *, seed: int = 0) -> list[str]:
    """Sentences of made-up words, with the letters, marks and line ends that text has."""
    generator = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ner", "tas", "vo", "é", "ß", "日", "x_y"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(80)]
    return [
        " ".join(generator.choices(words, k=generator.randint(3, 12))).capitalize() + generator.choice([".", "!\n", ""])
        for _ in range(number)
    ]


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
