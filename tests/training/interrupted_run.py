"""A run that is killed at the moment named on the command line; started by the tests of checkpoints.

python interrupted_run.py OUTPUT_DIR in-step-9|in-save-14|never
"""

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

    moment = "never"
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
    if moment == "never":
        schedule = {"max_steps": 10**9, "log_steps": 1, "save_steps": 10**9, "eval_steps": 10**9}
    training = settings(output_dir, per_device_batch_size=2, gradient_accumulation_steps=2, **schedule)
    evaluate = held_out(text_rows(5), accelerator)
    run(model, text_rows(18), training, accelerator=accelerator, evaluate=evaluate, tracking=TrackingConfig())


def main() -> None:
    folder, moments = Path(sys.argv[1]), sys.argv[2:]
    for moment in moments:
        # A process of its own for each that dies, forked because torch takes seconds to import.
        child = os.fork() if moment != "never" else 0
        if child:
            print(f"{moment}: signal {os.WTERMSIG(os.waitpid(child, 0)[1])}", flush=True)
        else:
            run_until(moment, folder / moment)
            return


if __name__ == "__main__":
    main()
