"""What several processes do together; started by the tests of launching, once, with two processes.

    accelerate launch --config_file configs/accelerate/two_processes_cpu.yaml two_processes.py FOLDER

Writes what each process saw into FOLDER/seen-RANK.json, and the runs beside it.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from samples import (
    GRADIENTS,
    Bigram,
    Output,
    Row,
    causal_model,
    collate_text,
    held_out,
    run,
    settings,
    streamed,
    text_rows,
)
from torch import nn

from attnkit.errors import UsageError
from attnkit.training.evaluation import read_rows
from attnkit.training.launch import check_shared_folder, make_accelerator, on_main
from attnkit.training.loop import TrainResult


def error_of(job: Callable[[], Any]) -> str:
    try:
        job()
    except UsageError as error:
        return str(error)
    return "no error"


def gradients(folder: Path, accelerator: Accelerator) -> None:
    """One step on the same global batch of eight rows, cut in three ways; the checkpoints hold the gradients."""
    for name, (make_model, collate, _) in GRADIENTS.items():
        for size in (4, 2, 1):
            training = settings(
                folder / f"gradient-{name}-{size}",
                max_steps=1,
                adam_beta1=0.0,
                max_grad_norm=None,
                per_device_batch_size=size,
                gradient_accumulation_steps=4 // size,
            )
            run(make_model(), text_rows(12), training, accelerator=accelerator, collate=collate)


def evaluations(accelerator: Accelerator) -> list[dict[str, Any]]:
    """Held-out sets that do not divide among the processes, in batches of several sizes."""
    model = causal_model()
    found = []
    for num_rows in (1, 7, 8):
        for size in (1, 2, 7):
            loss, labels, items = read_rows(
                model,
                text_rows(num_rows),
                collate=collate_text,
                batch_size=size,
                accelerator=accelerator,
                outcomes=lambda rows, *, batch, output, model: batch["input_ids"][:, 0].tolist(),
            )
            found.append({"num_rows": num_rows, "loss": loss / labels, "items": items})
    return found


def interrupted(folder: Path, accelerator: Accelerator, *, resume: bool = False, stop_at: int = 0) -> TrainResult:
    """Twenty steps with dropout; `stop_at`: one of the processes, not the main one, gets a signal in that step."""
    model = causal_model(dropout=0.3)
    num_forwards = 0

    def interrupt(module: nn.Module, _: Any) -> None:
        nonlocal num_forwards
        num_forwards += module.training
        if num_forwards == stop_at and not accelerator.is_main_process:
            os.kill(os.getpid(), signal.SIGTERM)

    model.register_forward_pre_hook(interrupt)
    rows = text_rows(9)  # five of eight steps end an epoch within a batch
    training = settings(folder, per_device_batch_size=2, save_steps=100, eval_steps=5, resume=resume)
    return run(model, rows, training, accelerator=accelerator, evaluate=held_out(text_rows(3), accelerator))


def random_numbers(folder: Path, accelerator: Accelerator) -> list[float]:
    """A number drawn in each call of the collator, in four steps."""
    drawn: list[float] = []

    def collate(rows: list[Row]) -> dict[str, torch.Tensor]:
        drawn.append(float(torch.rand(())))
        return collate_text(rows)

    run(Bigram(), text_rows(8), settings(folder, max_steps=4), accelerator=accelerator, collate=collate)
    return drawn


class NanOnOne(nn.Module):
    """A model whose loss is no number on the second process only."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.factor = math.nan if accelerator.process_index == 1 else 1.0

    def forward(self, **batch: torch.Tensor) -> Output:
        return Output(self.weight.sum() * self.factor)


def errors(folder: Path, accelerator: Accelerator) -> dict[str, str]:
    """Mistakes of which every process must learn, as one that waits for the others would wait for ever."""

    def train(name: str, model: nn.Module, **changes: Any) -> Callable[[], TrainResult]:
        return lambda: run(model, text_rows(8), settings(folder / name, **changes), accelerator=accelerator)

    def fail() -> None:
        raise UsageError("only the main process saw this")

    unused = causal_model()
    unused.pooler = nn.Linear(3, 3)
    file = folder / "file"
    on_main(accelerator, lambda: file.write_text("text"))
    own = folder / f"shared-{accelerator.process_index}"
    own.mkdir()
    shared = [
        error_of(lambda path=path: check_shared_folder(accelerator, path)) for path in (own / "run", folder / "run")
    ]
    assert not list(own.iterdir())

    def refused() -> str:
        """Going on with another seed, which is to be refused before anything is written."""
        run(Bigram(), text_rows(8), settings(folder / "refused", max_steps=1), accelerator=accelerator)
        go_on = settings(folder / "refused", max_steps=2, seed=1, resume=True)
        begin = (folder / "refused" / "begun").touch
        return error_of(lambda: run(Bigram(), text_rows(8), go_on, accelerator=accelerator, begin=begin))

    return {
        "refused": refused(),
        "not shared": shared[0].replace("shared-1", "shared-0"),
        "shared": shared[1],
        "unused": error_of(train("unused", unused)),
        "nan": error_of(train("nan", NanOnOne(accelerator), max_skipped_steps=0)),
        "processes": error_of(train("processes", Bigram(), num_processes=3)),
        "folder": error_of(train("file/below", Bigram())),
        "main": error_of(lambda: on_main(accelerator, fail)),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    accelerator = make_accelerator(num_processes=2)
    gradients(folder, accelerator)
    interrupted(folder / "uninterrupted", accelerator)
    stopped = interrupted(folder / "resumed", accelerator, stop_at=7)
    interrupted(folder / "resumed", accelerator, resume=True)
    few = run(Bigram(), text_rows(3), settings(folder / "few", max_steps=3), accelerator=accelerator)
    rows, model, objective = streamed(folder / f"text-{accelerator.process_index}")
    stream = settings(folder / "stream", per_device_batch_size=2, save_steps=7, keep_last=3)
    run(model, rows, stream, accelerator=accelerator, collate=objective)
    seen = {
        "num_processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "threads": torch.get_num_threads(),
        "evaluations": evaluations(accelerator),
        "stopped": [stopped.interrupted, stopped.steps],
        "few": few.steps,
        "drawn": random_numbers(folder / "random", accelerator),
        "errors": errors(folder, accelerator),
        "result": on_main(accelerator, lambda: "said by the main process"),
    }
    (folder / f"seen-{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main()
