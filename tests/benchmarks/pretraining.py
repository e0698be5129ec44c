"""Speed and memory of pretraining beside HF `Trainer` with a model of transformers of equal shape, in one process.

    python tests/benchmarks/pretraining.py [masked] [lines] [causal] [memory] [overhead] [--threads 1] [--rounds 5]

The same loop that a run uses, and `Trainer` as it comes, take their optimizer steps in turn (AdamW fused, no dropout on
both sides), so that a drift of the machine meets them alike; what is printed is the CPU time that each spent, and the
median over rounds of their ratio. Shape: 6 layers of width 384, vocabulary 16384, rows of 256 tokens. The table `lines`
has the lines of Python's documentation in place of random rows, each a document of its own: packed and kept apart by
masks here, padded to the longest of a batch there, with as many lines in a batch as have about as many tokens.
"""

import argparse
import gc
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForMaskedLM
from attnkit.data import ObjectiveConfig, PretrainDataConfig, TokenizerConfig, python_docs, train_tokenizer
from attnkit.data.objectives import objectives
from attnkit.models.language import minimising
from attnkit.models.loss import IGNORED, TokenLoss
from attnkit.recipes.text import make_rows, read_documents
from attnkit.training import run
from attnkit.training.launch import make_accelerator
from attnkit.training.loop import TrainingConfig, train
from attnkit.training.tracking import Tracker, TrackingConfig

VOCAB, LENGTH, BATCH = 16384, 256, 8
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Rows(Dataset):
    """Rows of random tokens; of masked ones, 15% are predicted."""

    def __init__(self, *, masked: bool, vocab_size: int = VOCAB) -> None:
        ids = torch.randint(5, vocab_size, (512, LENGTH), generator=torch.Generator().manual_seed(0))
        chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
        self.labels = torch.where(chosen, ids, IGNORED) if masked else ids
        self.inputs = torch.where(chosen, 4, ids) if masked else ids

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.inputs[index], "labels": self.labels[index]}


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def ours(masked: bool, *, vocab_size: int = VOCAB) -> PreTrainedModel:
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        **SHAPE,
        "vocab_size": vocab_size,
        "max_position_embeddings": LENGTH,
        "position": "learned",
        "norm": "layernorm",
        "hidden_act": "gelu" if masked else "gelu_new",
        "norm_position": "post" if masked else "pre",
        "output_transform": masked,
    }
    if masked:
        return AttnKitForMaskedLM(AttnKitConfig(architecture="encoder", **fields))
    return AttnKitForCausalLM(AttnKitConfig(architecture="decoder", **fields))


def theirs(masked: bool, *, vocab_size: int = VOCAB) -> PreTrainedModel:
    torch.manual_seed(0)
    if masked:
        config = BertConfig(**SHAPE, **NO_DROPOUT, vocab_size=vocab_size, max_position_embeddings=LENGTH)
        return BertForMaskedLM(config)
    width, layers, heads, _ = SHAPE.values()
    shape = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": LENGTH, "vocab_size": vocab_size}
    return GPT2LMHeadModel(
        GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLM")
    )


class Turns:
    """Two jobs in two threads that take steps in turn, each step alone, and the CPU time of each."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.started = 0.0

    def step_ends(self) -> None:
        """Called by the job after each of its steps."""
        self.seconds.append(time.thread_time() - self.started)
        self.done.release()
        self.go.acquire()
        self.started = time.thread_time()


class Signal(TrainerCallback):
    """Tells the turns of `Trainer`'s steps."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.turns.step_ends()


class SignallingTracker(Tracker):
    """Tells the turns of the steps of our loop."""

    turns: Turns

    def step(self, step: int, loss: float) -> None:
        super().step(step, loss)
        self.turns.step_ends()


def train_ours(
    model: PreTrainedModel, rows: Any, *, steps: int, turns: Turns, folder: Path, collate: Callable[..., Any] = collate
) -> None:
    accelerator = make_accelerator()
    quiet = {"save_steps": 10**6, "eval_steps": 10**6, "log_steps": 10}
    training = TrainingConfig(output_dir=str(folder / "ours"), max_steps=steps, per_device_batch_size=BATCH, **quiet)
    with SignallingTracker(
        folder / "ours", tracking=TrackingConfig(progress=False), accelerator=accelerator
    ) as tracker:
        tracker.turns = turns
        train(model, rows, collate=collate, training=training, accelerator=accelerator, tracker=tracker)


def train_theirs(
    model: PreTrainedModel,
    rows: Any,
    *,
    steps: int,
    turns: Turns,
    folder: Path,
    collate: Callable[..., Any] = collate,
    batch_size: int = BATCH,
) -> None:
    arguments = TrainingArguments(
        output_dir=str(folder / "theirs"),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        optim="adamw_torch_fused",
        weight_decay=0.1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=10,
    )
    Trainer(model, arguments, data_collator=collate, train_dataset=rows, callbacks=[Signal(turns)]).train()


def interleaved(jobs: dict[str, Callable[[Turns, Path], None]], *, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each step of jobs that take their steps in turn; the first two, which warm up, are left out."""
    turns = {name: Turns() for name in jobs}
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs.items():
            threading.Thread(target=job, args=(turns[name], Path(folder)), daemon=True).start()
            turns[name].done.acquire()
        for _ in range(rounds + 1):
            for turn in turns.values():
                turn.go.release()
                turn.done.acquire()
    return {name: turn.seconds[2:] for name, turn in turns.items()}


def compare(masked: bool, rounds: int) -> None:
    rows = Rows(masked=masked)
    steps = rounds + 3
    jobs = {
        "Trainer": lambda turns, folder: train_theirs(theirs(masked), rows, steps=steps, turns=turns, folder=folder),
        "attnkit": lambda turns, folder: train_ours(ours(masked), rows, steps=steps, turns=turns, folder=folder),
    }
    seconds = interleaved(jobs, rounds=rounds)
    ratio = statistics.median(a / b for a, b in zip(seconds["Trainer"], seconds["attnkit"], strict=True))
    peer = "BertForMaskedLM" if masked else "GPT2LMHeadModel"
    print(f"{'masked' if masked else 'causal'} against Trainer + {peer}: {ratio:.2f} × tokens per second", end="")
    each = {name: BATCH * LENGTH / statistics.median(taken) for name, taken in seconds.items()}
    print(f" ({', '.join(f'{name} {rate:,.0f}' for name, rate in each.items())} tokens per CPU second)")


class Counting:
    """A collate function that adds up the tokens of its batches that are no padding."""

    def __init__(self, collate: Callable[..., dict[str, torch.Tensor]]) -> None:
        self.collate, self.batches = collate, list[tuple[int, int]]()

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.collate(rows)
        places = batch["input_ids"].numel()
        mask = batch.get("attention_mask")
        self.batches.append((places if mask is None else int(mask.sum()), places))
        return batch


def lines(rounds: int) -> None:
    steps = rounds + 3
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.txt"
        file.write_text("\n".join(python_docs.documents()), encoding="utf-8")
        data = PretrainDataConfig(source=str(file), documents="line", sequence_length=LENGTH, document_mask=True)
        config = ObjectiveConfig(name="masked")
        documents = read_documents(data, config)
        objective_class = objectives["masked"]
        extra = objective_class.extra_tokens(config, data=data)
        tokenizer = train_tokenizer(documents.train_texts, TokenizerConfig(vocab_size=VOCAB), extra_tokens=extra)
        objective = objective_class(tokenizer, config, data=data)
        packed = make_rows(documents, tokenizer, objective=objective).train
        encoded = tokenizer(list(documents.train_texts), truncation=True, max_length=LENGTH)["input_ids"]
    alone = [{"input_ids": ids} for ids in encoded]
    mean = statistics.mean(len(ids) for ids in encoded)
    padded = Counting(DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15))
    filled = Counting(objective)
    batch_size = round(BATCH * LENGTH / mean)
    seconds = interleaved(
        {
            "Trainer": lambda turns, folder: train_theirs(
                theirs(True), alone, steps=steps, turns=turns, folder=folder, collate=padded, batch_size=batch_size
            ),
            "attnkit": lambda turns, folder: train_ours(
                ours(True), packed, steps=steps, turns=turns, folder=folder, collate=filled
            ),
        },
        rounds=rounds,
    )
    each = {}
    for (name, taken), counted in zip(seconds.items(), (padded, filled), strict=True):
        useful, places = (sum(column) for column in zip(*counted.batches, strict=True))
        each[name] = useful / len(counted.batches) / statistics.median(taken)
        print(f"{name}: {useful / places:.0%} of the places of a batch are tokens")
    ratio = each["attnkit"] / each["Trainer"]
    print(
        f"masked, lines of {mean:.1f} tokens ({batch_size} in a batch of Trainer): {ratio:.2f} × "
        f"useful tokens per second (Trainer {each['Trainer']:,.0f}, attnkit {each['attnkit']:,.0f} per CPU second)"
    )


def peak(step: Callable[[], None]) -> int:
    """The most bytes that torch holds at once beyond what it held before, in a step after the first."""
    step()
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    live = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def memory(_: int) -> None:
    print("peak memory of a causal step: weights, moments, and what the step adds")
    for vocab_size in (16384, 49152):
        found = {name: step_memory(make(False, vocab_size=vocab_size)) for name, make in MODELS.items()}
        gc.collect()
        ratio = found["attnkit"] / found["Trainer"]
        each = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in found.items())
        print(
            f"vocabulary {vocab_size}: {ratio:.2f} × ({each}; resident {psutil.Process().memory_info().rss / 1e6:.0f})"
        )


MODELS = {"Trainer": theirs, "attnkit": ours}


def step_memory(model: PreTrainedModel) -> int:
    """Bytes of weights and moments, and the most that a step adds to them."""
    rows = Rows(masked=False, vocab_size=model.config.vocab_size)
    batch = collate([rows[index] for index in range(BATCH)])
    optimizer = torch.optim.AdamW(model.train().parameters(), fused=True)

    def step() -> None:
        with minimising(TokenLoss(), model):
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return peak(step) + 3 * sum(4 * parameter.numel() for parameter in model.parameters())


def timed(spent: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the CPU time of its calls added up."""

    def call(*arguments: Any, **settings: Any) -> Any:
        began = time.thread_time()
        result = function(*arguments, **settings)
        spent[name] += time.thread_time() - began
        return result

    return call


class Shares(Turns):
    """Of each step the parts that the model, the optimizer and the clipping of gradients take, by CPU time."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.spent: Counter[str] = Counter()
        self.steps: list[dict[str, float]] = []
        model.forward = timed(self.spent, "model", model.forward)
        torch.Tensor.backward = timed(self.spent, "model", torch.Tensor.backward)
        torch.optim.AdamW.step = timed(self.spent, "optimizer", torch.optim.AdamW.step)
        run.clip_gradients = timed(self.spent, "clipping", run.clip_gradients)
        self.started = time.thread_time()

    def step_ends(self) -> None:
        now = time.thread_time()
        self.steps.append({name: value / (now - self.started) for name, value in self.spent.items()})
        self.spent.clear()
        self.started = now


def overhead(rounds: int) -> None:
    """What a step takes beside the passes and the optimizer, all measured in the same steps, as machines drift."""
    model = ours(False)
    shares = Shares(model)
    with tempfile.TemporaryDirectory() as folder:
        train_ours(model, Rows(masked=False), steps=2 * rounds + 1, turns=shares, folder=Path(folder))
    steps = shares.steps[1:]
    loop = statistics.median(1 - step["model"] - step["optimizer"] for step in steps)
    clipping = statistics.median(step["clipping"] for step in steps)
    print(
        f"the loop beside forward, backward and optimizer: {loop:.2%} of a causal step, of which clipping, that "
        f"Trainer does too, is {clipping:.2%}"
    )


TABLES = {
    "masked": lambda rounds: compare(True, rounds),
    "lines": lines,
    "causal": lambda rounds: compare(False, rounds),
    "memory": memory,
    "overhead": overhead,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="what to measure; all without it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    for table in arguments.tables or TABLES:
        TABLES[table](arguments.rounds)
