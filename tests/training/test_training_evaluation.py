"""Evaluation: every row once, however the rows are batched."""

import pytest
import torch
from accelerate import Accelerator
from samples import Bigram, Row, causal_model, collate_text, text_rows

from attnkit.errors import UsageError
from attnkit.training.evaluation import evaluate_loss, read_rows


@pytest.mark.parametrize("num_rows", [1, 7, 8])
def test_loss_is_that_of_all_tokens_whatever_the_batch_size(accelerator: Accelerator, num_rows: int) -> None:
    model, rows = causal_model(dropout=0.5), text_rows(num_rows)
    results = [
        evaluate_loss(model, rows, collate=collate_text, batch_size=size, accelerator=accelerator) for size in (1, 2, 7)
    ]
    summed, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            batch = collate_text([row])
            summed += float(model.eval()(**batch).loss) * (len(row["input_ids"]) - 1)
            count += len(row["input_ids"]) - 1
    assert [result["loss"] for result in results] == pytest.approx([summed / count] * 3, rel=1e-6)


def test_outcomes_are_those_of_the_rows_in_order(accelerator: Accelerator) -> None:
    rows = text_rows(7)
    _, labels, firsts = read_rows(
        Bigram(),
        rows,
        collate=collate_text,
        batch_size=3,
        accelerator=accelerator,
        outcomes=lambda rows, *, batch, output, model: batch["input_ids"][:, 0].tolist(),
    )
    assert firsts == [row["input_ids"][0] for row in rows]
    assert labels == sum(len(row["input_ids"]) - 1 for row in rows)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_as_it_was(accelerator: Accelerator, training: bool) -> None:
    model = causal_model().train(training)
    evaluate_loss(model, text_rows(2), collate=collate_text, batch_size=2, accelerator=accelerator)
    assert model.training == training


def test_random_masks_are_the_same_in_every_evaluation(accelerator: Accelerator) -> None:
    drawn: list[float] = []

    def collate(rows: list[Row]) -> dict[str, torch.Tensor]:
        drawn.append(float(torch.rand(())))
        return collate_text(rows)

    for _ in range(2):
        evaluate_loss(Bigram(), text_rows(6), collate=collate, batch_size=2, accelerator=accelerator)
    assert drawn[:3] == drawn[3:]
    assert len(set(drawn)) == 3


def test_nothing_to_evaluate_is_refused(accelerator: Accelerator) -> None:
    with pytest.raises(UsageError, match="no held-out row to evaluate on"):
        evaluate_loss(Bigram(), [], collate=collate_text, batch_size=2, accelerator=accelerator)
    with pytest.raises(UsageError, match="no held-out row has a label"):
        evaluate_loss(Bigram(), [{"input_ids": [5]}] * 3, collate=collate_text, batch_size=2, accelerator=accelerator)
