"""Evaluation: the held-out loss of a saved model, in the units in which models are compared."""

from dataclasses import dataclass, field

from transformers import AutoModelForCausalLM

from attnkit.data.objectives import ObjectiveConfig, objectives
from attnkit.data.sources import DataConfig, load_documents
from attnkit.data.tokenizer import load_tokenizer
from attnkit.recipes.generate import tokenizer_path
from attnkit.recipes.model import check_fit, load_model, model_path
from attnkit.recipes.text import held_out_figures, make_rows, say_held_out
from attnkit.training.evaluation import evaluate_loss
from attnkit.training.launch import make_accelerator


@dataclass(kw_only=True)
class BatchConfig:
    """How many rows are evaluated together."""

    per_device_batch_size: int = 16
    """Rows per process and forward pass."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        size = self.per_device_batch_size
        return [] if size >= 1 else [f"training.per_device_batch_size: {size} must be 1 or more"]


@dataclass(kw_only=True)
class EvaluateRun:
    """What is measured. The keys of the run that made the model stand in for the defaults shown here."""

    path: str
    """A run, or a model: its folder or its name on the hub."""
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: BatchConfig = field(default_factory=BatchConfig)
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register parts; those of the run that made the model need not be named."""


def evaluate(run: EvaluateRun) -> str:
    """The loss on held-out text, beside that of a model of token frequencies alone.

    Raises `UsageError` if there is no such model or text, or if they do not fit together.
    """
    accelerator = make_accelerator()
    path = model_path(run.path)
    tokenizer = load_tokenizer(tokenizer_path(path))
    objective = objectives[run.objective.name](tokenizer, run.objective)
    model = load_model(path, auto_class=objective.auto_class).to(accelerator.device)
    check_fit(model.config, tokenizer, sequence_length=run.data.sequence_length)
    rows = make_rows(load_documents(run.data), tokenizer, data=run.data)
    loss = evaluate_loss(
        model,
        rows.held_out.rows,
        collate=objective,
        batch_size=run.training.per_device_batch_size,
        accelerator=accelerator,
    )["loss"]
    accelerator.end_training()
    figures = held_out_figures(loss, rows, every_token=objective.auto_class is AutoModelForCausalLM)
    text = f"{figures['documents']:,} documents, {figures['tokens']:,} tokens"
    return f"held-out    {say_held_out(figures)}\ntext        {text}"
