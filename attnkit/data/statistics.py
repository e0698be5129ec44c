"""Figures of the data itself, which a trained model is held against."""

import math
from typing import TYPE_CHECKING

import numpy as np

from attnkit.errors import UsageError

if TYPE_CHECKING:
    import datasets


def unigram_loss(train_rows: "datasets.Dataset", held_out_rows: "datasets.Dataset", *, vocab_size: int) -> float:
    """The loss of a model that knows how often tokens occur and nothing else, in nats per token.

        −(1/M) · Σ_t held_out(t) · log((train(t) + 1) / (N + V))

    with the counts of each token t, N and M tokens in the rows and a vocabulary of V: one is added to each count, so
    that a token that training never saw has a finite loss (Laplace).

    Raises `UsageError` for rows without tokens, and for token ids that the vocabulary does not have.
    """
    train, held_out = (_counts(rows, vocab_size) for rows in (train_rows, held_out_rows))
    log_probability = np.log(train + 1) - math.log(train.sum() + vocab_size)
    return float(-(held_out * log_probability).sum() / held_out.sum())


def _counts(rows: "datasets.Dataset", vocab_size: int) -> np.ndarray:
    """How often each token id occurs in `input_ids`, [vocab_size]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for batch in rows.with_format("arrow").iter(batch_size=4096):
        tokens = batch["input_ids"].combine_chunks().flatten().to_numpy()
        if len(tokens) and tokens.max() >= vocab_size:
            raise UsageError(
                f"token id {tokens.max()} does not fit a vocabulary of {vocab_size}; give both one tokenizer"
            )
        counts += np.bincount(tokens, minlength=vocab_size)
    if not counts.any():
        raise UsageError("the rows hold no tokens; give more text")
    return counts
