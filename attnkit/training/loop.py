"""The one training loop."""

from collections.abc import Callable, Sequence
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from attnkit.training.interrupt import stop_on_signal
from attnkit.training.order import TrainRows
from attnkit.training.result import TrainResult
from attnkit.training.run import Evaluate, Run
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import Tracker

__all__ = ["TrainResult", "TrainingConfig", "train"]


def train(
    model: nn.Module,
    train_rows: TrainRows,
    *,
    collate: Callable[[list[Any]], dict[str, Any]],
    training: TrainingConfig,
    accelerator: Accelerator,
    tracker: Tracker,
    begin: Callable[[], None] | None = None,
    evaluate: Evaluate | None = None,
    metric_names: Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TrainResult:
    """Train `model`, in place, on rows that `collate` turns into keyword arguments of the model.

    Among these are `labels`, and the model returns `.loss`, the mean over the labels that are not -100. What is
    minimised is the mean over all labels of the global batch,

        loss = Σ loss_i · n_i / Σ n_i,    i over the micro batches of all processes, n_i their number of labels,

    of each term of it where it has several, so neither the number of processes nor that of accumulation steps changes
    the gradient. `evaluate(bare_model)`
    returns metrics by name, equal on every process, `training.best_metric` among them; see `evaluation.evaluate_loss`.
    Given their names, `metric_names`, a wrong one is found before anything is written. Checkpoints carry the
    `tokenizer`. `begin()` writes what else the output folder is to hold from the start, on the main process, when the
    checkpoint to go on from is loaded: a run that is refused leaves the folder as it was.

    Raises `UsageError` for impossible settings, an output folder that holds a run, missing processes, a checkpoint of
    another run, a batch without labels, too many steps in a row without a finite loss, and a disk that refuses.
    """
    run = Run.start(
        model,
        train_rows,
        training=training,
        accelerator=accelerator,
        tracker=tracker,
        begin=begin,
        evaluate=evaluate,
        metric_names=metric_names,
        tokenizer=tokenizer,
    )
    with run.minimising(), stop_on_signal() as stop:
        for window in run.windows(train_rows, collate=collate, stop=stop):  # a global batch for each optimizer step
            for batch in window.batches:
                with run.passing(batch, window):
                    outputs = run.wrapped(**batch.inputs)
                    accelerator.backward(window.share(batch, outputs))
            run.update(window)
    return run.finish()
