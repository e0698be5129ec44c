"""Fine-tuning: examples → tokenizer → model with a head → rows → loop → a saved model and how good it is.

Whatever can be wrong is found in `prepare`, before the output folder is touched.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attnkit.config.finetune_run import FinetuneRun
from attnkit.data.tokenizer import load_tokenizer, train_tokenizer
from attnkit.errors import UsageError, first_line, nearest
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.recipes import manifest
from attnkit.recipes.card import how_to_use
from attnkit.recipes.folder import (
    MODEL,
    check_places,
    check_same_run,
    claimed,
    conclude,
    open_run,
    resolve,
    said_of_stop,
    save_model,
    say_changes,
)
from attnkit.recipes.grid import run_grid
from attnkit.recipes.inputs import tokenizer_path
from attnkit.recipes.judge import Judged, judge, make_rows, plot_report, say_figures, write_predictions
from attnkit.recipes.model import build_model, row_length
from attnkit.recipes.report import write_page
from attnkit.tasks import Example, Task, load_examples, make_task
from attnkit.tasks.adapter import adapt, merge
from attnkit.tasks.examples import setting_of
from attnkit.tasks.generation import frequency_likelihoods
from attnkit.tasks.rows import Padding, Row, num_tokens, predicts
from attnkit.training.checkpoint import load_weights
from attnkit.training.equip import check_settings
from attnkit.training.launch import make_accelerator, on_main, reporting_network
from attnkit.training.layers import freeze
from attnkit.training.loop import TrainResult, train
from attnkit.training.plot import plot_loss
from attnkit.training.run_folder import ADAPTER, LOG, LOSS_CURVE, PAGE, PREDICTIONS, REPORT, writing
from attnkit.training.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that training needs, checked."""

    run: FinetuneRun  # nothing left to defaults
    task: Task
    tokenizer: PreTrainedTokenizerBase
    model: Any  # a `PreTrainedModel`, with an adapter beside its weights if there is to be one
    examples: dict[str, list[Example]]
    """By split: `train`, `held_out` and perhaps `test`."""
    rows: dict[str, list[Row]]
    split_notes: list[str]
    """Why another part is held out than was asked for, and what of it is trained on too."""
    dropped: int
    """Training rows that are left out, as they have nothing to predict."""
    trained_parameters: int
    changes: list[str]
    """Settings of training with which the run goes on otherwise than it began."""

    @property
    def folder(self) -> Path:
        return Path(self.run.training.output_dir)


def finetune(run: FinetuneRun) -> str:
    """Train a model for a task, or several where `grid` lists settings, and return what there is to say of it."""
    said = finetune_once(run) if run.grid.is_empty else run_grid(run, finetune_once, resolved=resolved)
    PartialState().destroy_process_group()  # which the runs of a grid share
    return said


@reporting_network()
def finetune_once(run: FinetuneRun) -> str:
    """Train a model for a task and return what there is to say of it.

    The model is the one at `model.path`, or has random weights where that is null; what is saved and judged in the end
    are the weights that were best by `training.best_metric`. The folder `training.output_dir` then holds `model/`,
    which `transformers.pipeline` runs after `import attnkit`, `predictions/` with a file per split, `report.png`,
    `report.html`, `summary.json`, `loss.png`, `log.jsonl`, `config.yaml`, `data_manifest.json` and `checkpoints/`.
    Raises `UsageError` for whatever is wrong with the run, the examples or the folder.
    """
    accelerator = accelerator_of(run)
    prepared = prepare(run, accelerator)
    with claimed(prepared.folder, accelerator=accelerator):
        return train_prepared(run, prepared, accelerator=accelerator)


@reporting_network()
def resolved(run: FinetuneRun) -> FinetuneRun:
    """A run with nothing left to defaults, as its folder holds it. Raises `UsageError` as `finetune_once` does."""
    return prepare(run, accelerator_of(run)).run


def accelerator_of(run: FinetuneRun) -> Accelerator:
    """The processes that a run is trained on."""
    training = run.training
    return make_accelerator(
        num_processes=training.num_processes,
        mixed_precision=training.mixed_precision,
        trackers=run.tracking.trackers,
        output_dir=training.output_dir,
        timeout=training.timeout,
    )


def train_prepared(run: FinetuneRun, prepared: Prepared, *, accelerator: Accelerator) -> str:
    """Train what is prepared, judge and save the result, and return what there is to say of it."""
    training, task, tokenizer = run.training, prepared.task, prepared.tokenizer

    def judge_split(split: str, model: nn.Module) -> Judged:
        return judge(
            model,
            task,
            examples=prepared.examples[split],
            rows=prepared.rows[split],
            tokenizer=tokenizer,
            batch_size=training.per_device_batch_size,
            accelerator=accelerator,
        )

    with Tracker(training.output_dir, tracking=run.tracking, accelerator=accelerator, run=asdict(run)) as tracker:
        for note in prepared.split_notes:
            tracker.note(note)
        say_changes(prepared.changes, tracker=tracker)
        result = train(
            prepared.model,
            prepared.rows["train"],
            collate=task.collator(tokenizer),
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            begin=lambda: begin(prepared),
            evaluate=lambda model: judge_split("held_out", model).figures,
            tokenizer=tokenizer,
        )
    said = f"stopped at step {result.steps}: the same command with --resume goes on"
    prepared = replace(prepared, model=result.model)
    if not result.interrupted:
        load_weights(prepared.model, result.best_checkpoint or result.last_checkpoint, averaged=True)
        prepared.model.to(accelerator.device)
        on_main(accelerator, lambda: save_adapter(prepared))
        # What is judged is what is saved: the model as it will be loaded again.
        model = merge(prepared.model, run.adapter).eval()
        task.prepare_model(model, prepared.examples["train"])
        judged = {split: judge_split(split, model) for split in prepared.rows if split != "train"}
        said = on_main(accelerator, lambda: finish(prepared, result, model=model, judged=judged))
    for sent_to in accelerator.trackers:
        sent_to.finish()
    return said


def prepare(run: FinetuneRun, accelerator: Accelerator) -> Prepared:
    """Read the examples, get tokenizer and model, make the rows, and check that they fit together."""
    training = run.training
    check_places(training, accelerator=accelerator)
    task = make_task(run.task, run.data)
    check_best_metric(run, task)
    split_notes: list[str] = []
    examples = load_examples(task, run.data, notes=split_notes)
    tokenizer = get_tokenizer(run, task, texts=task.texts(examples["train"]), accelerator=accelerator)
    set_seed(training.seed)
    # Pad ids are the tokenizer's, since not every model that is loaded has one.
    head = {**task.head_config(), "pad_token_id": tokenizer.pad_token_id}
    model, drawn = build_model(
        run.model,
        auto_class=task.auto_class,
        tokenizer=tokenizer,
        sequence_length=run.data.sequence_length,
        training=training,
        head=None if task.is_generated else head,
    )
    check_settings(model, training, accelerator=accelerator, metric_names=None)
    model.config.pad_token_id = tokenizer.pad_token_id
    leave_out_types(tokenizer, model.config)
    tokenizer.model_max_length = length = row_length(run.data.sequence_length, model.config)
    run = replace(run, data=replace(run.data, sequence_length=length))
    adapted = adapt(model, run.adapter, new_head=not task.is_generated, drawn=drawn)
    freeze(adapted, training.frozen_layers)
    task.prepare_model(adapted, examples["train"])
    rows = {
        split: make_rows(
            task,
            members,
            tokenizer=tokenizer,
            config=model.config,
            sequence_length=length,
            setting=setting_of(split, run.data),
        )
        for split, members in examples.items()
    }
    useful = [row for row in rows["train"] if predicts(row)]
    dropped = len(rows["train"]) - len(useful)
    try_row(adapted, task.collator(tokenizer)(useful[:1]))
    if task.reads_whole:
        settle(tokenizer, "padding_side", padding_side(adapted, min(useful, key=num_tokens), tokenizer=tokenizer))
    run = resolve(run, model)
    return Prepared(
        run=run,
        task=task,
        tokenizer=tokenizer,
        model=adapted,
        examples=examples,
        rows=rows | {"train": useful},
        split_notes=split_notes,
        dropped=dropped,
        # Before an adapter is merged, which leaves all weights as if they learnt.
        trained_parameters=sum(it.numel() for it in adapted.parameters() if it.requires_grad),
        changes=on_main(accelerator, lambda: check_same_run(run)) if training.resume else [],
    )


def leave_out_types(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Let a tokenizer say of no token whether it is of the first text of a pair, if the model tells no types apart."""
    if isinstance(config, AttnKitConfig) and not (config.type_vocab_size or config.relative_types):
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        settle(tokenizer, "model_input_names", names)


def settle(tokenizer: PreTrainedTokenizerBase, name: str, value: Any) -> None:
    """Set an attribute of a tokenizer so that it is saved with it: transformers saves those that it was made with."""
    setattr(tokenizer, name, value)
    tokenizer.init_kwargs[name] = value


@torch.no_grad()
def try_row(model: Any, batch: dict[str, Any]) -> None:
    """Raise `UsageError` where a model does not take the rows of its task, before anything is written."""
    was_training = model.training
    try:
        model.eval()(**batch)
    except UsageError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"model.path: a {model.config.model_type} model takes no row of this task and tokenizer "
            f"({first_line(error)}): give another model, or the tokenizer that it was trained with"
        ) from error
    model.train(was_training)


@torch.no_grad()
def padding_side(model: Any, row: Row, *, tokenizer: PreTrainedTokenizerBase) -> str:
    """The side on which padding changes least of what a head says of a row: right where it changes nothing on either.

    Some heads read the last state of a row whatever it is of, as XLNet's, and some models count positions from padding
    on. Measured on the end of the row, so that there is room for padding.
    """
    length = max(1, tokenizer.model_max_length - 4)
    of_choices = isinstance(row["input_ids"][0], list)
    inputs = {name: row[name][0] if of_choices else row[name] for name in tokenizer.model_input_names if name in row}
    row = {name: values[-length:] for name, values in inputs.items()}
    longer = {name: values + values[:4] for name, values in row.items()}
    was_training = model.training

    def read(rows: list[Row], side: str = "right") -> Tensor:
        batch = Padding(tokenizer, side=side)(rows)
        logits: Tensor = model(**{name: it.unsqueeze(1) if of_choices else it for name, it in batch.items()}).logits
        return logits[0]

    model.eval()
    alone = read([row])
    right, left = ((read([row, longer], side) - alone).abs().max().item() for side in ("right", "left"))
    model.train(was_training)
    # Rounding differs a little with the shape of a batch.
    return "left" if right > 10 * left and right > 1e-4 * alone.abs().max().item() else "right"


def check_best_metric(run: FinetuneRun, task: Task) -> None:
    """Raise `UsageError` for a `training.best_metric` that is not measured, and for one whose worst would be kept."""
    name, mode = run.training.best_metric, run.training.best_mode
    modes = {"loss": "min"} | {key: metric.mode for key, (metric, _) in task.metrics().items()}
    if name not in modes:
        raise UsageError(f"training.best_metric: this run has no metric {name!r}: {nearest(name, modes)}")
    if mode != modes[name]:
        raise UsageError(f"training.best_mode: {mode!r} would keep the worst {name}: set it to {modes[name]!r}")


def get_tokenizer(
    run: FinetuneRun, task: Task, *, texts: list[str], accelerator: Accelerator
) -> PreTrainedTokenizerBase:
    """The tokenizer of the run, or one trained on `texts`; it can pad.

    Raises `UsageError` for a tokenizer that has neither a token to pad with nor one that ends a text.
    """
    path = tokenizer_path(run)
    tokenizer: PreTrainedTokenizerBase
    if path is None:
        tokenizer = on_main(accelerator, lambda: train_tokenizer(texts, run.tokenizer))
    else:
        tokenizer = load_tokenizer(path)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise UsageError(f"tokenizer.path: {path} has no pad_token and no eos_token to pad with: add one of them")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    task.prepare_tokenizer(tokenizer)
    return tokenizer


def save_adapter(prepared: Prepared) -> None:
    """Write the weights of the adapter alone, if there is one; PEFT puts them beside the model that it started from."""
    if prepared.run.adapter.method is not None:
        with writing(prepared.folder):
            prepared.model.save_pretrained(prepared.folder / ADAPTER, save_embedding_layers=False)


def begin(prepared: Prepared) -> None:
    """Begin to write into the folder of the run."""
    data = manifest.of_examples(prepared.run.data, prepared.examples, rows=prepared.rows, dropped=prepared.dropped)
    open_run(prepared.run, prepared.tokenizer, data=data)


def finish(prepared: Prepared, result: TrainResult, *, model: PreTrainedModel, judged: dict[str, Judged]) -> str:
    """Save the model, its predictions, the summary and the pictures, and return what there is to say."""
    folder, task = prepared.folder, prepared.task
    summary = summarize(prepared, result, model=model, judged=judged)
    use = how_to_use(task, model)
    save_model(prepared.run, model, tokenizer=prepared.tokenizer, summary=summary, use=use)
    for split, found in judged.items():
        path = folder / PREDICTIONS / f"{split}.jsonl"
        write_predictions(path, task, examples=found.examples, answers=found.answers, setting="training.output_dir")
    plot_report(folder / REPORT, task, judged["held_out"])
    plot_loss(folder / LOG, folder / LOSS_CURVE, unit="nats per label")
    write_page(folder, summary, said=say(summary))
    return conclude(prepared.run, summary, said=say(summary))


def summarize(
    prepared: Prepared, result: TrainResult, *, model: PreTrainedModel, judged: dict[str, Judged]
) -> dict[str, Any]:
    """What is worth knowing of a finished run, in the form of `summary.json`."""
    task, examples = prepared.task, prepared.examples
    summary: dict[str, Any] = {
        "model": str(prepared.folder / MODEL),
        "model_type": model.config.model_type,
        "scorer": model.config.scorer if isinstance(model.config, AttnKitConfig) else None,
        "parameters": model.num_parameters(),
        "trained_parameters": prepared.trained_parameters,
        "started_from": prepared.run.model.path,
        "task": prepared.run.task.name,
        "predicts": task.describe(),
        "examples": {split: len(members) for split, members in examples.items()},
        "split": prepared.split_notes,
        "sequence_length": prepared.run.data.sequence_length,
        "notes": notes(prepared),
        "steps": result.steps,
        "best_step": result.best_step,
        "stopped_early": said_of_stop(result),
        "tokens_seen": result.tokens_seen,
        "seconds": round(result.seconds, 1),
        "baseline": baseline(prepared),
        "guess": task.guess,
        "intervals": {},
        "predictions": str(prepared.folder / PREDICTIONS),
        "report": str(prepared.folder / REPORT),
        "loss_curve": str(prepared.folder / LOSS_CURVE),
    }
    for split, found in judged.items():
        summary[split] = found.figures
        summary["intervals"][split] = task.intervals(found.examples, found.answers)
    return summary


def baseline(prepared: Prepared) -> dict[str, float]:
    """The metrics, by name, of what says the same of every held-out text."""
    task, examples, rows = prepared.task, prepared.examples, prepared.rows
    likelihoods = (
        frequency_likelihoods(rows["train"], rows["held_out"], vocab_size=len(prepared.tokenizer))
        if "likelihood" in task.judged
        else []
    )
    return task.baseline(examples["train"], examples["held_out"], likelihoods=likelihoods)


def notes(prepared: Prepared) -> dict[str, list[str]]:
    """What of the examples of each split is not read, in words."""
    length = row_length(prepared.run.data.sequence_length, prepared.model.config)
    said = {split: prepared.task.notes(rows, sequence_length=length) for split, rows in prepared.rows.items()}
    if prepared.dropped:
        said["train"].append(f"{prepared.dropped:,} examples were dropped: nothing that is to be predicted fits in")
    return said


def say(summary: dict[str, Any]) -> str:
    """The summary for people."""
    kind = f"{summary['scorer']} scorer, " if summary["scorer"] else ""
    examples, names = summary["examples"], {"train": "to train on", "held_out": "held out", "test": "to test"}
    lines = {
        "model": f"{summary['model_type']}, {kind}{summary['parameters']:,} parameters",
        "started from": summary["started_from"] or "random weights",
        "task": f"{summary['task']}, {summary['predicts']}",
        "examples": ", ".join(f"{count:,} {names[split]}" for split, count in examples.items()),
        "split": "; ".join(summary["split"]),
        "rows": f"of at most {summary['sequence_length']:,} tokens",
        **{f"cut, {split.replace('_', '-')}": "; ".join(said) for split, said in summary["notes"].items()},
        "training": f"{summary['tokens_seen']:,} tokens seen, {summary['steps']:,} steps, {summary['seconds']:,.0f} s",
        "stopped": summary.get("stopped_early"),  # summaries of earlier runs say nothing of it
        "held-out": say_figures(
            summary["held_out"],
            summary["intervals"]["held_out"],
            baseline=summary["baseline"],
            guess=summary["guess"],
        ),
        "test": "test" in summary
        and say_figures(summary["test"], summary["intervals"]["test"], baseline={}, guess=summary["guess"]),
        "saved": summary["model"],
        "predictions": summary["predictions"],
        "report": summary["report"],
        "loss curve": summary["loss_curve"],
        "page": str(Path(summary["report"]).with_name(PAGE)),
    }
    return "\n".join(f"{name:<15}{line}" for name, line in lines.items() if line)
