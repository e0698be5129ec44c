"""Fine-tuning: examples → tokenizer → model with a head → rows → loop → a saved model and how good it is.

Whatever can be wrong is found in `prepare`, before the output folder is touched.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attnkit.config.runs import FinetuneRun
from attnkit.data.tokenizer import load_tokenizer, train_tokenizer
from attnkit.errors import UsageError
from attnkit.models import AttnKitConfig
from attnkit.recipes.folder import (
    LOSS_CURVE,
    MODEL,
    check_same_run,
    open_run,
    resolve,
    save_result,
    tokenizer_path,
)
from attnkit.recipes.model import build_model
from attnkit.tasks import Task, tasks
from attnkit.training.checkpoint import load_weights
from attnkit.training.evaluation import Metrics, evaluate_loss
from attnkit.training.launch import make_accelerator, on_main
from attnkit.training.loop import TrainResult, train
from attnkit.training.plot import plot_loss
from attnkit.training.run_folder import LOG, check_output_folder
from attnkit.training.tracking import Tracker

SAME_RUN = ("model", "tokenizer", "data", "task")  # sections that may not change when a run goes on


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that training needs, checked."""

    run: FinetuneRun  # nothing left to defaults
    task: Task
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    train_rows: Dataset
    held_out_rows: Dataset

    @property
    def folder(self) -> Path:
        return Path(self.run.training.output_dir)


def finetune(run: FinetuneRun) -> str:
    """Train a model for a task and return what there is to say of it.

    The model is the one at `model.path`, or has random weights where that is null. The folder `training.output_dir`
    then holds `model/`, which `transformers.pipeline` runs after `import attnkit`, and `summary.json`, `loss.png`,
    `log.jsonl`, `config.yaml` and `checkpoints/`. Raises `UsageError` for whatever is wrong with the run, the examples
    or the folder.
    """
    training = run.training
    accelerator = make_accelerator(
        num_processes=training.num_processes, trackers=run.tracking.trackers, output_dir=training.output_dir
    )
    prepared = prepare(run, accelerator)
    task, collate = prepared.task, prepared.task.collator(prepared.tokenizer)
    on_main(accelerator, lambda: open_run(prepared.run, prepared.tokenizer))

    def evaluate(model: nn.Module) -> dict[str, float]:
        return evaluate_loss(
            model,
            prepared.held_out_rows,
            collate=collate,
            batch_size=training.per_device_batch_size,
            accelerator=accelerator,
            metrics=Metrics(outcomes=task.outcomes, score=task.score),
        )

    with Tracker(training.output_dir, tracking=run.tracking, accelerator=accelerator, run=asdict(run)) as tracker:
        result = train(
            prepared.model,
            prepared.train_rows,
            collate=collate,
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            evaluate=evaluate,
        )
    said = f"stopped at step {result.steps}: the same command with --resume goes on"
    if not result.interrupted:
        if result.stopped_early and result.best_checkpoint is not None:
            load_weights(prepared.model, result.best_checkpoint)
        figures = evaluate(prepared.model.eval())
        said = on_main(accelerator, lambda: finish(prepared, result, figures=figures))
    accelerator.end_training()
    return said


def prepare(run: FinetuneRun, accelerator: Accelerator) -> Prepared:
    """Read the examples, get tokenizer and model, make the rows, and check that they fit together."""
    training, length = run.training, run.data.sequence_length
    on_main(
        accelerator,
        lambda: check_output_folder(training.output_dir, resume=training.resume, overwrite=training.overwrite),
    )
    task = tasks[run.task.name](run.task, data=run.data)
    tokenizer = get_tokenizer(run, task, accelerator=accelerator)
    set_seed(training.seed)
    model = build_model(
        run.model,
        auto_class=task.auto_class,
        tokenizer=tokenizer,
        sequence_length=length,
        head={**task.head_config(), "pad_token_id": tokenizer.pad_token_id},
    )
    prepared = Prepared(
        run=resolve(run, model),
        task=task,
        tokenizer=tokenizer,
        model=model,
        train_rows=task.encode(task.train, tokenizer, max_length=length),
        held_out_rows=task.encode(task.held_out, tokenizer, max_length=length),
    )
    if training.resume:
        on_main(accelerator, lambda: check_same_run(prepared.run, sections=SAME_RUN))
    return prepared


def get_tokenizer(run: FinetuneRun, task: Task, *, accelerator: Accelerator) -> PreTrainedTokenizerBase:
    """The tokenizer of the run, or one trained on the examples; it can pad, and cuts texts at `data.sequence_length`.

    Raises `UsageError` for a tokenizer that has neither a token to pad with nor one that ends a text.
    """
    path = tokenizer_path(run)
    tokenizer: PreTrainedTokenizerBase
    if path is None:
        tokenizer = on_main(accelerator, lambda: train_tokenizer(task.texts(), run.tokenizer))
    else:
        tokenizer = load_tokenizer(path)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise UsageError(f"tokenizer.path: {path} has no pad_token and no eos_token to pad with: add one of them")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = run.data.sequence_length
    return tokenizer


def finish(prepared: Prepared, result: TrainResult, *, figures: dict[str, float]) -> str:
    """Save the model, the summary and the loss curve, and return what there is to say."""
    folder, summary = prepared.folder, summarize(prepared, result, figures=figures)
    save_result(folder, prepared.model, tokenizer=prepared.tokenizer, summary=summary)
    plot_loss(folder / LOG, folder / LOSS_CURVE, unit="nats per example")
    return say(summary)


def summarize(prepared: Prepared, result: TrainResult, *, figures: dict[str, float]) -> dict[str, Any]:
    """What is worth knowing of a finished run, in the form of `summary.json`."""
    model, task = prepared.model, prepared.task
    return {
        "model": str(prepared.folder / MODEL),
        "model_type": model.config.model_type,
        "scorer": model.config.scorer if isinstance(model.config, AttnKitConfig) else None,
        "parameters": model.num_parameters(),
        "started_from": prepared.run.model.path,
        "task": prepared.run.task.name,
        "predicts": task.describe(),
        "examples": {"train": len(task.train), "held_out": len(task.held_out)},
        "steps": result.steps,
        "tokens_seen": result.tokens_seen,
        "seconds": round(result.seconds, 1),
        "held_out": figures,
        "baseline": task.baseline(),
        "guess": task.guess,
        "loss_curve": str(prepared.folder / LOSS_CURVE),
    }


def say(summary: dict[str, Any]) -> str:
    """The summary for people."""
    kind = f"{summary['scorer']} scorer, " if summary["scorer"] else ""
    examples, baseline = summary["examples"], summary["baseline"]
    figures = ", ".join(
        f"{name} {value:.4f}" + (f" ({summary['guess']}: {baseline[name]:.4f})" if name in baseline else "")
        for name, value in summary["held_out"].items()
    )
    lines = {
        "model": f"{summary['model_type']}, {kind}{summary['parameters']:,} parameters",
        "started from": summary["started_from"] or "random weights",
        "task": f"{summary['task']}, {summary['predicts']}",
        "examples": f"{examples['train']:,} to train on, {examples['held_out']:,} held out",
        "training": f"{summary['tokens_seen']:,} tokens seen, {summary['steps']:,} steps, {summary['seconds']:,.0f} s",
        "held-out": figures,
        "saved": summary["model"],
        "loss curve": summary["loss_curve"],
    }
    return "\n".join(f"{name:<14}{line}" for name, line in lines.items())
