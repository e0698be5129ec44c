"""Held-out loss, and metrics over all held-out rows, each row counted exactly once."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import nn

from attnkit.errors import UsageError
from attnkit.models.language import loss_terms, minimising
from attnkit.models.loss import IGNORED, TokenLoss
from attnkit.training.launch import num_readers, sum_over_readers
from attnkit.training.order import take
from attnkit.training.randomness import EVALUATION, reseed

TERMS = ("labels", "next_sentence_label")


class Outcomes(Protocol):
    """What the model says of a batch, as one item per row of it, e.g. (prediction, label); items must be picklable."""

    def __call__(self, rows: list[Any], *, batch: dict[str, Any], output: Any, model: Any) -> list[Any]:
        """`batch` is what `collate` made of the `rows`, and `output` what the bare `model` says to it."""


def count_labels(batch: dict[str, Any]) -> int:
    """The number of predictions in a batch: the terms of the mean that the model returns as `loss`.

    These are the `labels` that are not -100, all of them where they are no whole numbers, and of a span its beginning.
    """
    labels = batch.get("labels", batch.get("start_positions"))
    if labels is None:
        return 0
    return labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())


def count_terms(batch: dict[str, Any]) -> dict[str, int]:
    """The number of predictions behind each term of the loss, by the names that `loss_terms` has for them."""
    sentences = batch.get("next_sentence_label")
    return {"labels": count_labels(batch)} | ({} if sentences is None else {"next_sentence_label": sentences.numel()})


def evaluate_loss(
    model: nn.Module,
    rows: Sequence[Any],
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    batch_size: int,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Return `loss` = Σ nll / Σ labels over all rows and processes, of each of its terms. Equal on every process.

    Neither `batch_size` nor the number of processes changes the result (where `collate` draws random masks, the batch
    size does, as it decides which rows are drawn for together). `model` is the bare model; its training mode is left as
    it was. Raises `UsageError` if there is no row, or no label in them.
    """
    loss, labels, _ = read_rows(model, rows, collate=collate, batch_size=batch_size, accelerator=accelerator)
    if labels == 0:
        raise UsageError("no held-out row has a label to predict (every label is -100)")
    return {"loss": loss / labels}


def read_rows(
    model: nn.Module,
    rows: Sequence[Any],
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    batch_size: int,
    accelerator: Accelerator,
    outcomes: Outcomes | None = None,
) -> tuple[float, int, list[Any]]:
    """Σ nll and Σ labels over all rows and processes, and the outcomes of the rows in their order, each row once.

    Of a loss with several terms the first is their sum, each divided by its own labels, times those that are counted.
    Rows without labels are read for their outcomes alone. Equal on every process; raises as `evaluate_loss` does.
    """
    if len(rows) == 0:
        raise UsageError("there is no held-out row to evaluate on: give more text or examples to hold out")
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    said = []
    num_batches, readers = math.ceil(len(rows) / batch_size), num_readers(accelerator)
    # Outcomes are read from logits; the loss alone is had without them.
    with evaluating(model), minimising(TokenLoss() if outcomes is None else None, model):
        # Every process runs the same number of forward passes, as sharded models gather their weights in each.
        for turn in range(math.ceil(num_batches / readers)):
            index = turn * readers + accelerator.process_index % readers
            is_own = index < num_batches
            start = index * batch_size if is_own else 0
            reseed(EVALUATION, start)
            taken = take(rows, list(range(start, min(start + batch_size, len(rows)))))
            batch = send_to_device(collate(taken), accelerator.device)
            output = model(**batch)
            items = [] if outcomes is None else outcomes(taken, batch=batch, output=output, model=model)
            if is_own:
                said.append((index, items))
                counted = count_terms(batch)
                counts.update(counted)
                if counted["labels"]:
                    sums.update({name: float(term) * counted[name] for name, term in loss_terms(output).items()})
    totals = sum_over_readers(accelerator, [it[name] for it in (sums, counts) for name in TERMS])
    terms, labels = totals[: len(TERMS)], totals[len(TERMS) :]
    total_labels = labels[0]
    total_loss = sum(term * total_labels / count for term, count in zip(terms, labels, strict=True) if count)
    ordered = sorted(gather_object(said if accelerator.process_index < readers else []), key=lambda pair: pair[0])
    return total_loss, int(total_labels), [item for _, items in ordered for item in items]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while, without gradients."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
