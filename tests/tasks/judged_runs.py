"""What fine-tuned models say to their held-out examples; a test starts it with two processes and calls it with one.

    accelerate launch --config_file configs/accelerate/two_processes_cpu.yaml judged_runs.py FOLDER

Writes the figures of the runs FOLDER/*/run into FOLDER/figures-RANK.json.
"""

import json
import sys
from pathlib import Path

from accelerate import Accelerator

from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load_saved
from attnkit.recipes.judge import judge, make_rows
from attnkit.recipes.predict import load_finetuned
from attnkit.tasks import load_examples, make_task
from attnkit.training.launch import make_accelerator

BATCH = 3  # neither the number of examples nor that of batches divides among the processes


def figures(folder: Path, accelerator: Accelerator) -> dict[str, dict[str, float]]:
    """The held-out figures of each run by its task."""
    found = {}
    for path in sorted(folder.glob("*/run")):
        run = load_saved(FinetuneRun, path, imports=[])
        task = make_task(run.task, run.data)
        examples = load_examples(task, run.data)["held_out"]
        tokenizer, model = load_finetuned(str(path), task, accelerator=accelerator)
        length = run.data.sequence_length
        settings = {"config": model.config, "sequence_length": length, "setting": "data.source"}
        rows = make_rows(task, examples, tokenizer=tokenizer, **settings)
        settings = {"rows": rows, "tokenizer": tokenizer, "batch_size": BATCH, "accelerator": accelerator}
        found[run.task.name] = judge(model, task, examples=examples, **settings).figures
    return found


if __name__ == "__main__":
    accelerator = make_accelerator()
    said = figures(Path(sys.argv[1]), accelerator)
    path = Path(sys.argv[1]) / f"figures-{accelerator.process_index}.json"
    path.write_text(json.dumps({"num_processes": accelerator.num_processes, "figures": said}))
    accelerator.end_training()
