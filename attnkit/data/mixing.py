"""Mixing: rows of several sources become one dataset in which each has its share."""

from typing import TYPE_CHECKING

import numpy as np

from attnkit.errors import UsageError

if TYPE_CHECKING:
    import datasets

MOST_ROWS = 10**8  # of a mix that repeats rows: their numbers take 0.8 GB


def repeats(num_rows: list[int], weights: list[float]) -> list[int]:
    """How many rows of each source there are in a mix, repetitions counted.

        k_i = round(w_i / Σ w · K),    K = max_i n_i · Σ w / w_i

    with n_i rows and weight w_i: the least mix with these shares in which every row is. Raises `UsageError` for one
    that is too large to be drawn.
    """
    total = max(number / weight for number, weight in zip(num_rows, weights, strict=True))
    wanted = [max(number, round(weight * total)) for number, weight in zip(num_rows, weights, strict=True)]
    if sum(wanted) > max(MOST_ROWS, 2 * sum(num_rows)):
        weight = min(range(len(weights)), key=lambda number: weights[number] / num_rows[number])
        raise UsageError(
            f"data.source: a weight of {weights[weight]:g} for {num_rows[weight]:,} rows asks for {sum(wanted):.3g} "
            "rows of all sources: raise it, lower the others, or set data.streaming to true"
        )
    return wanted


def mix(sources: "list[datasets.Dataset]", weights: list[float] | None, *, seed: int) -> "datasets.Dataset":
    """The rows of all sources, each once; with weights, so often that each source has its share.

    Which rows of a source are there once more than its others is drawn with `seed`.
    """
    import datasets  # here, as text is prepared without it

    rows = datasets.concatenate_datasets(sources)
    if weights is None:
        return rows
    indices, start = [], 0
    numbers = [len(source) for source in sources]
    for number, wanted in zip(numbers, repeats(numbers, weights), strict=True):
        whole, rest = divmod(wanted, number)
        extra = np.random.default_rng([seed, start]).permutation(number)[:rest]
        indices.append(start + np.concatenate([np.tile(np.arange(number), whole), np.sort(extra)]))
        start += number
    return rows.select(np.concatenate(indices))
