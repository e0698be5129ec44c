"""The card of a trained model: what it was made of and how good it is, for whoever finds its folder."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedModel

from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.runs import PretrainRun
from attnkit.models.card import CARD, USE, training_section, use_section, write_card
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.tasks import Task

NOT_TOLD = {"model", "scorer", "sample", "loss_curve", "predictions", "report"}
"""Of a summary: where things lie, and what the card says itself."""


def write_run_card(
    run: PretrainRun | FinetuneRun,
    model: PreTrainedModel,
    folder: Path,
    *,
    summary: dict[str, Any],
    use: str | None = None,
) -> None:
    """Write the card of a run's model beside it: the data, the settings and the figures of the run, how the model is
    used (`use`), and of a model of attnkit's own what it is made of and how it is loaded."""
    section = training_section(training_of(run, summary))
    if isinstance(model.config, AttnKitConfig):
        write_card(model, folder, training=section, use=use, overwrite=True)
    else:
        header = "---\nlibrary_name: transformers\ntags: [attnkit]\n---"
        title = f"# {type(model).__name__}, trained by attnkit"
        ModelCard("\n\n".join([header, title, section, *([use] if use else [])]) + "\n").save(folder / CARD)


def how_to_use(task: Task, model: PreTrainedModel) -> str:
    """The section of a card on how a fine-tuned model is asked: by transformers, or else by `attnkit predict`."""
    code = task.code()
    if code is not None:
        return use_section(model, code)
    columns = " and ".join(f"`{it.column}`" for it in task.fields().values() if not it.is_answer)
    return (
        f"{USE}\n\ntransformers has no pipeline for this. With a file of the columns {columns}, and the folder of the "
        "run around this one:\n\n```sh\nattnkit predict RUN --data.source new.jsonl --output said.jsonl\n```"
    )


def training_of(run: PretrainRun | FinetuneRun, summary: dict[str, Any]) -> dict[str, Any]:
    """The data, the settings and the figures of a run."""
    training = run.training
    said = {
        "data.source": run.data.source,
        "per_device_batch_size": training.per_device_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "num_processes": training.num_processes,
        "learning_rate": training.learning_rate,
        "schedule": training.schedule,
        "seed": training.seed,
    }
    return said | {name: value for name, value in summary.items() if name not in NOT_TOLD}
