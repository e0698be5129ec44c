"""Evaluation: the loss of a saved model on text it was not trained on, in the units in which models are compared."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from attnkit.data.objectives import Objective, ObjectiveConfig, objectives
from attnkit.data.sources import DataConfig, PretrainDataConfig, is_mix, named
from attnkit.errors import UsageError
from attnkit.files import strict_yaml
from attnkit.files.saved import CONFIG, run_folder
from attnkit.recipes.inputs import absolute_data, check_same_split
from attnkit.recipes.judge import BatchConfig
from attnkit.recipes.model import check_fit, load_model
from attnkit.recipes.predict import evaluate_finetuned
from attnkit.recipes.saved import tokenizer_of, verb_of
from attnkit.recipes.text import (
    HeldOut,
    find_rows,
    held_out_figures,
    make_held_out,
    read_documents,
    say_held_out,
)
from attnkit.training.evaluation import evaluate_loss
from attnkit.training.launch import make_accelerator


@dataclass(kw_only=True)
class EvaluateRun:
    """What is measured. The keys of the run that made the model stand in for the defaults shown here.

    Of the text of a pretrained model the held-out part is scored; of a `data.source` (or `data.held_out_source`) that
    is given, all of it.

    A fine-tuned run says the metrics of its task, of its held-out and test examples again, or of all examples of
    another `data.source` that is given, with the columns of the run. `objective` and the keys of `data` on packing,
    prepared rows and streaming are of pretraining alone.
    """

    path: str
    """A run, or a model: its folder or its name on the hub."""
    data: PretrainDataConfig = field(default_factory=PretrainDataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: BatchConfig = field(default_factory=BatchConfig)
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register parts; those of the run that made the model need not be named."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Rows to score, what they are, and how well token frequencies predict them where a training text is known."""

    name: str
    text: HeldOut
    unigram_loss: float | None


def evaluate(run: EvaluateRun) -> str:
    """What a saved model makes of text or examples that it was not trained on, by the kind of run that made it."""
    folder = run_folder(run.path)
    if folder is not None and verb_of(folder) == "finetune":
        if is_mix(run.data.source):
            raise UsageError("data.source: a fine-tuned model reads no mix of sources; give files, folders or names")
        refuse_pretraining(run)
        size = run.training.per_device_batch_size
        return evaluate_finetuned(run.path, data=run.data, batch_size=size, imports=run.imports)
    return evaluate_on_text(run)


def refuse_pretraining(run: EvaluateRun) -> None:
    """Raise `UsageError` for settings of pretraining, of which nothing holds for a fine-tuned run."""
    beyond = {it.name for it in fields(PretrainDataConfig)} - {it.name for it in fields(DataConfig)}
    given = [f"data.{name}" for name in sorted(beyond) if vars(run.data)[name] != vars(PretrainDataConfig())[name]]
    given += [
        f"objective.{name}" for name, value in vars(run.objective).items() if value != vars(ObjectiveConfig())[name]
    ]
    if given:
        raise UsageError(*(f"{key}: is of pretraining, and {run.path} is fine-tuned: leave it out" for key in given))


def evaluate_on_text(run: EvaluateRun) -> str:
    """The loss of a language model; on the run's own text, beside that of a model of token frequencies alone.

    Raises `UsageError` if there is no such model or text, or if they do not fit together.
    """
    accelerator = make_accelerator()
    tokenizer = tokenizer_of(run.path)
    objective = objectives[run.objective.name](tokenizer, run.objective, data=run.data)
    model = load_model(run.path, auto_class=objective.auto_class).to(accelerator.device)
    check_fit(model.config, tokenizer, sequence_length=run.data.sequence_length)
    scored = find_text(run, tokenizer, objective=objective)
    loss = evaluate_loss(
        model,
        scored.text.rows,
        collate=objective,
        batch_size=run.training.per_device_batch_size,
        accelerator=accelerator,
    )["loss"]
    accelerator.end_training()
    figures = held_out_figures(loss, scored.text, unigram_loss=scored.unigram_loss, objective=objective)
    size = f"{figures['documents']:,} documents, {figures['tokens']:,} tokens, {figures['bytes']:,} bytes"
    return f"scored      {scored.name}: {size}\nloss        {say_held_out(figures)}"


def find_text(run: EvaluateRun, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> Scored:
    """The text to score: what is held out of the run's own, or all of another, without a look at the training text."""
    own, data = own_data(run.path), absolute_data(run.data)
    if own is not None and (own.source, own.held_out_source) == (data.source, data.held_out_source):
        check_same_split(own, data)
        rows = find_rows(read_documents(data, run.objective), tokenizer, objective=objective)
        name = named(own.held_out_source or own.source)
        part = "the held-out part" if own.held_out_source is None else "all"
        return Scored(name=f"{part} of {name}", text=rows.held_out, unigram_loss=rows.unigram_loss)
    is_given = data.held_out_source is not None and (own is None or own.held_out_source != data.held_out_source)
    source: Any = data.held_out_source if is_given else data.source
    text = make_held_out(replace(data, source=source), tokenizer, objective=objective, config=run.objective)
    return Scored(name=f"all of {named(source)}", text=text, unigram_loss=None)


def own_data(path: str) -> PretrainDataConfig | None:
    """The data of the run that made a model, None where that is not known."""
    folder = run_folder(path)
    if folder is None:
        return None
    mapping, _ = strict_yaml.read(folder / CONFIG)
    return absolute_data(PretrainDataConfig(**mapping.get("data", {})))  # checked when this run was loaded
