"""Random numbers that depend on where a run is in its data, and on nothing else.

Masks and dropout are drawn from generators that are seeded anew from (seed, purpose, position), position being that of
the batch in the data. So there is no generator state to store: a resumed run, another number of processes and another
split of the same global batch draw the same numbers, and no two batches, hence no two processes, draw alike.
"""

import random
from functools import cache

import numpy as np
import torch

COLLATE, FORWARD, EVALUATION = range(3)  # what the numbers are drawn for


def reseed(*key: int) -> None:
    """Seed Python, NumPy and torch from a key of non-negative integers; near keys give unrelated seeds."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    if _has_device():
        torch.manual_seed(seed)
    else:  # a hundred times quicker than torch.manual_seed, which looks for every kind of device
        torch.default_generator.manual_seed(seed)


@cache
def _has_device() -> bool:
    return torch.accelerator.is_available()
