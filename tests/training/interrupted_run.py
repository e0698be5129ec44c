"""Runs that are ended by a signal; started by the tests of checkpoints.

`interrupted_run.py FOLDER` makes FOLDER/in-step-9 and FOLDER/in-save-14, each killed by SIGKILL at the moment of its
name, and FOLDER/told-to-stop, which would go on for ever but for a SIGTERM after its first step. It prints how each
ended as one JSON object.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from samples import causal_model, fresh_accelerator, held_out, run, settings, text_rows
from transformers import GPT2LMHeadModel

from attnkit.training.tracking import TrackingConfig


class Killed(GPT2LMHeadModel):
    """The model of the tests; it kills its process in a forward pass or while it is being saved."""

    moment = ""
    num_forwards = 0

    def forward(self, **batch: Any) -> Any:
        if self.training:
            self.num_forwards += 1
        if self.moment == "in-step-9" and self.num_forwards == 18:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(**batch)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.moment == "in-save-14" and self.num_forwards == 28:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().state_dict(*args, **kwargs)


def run_until(moment: str, output_dir: Path) -> None:
    plain = causal_model(dropout=0.3)
    model = Killed(plain.config)
    model.load_state_dict(plain.state_dict())
    model.moment = moment
    accelerator = fresh_accelerator()
    schedule: dict[str, Any] = {"save_steps": 7, "eval_steps": 5, "log_steps": 3}
    if moment == "told-to-stop":
        schedule = {"max_steps": 10**9, "log_steps": 1, "save_steps": 10**9, "eval_steps": 10**9}
    training = settings(output_dir, per_device_batch_size=2, gradient_accumulation_steps=2, **schedule)
    evaluate = held_out(text_rows(5), accelerator)
    run(model, text_rows(18), training, accelerator=accelerator, evaluate=evaluate, tracking=TrackingConfig())


def ending_of(moment: str, output_dir: Path) -> int:
    """Make a run in a process of its own, forked because torch takes seconds to import: its exit code or -signal."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, sys.stdout.fileno())
        run_until(moment, output_dir)
        sys.exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        said.readline()  # the first step that is logged is done
        if moment == "told-to-stop":
            os.kill(child, signal.SIGTERM)
        said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder = Path(sys.argv[1])
    endings = {moment: ending_of(moment, folder / moment) for moment in ("in-step-9", "in-save-14", "told-to-stop")}
    print(json.dumps(endings))


if __name__ == "__main__":
    main()
