"""Runs that are ended by a signal; started by the tests of checkpoints.

`interrupted_run.py FOLDER` makes FOLDER/in-step-9 and FOLDER/in-save-14, each killed by SIGKILL at the moment of its
name; FOLDER/in-stream, killed in step 8, whose rows are streamed; FOLDER/told-to-stop, which would go on for ever but
for a SIGTERM after its first step; and FOLDER/again, a run that saves after each step, is killed at drawn moments
between two accesses to its folder, and resumed until it is through. It prints how each ended as one JSON object, for
the last how often it was killed.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samples import causal_model, fresh_accelerator, held_out, run, settings, streamed, text_rows
from transformers import GPT2LMHeadModel

from attnkit.data import rows as rows_module
from attnkit.training.tracking import TrackingConfig

ACCESSES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.scandir", "shutil.rmtree")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(GPT2LMHeadModel):
    """The model of the tests; it kills its process in a forward pass or, as it is handed over as the tokenizer too,
    while a checkpoint is written."""

    moment = ""
    num_forwards = 0

    def forward(self, **batch: Any) -> Any:
        if self.training:
            self.num_forwards += 1
        if self.moment == "in-step-9" and self.num_forwards == 18:
            die()
        return super().forward(**batch)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        if self.moment == "in-save-14" and self.num_forwards == 28:
            die()


def make_run(moment: str, output_dir: Path) -> None:
    plain = causal_model(dropout=0.3)
    model = Killed(plain.config)
    model.load_state_dict(plain.state_dict())
    model.moment = moment
    accelerator = fresh_accelerator()
    schedule: dict[str, Any] = {"save_steps": 7, "eval_steps": 5, "log_steps": 3}
    if moment == "told-to-stop":
        schedule = {"max_steps": 10**9, "log_steps": 1, "save_steps": 10**9, "eval_steps": 10**9}
    if moment == "again":
        schedule |= {"save_steps": 1, "keep_last": 1, "resume": True}
    training = settings(output_dir, per_device_batch_size=2, gradient_accumulation_steps=2, **schedule)
    evaluate = held_out(text_rows(5), accelerator)
    tracking = TrackingConfig()
    run(model, text_rows(18), training, accelerator=accelerator, evaluate=evaluate, tracking=tracking, tokenizer=model)


def killed_stream(folder: Path) -> None:
    """Train on the text of a folder until the rows of step 8 are read."""
    rows_module.PORTION = 60  # characters, as the test has it
    rows, model, objective = streamed(folder / "text")
    model.register_forward_pre_hook(lambda *_: die() if rows.position == 8 * 4 else None)
    training = settings(folder / "in-stream", save_steps=3)
    run(model, rows, training, accelerator=fresh_accelerator(), collate=objective)


def ending_of(job: Callable[[], None], *, stop: bool = False) -> int:
    """Do a job in a process of its own, forked because torch takes seconds to import: its exit code or -signal.

    `stop`: it gets a SIGTERM once the first step that is logged is done.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, sys.stdout.fileno())
        job()
        sys.exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        if stop:
            next(line for line in said if line.startswith("step"))
            os.kill(child, signal.SIGTERM)
        said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_run(output_dir: Path, num_accesses: int) -> None:
    """Go on with the run, and die at the access to its folder of that number."""
    left = num_accesses

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in ACCESSES and str(output_dir) in str(arguments[0]):
            left -= 1
            if left == 0:
                die()

    sys.addaudithook(count)
    make_run("again", output_dir)


def kill_again_and_again(output_dir: Path) -> int:
    draw, deaths = random.Random(0), 0
    while ending_of(lambda: killed_run(output_dir, draw.randint(1, 60))) != 0:
        deaths += 1
    return deaths


def main() -> None:
    folder = Path(sys.argv[1])
    moments = ("in-step-9", "in-save-14", "told-to-stop")
    endings = {
        moment: ending_of(lambda moment=moment: make_run(moment, folder / moment), stop=moment == "told-to-stop")
        for moment in moments
    }
    endings["in-stream"] = ending_of(lambda: killed_stream(folder))
    print(json.dumps({**endings, "again": kill_again_and_again(folder / "again")}))


if __name__ == "__main__":
    main()
