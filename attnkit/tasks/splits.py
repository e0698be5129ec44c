"""Holding out part of labelled rows."""

import random
from collections import defaultdict
from collections.abc import Sequence


def stratified_split(
    texts: Sequence[str], labels: Sequence[str], *, fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Row numbers that train, and row numbers that are held out: the same `fraction` of each label, no text in both.

    Rows of one text stay together. Of every label at least one text trains and, if it has two or more, at least one is
    held out. A text that carries two labels trains: no answer to it could be called right.
    """
    rows_of_text: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        rows_of_text[text].append(row)
    texts_of_label: dict[str, list[str]] = defaultdict(list)
    for text, rows in rows_of_text.items():
        if len({labels[row] for row in rows}) == 1:
            texts_of_label[labels[rows[0]]].append(text)

    generator = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(texts_of_label):
        candidates = texts_of_label[label]
        generator.shuffle(candidates)
        wanted = min(max(1, round(fraction * len(candidates))), len(candidates) - 1)
        held_out.update(row for text in candidates[:wanted] for row in rows_of_text[text])
    return [row for row in range(len(texts)) if row not in held_out], sorted(held_out)
