"""Text of made-up words, and what tokenizers of it have in common."""

import random
from typing import get_args, get_type_hints

from attnkit.data import TokenizerConfig

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
