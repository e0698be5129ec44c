"""Tiny models, rows and runs for the tests of training. Most models are transformers' own: the loop takes any."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, set_seed

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForPreTraining
from attnkit.data import Documents, PretrainDataConfig
from attnkit.data.objectives import Objective, ObjectiveConfig, objectives
from attnkit.data.streaming import StreamedRows
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.training.evaluation import evaluate_loss
from attnkit.training.launch import make_accelerator
from attnkit.training.loop import TrainingConfig, TrainResult, train
from attnkit.training.tracking import Tracker, TrackingConfig

VOCAB_SIZE = 64
Row = dict[str, Any]


def causal_model(*, dropout: float = 0.0) -> GPT2LMHeadModel:
    set_seed(1)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    shape = {"vocab_size": VOCAB_SIZE, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**shape, **rates, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"))


def own_model(**fields: Any) -> AttnKitForCausalLM:
    """The same of attnkit, whose loss the loop computes without logits."""
    set_seed(1)
    shape = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return AttnKitForCausalLM(AttnKitConfig(**shape | fields, max_position_embeddings=64, pad_token_id=0))


def sentence_model() -> AttnKitForPreTraining:
    """One whose loss has two terms, over tokens and over sentences."""
    set_seed(1)
    shape = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"architecture": "encoder", "pooler": True, "max_position_embeddings": 64, "pad_token_id": 0}
    return AttnKitForPreTraining(AttnKitConfig(**shape | config))


def collate_sentences(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Every other token is predicted, and of each row whether its first token is even."""
    input_ids, mask = _padded(rows)
    hidden = (torch.arange(input_ids.shape[1]) % 2 == 0) & (mask == 1)
    return {
        "input_ids": input_ids.masked_fill(hidden, 1),
        "attention_mask": mask,
        "labels": input_ids.masked_fill(~hidden, -100),
        "next_sentence_label": input_ids[:, 0] % 2,
    }


def classifier() -> BertForSequenceClassification:
    set_seed(1)
    shape = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(
        BertConfig(**shape, intermediate_size=32, max_position_embeddings=64, num_labels=3)
    )


@dataclass
class Output:
    """What the loop asks of a model's output."""

    loss: torch.Tensor


class Bigram(nn.Module):
    """The smallest language model, and a bare torch module. Unlike transformers' its loss is as precise as it is."""

    def __init__(self) -> None:
        super().__init__()
        set_seed(1)
        self.embed = nn.Embedding(VOCAB_SIZE, 8)
        self.head = nn.Linear(8, VOCAB_SIZE)

    def train_head(self) -> "Bigram":
        """Let only the head learn."""
        self.embed.requires_grad_(False)
        self.head.requires_grad_(True)
        return self

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Output:
        logits = self.head(self.embed(input_ids[:, :-1]))  # [B, L-1, V]
        return Output(nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))


def text_rows(num_rows: int) -> list[Row]:
    """Rows of very different lengths, where a mean of means is far from the mean."""
    generator = torch.Generator().manual_seed(0)
    lengths = [(3, 40, 5, 60, 2, 17)[index % 6] for index in range(num_rows)]
    return [{"input_ids": torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist()} for length in lengths]


def labelled_rows(num_rows: int) -> list[Row]:
    """Rows whose label is told by their first token."""
    return [{**row, "label": row["input_ids"][0] % 3} for row in text_rows(num_rows)]


def streamed(folder: Path) -> tuple[StreamedRows, AttnKitForCausalLM, Objective]:
    """Rows without end of two sources, one of files of very different sizes, a model for them, and what makes batches
    of them."""
    folder.mkdir(parents=True)
    words = [
        "the",
        "model",
        "reads",
        "a",
        "row",
        "of",
        "text",
        "and",
        "says",
        "what",
        "comes",
        "next",
        "in",
        "it",
        "again",
    ]
    for name, num_lines in (("a", 3), ("b", 7), ("c", 2)):
        lines = [f"{name} {number} " + " ".join(words[: 2 + number]) for number in range(num_lines)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    (folder / "held_out.csv").write_text("text\nsomething else\n")
    data = PretrainDataConfig(
        source=[
            {"source": [str(folder / "a.txt"), str(folder / "b.txt")], "weight": 3},
            {"source": str(folder / "c.txt"), "weight": 1},
        ],
        documents="line",
        held_out_source=str(folder / "held_out.csv"),
        packing="one_document",
        sequence_length=64,
        streaming=True,
        shuffle_buffer=4,
    )
    documents = Documents(data)
    tokenizer = train_tokenizer(documents.train_texts, TokenizerConfig(vocab_size=280))
    objective = objectives["causal"](tokenizer, ObjectiveConfig(), data=data)
    model = own_model(vocab_size=len(tokenizer), position="learned")
    return StreamedRows(documents, tokenizer, objective=objective), model, objective


def collate_text(rows: list[Row]) -> dict[str, torch.Tensor]:
    input_ids, mask = _padded(rows)
    labels = input_ids.masked_fill(mask == 0, -100)
    labels[:, 0] = -100  # nothing comes before it, so nothing predicts it
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def collate_labelled(rows: list[Row]) -> dict[str, torch.Tensor]:
    input_ids, mask = _padded(rows)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": torch.tensor([row["label"] for row in rows])}


def _padded(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


def settings(output_dir: Path, **changes: Any) -> TrainingConfig:
    """A short run; `changes` are fields of the config."""
    short: dict[str, Any] = {"max_steps": 20, "per_device_batch_size": 4, "warmup_steps": 2, "log_steps": 1}
    return TrainingConfig(output_dir=str(output_dir), **{**short, **changes})


def fresh_accelerator() -> Accelerator:
    """An Accelerator that does not inherit the state of one that an earlier test made."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return make_accelerator()


def run(
    model: nn.Module,
    rows: list[Row],
    training: TrainingConfig,
    *,
    accelerator: Accelerator,
    collate: Callable[[list[Row]], dict[str, torch.Tensor]] = collate_text,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    tracking: TrackingConfig | None = None,
    **more: Any,
) -> TrainResult:
    tracking = tracking or TrackingConfig(progress=False)
    with Tracker(training.output_dir, tracking=tracking, accelerator=accelerator) as tracker:
        return train(
            model,
            rows,
            collate=collate,
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            evaluate=evaluate,
            **more,
        )


def held_out(rows: list[Row], accelerator: Accelerator) -> Callable[[nn.Module], dict[str, float]]:
    return partial(evaluate_loss, rows=rows, collate=collate_text, batch_size=4, accelerator=accelerator)


def gradients(checkpoint: Path) -> list[torch.Tensor]:
    """The gradient of a run's only step, if it was made with `adam_beta1` 0: then it is the first moment."""
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["optimizer"]["state"]
    return [state[name]["exp_avg"] for name in sorted(state)]


# Models, what makes batches for them, and how far gradients may be from each other: their precision.
GRADIENTS: dict[str, tuple[Callable[[], nn.Module], Callable[[list[Row]], dict[str, torch.Tensor]], float]] = {
    "fp32": (causal_model, collate_text, 1e-6),
    "fp64": (lambda: own_model().double(), collate_text, 1e-10),
    "two-terms": (lambda: sentence_model().double(), collate_sentences, 1e-10),
}
