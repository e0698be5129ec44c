"""Pretraining: documents → tokenizer → rows → model → loop → a saved model and what it can do.

Whatever can be wrong is found in `prepare`, before the output folder is touched.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attnkit.config.runs import PretrainRun
from attnkit.data.documents import Documents
from attnkit.data.objectives import Objective, objectives
from attnkit.errors import UsageError
from attnkit.models.checks import num_positions
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.recipes import manifest
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
from attnkit.recipes.generate import continue_text
from attnkit.recipes.inputs import absolute_data, tokenizer_path
from attnkit.recipes.model import build_model
from attnkit.recipes.report import write_page
from attnkit.recipes.text import (
    Rows,
    bits_per_byte,
    figures_of_text,
    find_rows,
    get_tokenizer,
    held_out_figures,
    read_documents,
    say_held_out,
    say_text,
)
from attnkit.training.checkpoint import load_weights
from attnkit.training.equip import check_settings
from attnkit.training.evaluation import evaluate_loss
from attnkit.training.launch import make_accelerator, on_main, reporting_network
from attnkit.training.loop import TrainResult, train
from attnkit.training.plot import plot_loss
from attnkit.training.run_folder import LOG, LOSS_CURVE, PAGE
from attnkit.training.tracking import BITS, Tracker

METRICS = ("loss",)  # that say which checkpoint is the best
PROMPT_TOKENS, SAMPLE_TOKENS = 12, 60


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that training needs, checked."""

    run: PretrainRun  # nothing left to defaults
    tokenizer: PreTrainedTokenizerBase
    documents: Documents
    rows: Rows
    objective: Objective
    model: PreTrainedModel
    changes: list[str]
    """Settings of training with which the run goes on otherwise than it began."""

    @property
    def folder(self) -> Path:
        return Path(self.run.training.output_dir)


@reporting_network()
def pretrain(run: PretrainRun) -> str:
    """Train a model on text and return what there is to say of it.

    The folder `training.output_dir` then holds `model/` (with its tokenizer), `report.html`, `summary.json`,
    `loss.png`, `log.jsonl`, `config.yaml`, `data_manifest.json` and `checkpoints/`. Raises `UsageError` for
    whatever is wrong with the run, the text or the folder.
    """
    training = run.training
    accelerator = make_accelerator(
        num_processes=training.num_processes,
        mixed_precision=training.mixed_precision,
        trackers=run.tracking.trackers,
        output_dir=training.output_dir,
        timeout=training.timeout,
    )
    prepared = prepare(run, accelerator)
    with claimed(prepared.folder, accelerator=accelerator):
        return train_prepared(run, prepared, accelerator=accelerator)


def train_prepared(run: PretrainRun, prepared: Prepared, *, accelerator: Accelerator) -> str:
    """Train what is prepared, save the result, and return what there is to say of it."""
    training = run.training

    def evaluate(model: nn.Module) -> dict[str, float]:
        held_out = prepared.rows.held_out
        measured = evaluate_loss(
            model,
            held_out.rows,
            collate=prepared.objective,
            batch_size=training.per_device_batch_size,
            accelerator=accelerator,
        )
        bits = bits_per_byte(measured["loss"], held_out, objective=prepared.objective)
        return measured | ({} if bits is None else {BITS: bits})

    with Tracker(training.output_dir, tracking=run.tracking, accelerator=accelerator, run=asdict(run)) as tracker:
        say_changes(prepared.changes, tracker=tracker)
        result = train(
            prepared.model,
            prepared.rows.train,
            collate=prepared.objective,
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            begin=lambda: begin(prepared),
            evaluate=evaluate,
            metric_names=METRICS,
            tokenizer=prepared.tokenizer,
        )
    whole = replace(prepared, model=result.model)
    said = "" if result.interrupted else on_main(accelerator, lambda: finish(whole, result))
    accelerator.end_training()
    return said or f"stopped at step {result.steps}: the same command with --resume goes on"


def prepare(run: PretrainRun, accelerator: Accelerator) -> Prepared:
    """Read the text, get the tokenizer, make the rows and the model, and check that they fit together."""
    training = run.training
    check_places(training, accelerator=accelerator)
    objective_class = objectives[run.objective.name]
    data = absolute_data(run.data)
    if data.streaming and training.group_by_length:
        raise UsageError("training.group_by_length: rows that are streamed are not there to be sorted: set it to false")
    if data.streaming and training.max_steps is None:
        raise UsageError("training.max_steps: rows that are streamed have no end: give --training.max_steps N")
    documents = read_documents(data, run.objective)
    tokenizer = get_tokenizer(
        documents,
        run.tokenizer,
        path=tokenizer_path(run),
        objective=run.objective,
        data=data,
        accelerator=accelerator,
    )
    objective = objective_class(tokenizer, run.objective, data=data)
    rows = find_rows(documents, tokenizer, objective=objective)
    objective([rows.held_out.rows[0]])  # one of the user's own may fail, and should do so before anything is written
    set_seed(training.seed)
    if run.model.path is None and run.model.architecture is not None:
        objective.check_architecture(run.model.architecture, name=run.objective.name)
    model, _ = build_model(
        run.model,
        auto_class=objective.auto_class,
        tokenizer=tokenizer,
        sequence_length=run.data.sequence_length,
        training=training,
    )
    objective.check_model(model.config)
    check_settings(model, training, accelerator=accelerator, metric_names=METRICS)
    tokenizer.model_max_length = num_positions(model.config) or run.data.sequence_length
    resolved = resolve(run, model)
    return Prepared(
        run=resolved,
        tokenizer=tokenizer,
        documents=documents,
        rows=rows,
        objective=objective,
        model=model,
        changes=on_main(accelerator, lambda: check_same_run(resolved)) if training.resume else [],
    )


def begin(prepared: Prepared) -> None:
    """Begin to write into the folder of the run."""
    data = manifest.of_text(prepared.documents, prepared.rows)
    open_run(prepared.run, prepared.tokenizer, data=data)


def finish(prepared: Prepared, result: TrainResult) -> str:
    """Save the model, the summary and the loss curve, and return what there is to say."""
    folder, model = prepared.folder, prepared.model.eval()
    if result.stopped_early and result.best_checkpoint is not None:
        load_weights(model, result.best_checkpoint, averaged=True)
    summary = summarize(prepared, result)
    save_model(prepared.run, model, tokenizer=prepared.tokenizer, summary=summary)
    plot_loss(folder / LOG, folder / LOSS_CURVE, reference=prepared.rows.unigram_loss)
    if prepared.run.data.streaming:  # only now it is known what became of the text
        data = manifest.of_text(prepared.documents, prepared.rows, rows_seen=result.rows_seen)
        manifest.save(data, folder)
    write_page(folder, summary, said=say(summary))
    return conclude(prepared.run, summary, said=say(summary))


def summarize(prepared: Prepared, result: TrainResult) -> dict[str, Any]:
    """What is worth knowing of a finished run, in the form of `summary.json`."""
    loss = result.best_value if result.stopped_early else result.metrics["loss"]
    model = prepared.model
    is_causal = prepared.objective.auto_class is AutoModelForCausalLM
    return {
        "model": str(prepared.folder / MODEL),
        "model_type": model.config.model_type,
        "scorer": model.config.scorer if isinstance(model.config, AttnKitConfig) else None,
        "parameters": model.num_parameters(),
        "steps": result.steps,
        "stopped_early": said_of_stop(result),
        "tokens_seen": result.tokens_seen,
        "seconds": round(result.seconds, 1),
        "text": figures_of_text(prepared.rows.sources(rows_seen=result.rows_seen), duplicates=prepared.rows.duplicates),
        "held_out": held_out_figures(
            loss, prepared.rows.held_out, unigram_loss=prepared.rows.unigram_loss, objective=prepared.objective
        ),
        "sample": sample(prepared) if is_causal else None,
        "loss_curve": str(prepared.folder / LOSS_CURVE),
    }


def sample(prepared: Prepared) -> dict[str, str]:
    """How the model goes on from the beginning of the held-out text."""
    tokenizer = prepared.tokenizer
    room = num_positions(prepared.model.config) or prepared.run.data.sequence_length
    beginning = prepared.rows.held_out.rows[0]["input_ids"][: min(PROMPT_TOKENS, room // 4)]
    prompt = str(tokenizer.decode(beginning, skip_special_tokens=True))
    text = continue_text(
        prepared.model,
        tokenizer,
        prompt,
        max_new_tokens=min(SAMPLE_TOKENS, max(1, room // 2)),
        seed=prepared.run.training.seed,
    )
    return {"prompt": prompt, "continuation": text}


def say(summary: dict[str, Any]) -> str:
    """The summary for people."""
    sampled = summary["sample"]
    kind = f"{summary['scorer']} scorer, " if summary["scorer"] else ""
    lines = {
        "model": f"{summary['model_type']}, {kind}{summary['parameters']:,} parameters",
        "text": say_text(summary["text"]).replace("\n", "\n" + " " * 12),
        "training": f"{summary['tokens_seen']:,} tokens seen, {summary['steps']:,} steps, {summary['seconds']:,.0f} s",
        "stopped": summary.get("stopped_early"),  # summaries of earlier runs say nothing of it
        "held-out": say_held_out(summary["held_out"]),
        "sample": sampled and " ".join(f"{sampled['prompt']} ▸ {sampled['continuation']}".split()),
        "saved": summary["model"],
        "loss curve": summary["loss_curve"],
        "page": str(Path(summary["loss_curve"]).with_name(PAGE)),
    }
    return "\n".join(f"{name:<12}{line}" for name, line in lines.items() if line)
