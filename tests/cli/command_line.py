"""Text to run on, and what it is to call the command line."""

import random
from collections.abc import Callable

WORDS = "the cat dog sees finds a small red house tree and runs away from it"

Cli = Callable[..., tuple[int, list[str], list[str]]]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(5, 15))).capitalize() + "." for _ in range(count)]
