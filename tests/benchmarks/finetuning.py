"""Fine-tuning a BERT here and by the Trainer of transformers: tokens per second of the same examples, and the figures.

    OMP_NUM_THREADS=1 python tests/benchmarks/finetuning.py

Both train the same weights on the same batches with dynamic padding, in turns, and the time of this thread is counted,
so that other work on the machine matters little; ours also writes a checkpoint at the end. `grouped` puts rows of about
one length into a step. Lengths vary as they do in the examples of the tests: glosses of a few words beside paragraphs.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sklearn.metrics import accuracy_score
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.recipes.judge import judge
from attnkit.tasks import ExamplesConfig, TaskConfig, load_examples, make_task
from attnkit.training.launch import make_accelerator
from attnkit.training.loop import train
from attnkit.training.order import RowOrder
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import Tracker, TrackingConfig

EXAMPLES = Path(__file__).parents[1] / "tasks" / "examples"
BATCH, LENGTH = 16, 192


def examples() -> list[dict[str, str]]:
    """Is a text a gloss, a sentence with a word before it, or from the documentation?"""
    kinds = {"glosses": "text", "definitions": "text", "versions": "text"}
    return [
        {"text": json.loads(line)[key], "label": name}
        for name, key in kinds.items()
        for line in (EXAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def timed(job: Callable[[], Any]) -> tuple[Any, float]:
    began = time.thread_time()
    return job(), time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--hidden_size", type=int, default=128)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    source = folder / "examples.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in examples()), encoding="utf-8")
    data = ExamplesConfig(source=str(source), held_out_fraction=0.2)
    task = make_task(TaskConfig(), data)
    splits = load_examples(task, data)
    tokenizer = train_tokenizer([row["text"] for row in splits["train"]], TokenizerConfig(vocab_size=2000))
    rows = {name: task.encode(members, tokenizer, max_length=LENGTH) for name, members in splits.items()}
    accelerator = make_accelerator()

    def new_model() -> BertForSequenceClassification:
        set_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=given.hidden_size,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * given.hidden_size,
            pad_token_id=tokenizer.pad_token_id,
            **task.head_config(),
        )
        return BertForSequenceClassification(config)

    def ours(grouped: bool) -> tuple[int, torch.nn.Module]:
        model = new_model()
        training = TrainingConfig(
            output_dir=tempfile.mkdtemp(dir=folder),
            max_steps=given.steps,
            per_device_batch_size=BATCH,
            learning_rate=1e-3,
            save_steps=10**6,
            group_by_length=grouped,
        )
        quiet = TrackingConfig(progress=False)
        with Tracker(training.output_dir, tracking=quiet, accelerator=accelerator) as tracker:
            result = train(
                model,
                rows["train"],
                collate=task.collator(tokenizer),
                training=training,
                accelerator=accelerator,
                tracker=tracker,
            )
        return result.tokens_seen, model

    def theirs() -> tuple[int, torch.nn.Module]:
        model, collate, seen = new_model(), DataCollatorWithPadding(tokenizer), [0]
        names = ("input_ids", "attention_mask", "labels")
        order = islice(RowOrder(len(rows["train"]), seed=0, batch_size=BATCH), given.steps)
        same = [rows["train"][index] for _, batch in order for index in batch]  # batches of other rows pad otherwise
        plain = [{name: row[name] for name in names} for row in same]

        def counted(batch: list[dict[str, Any]]) -> Any:
            collated = collate(batch)
            seen[0] += int(collated["attention_mask"].sum())
            return collated

        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(dir=folder),
            max_steps=given.steps,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            logging_steps=10,
            train_sampling_strategy="sequential",
        )
        Trainer(model=model, args=arguments, train_dataset=plain, data_collator=counted).train()
        return seen[0], model

    jobs = {"transformers": theirs, "attnkit": lambda: ours(False), "attnkit, grouped": lambda: ours(True)}
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(given.turns):
        for name, job in list(jobs.items())[turn % 3 :] + list(jobs.items())[: turn % 3]:
            (tokens, model), seconds = timed(job)
            speeds[name].append(tokens / seconds)
    held = rows["held_out"]
    judged = judge(
        model,
        task,
        examples=splits["held_out"],
        rows=held,
        tokenizer=tokenizer,
        batch_size=BATCH,
        accelerator=accelerator,
    )
    with torch.no_grad():
        model.eval()
        alone = [model(**task.collator(tokenizer)([row])).logits.argmax().item() for row in held]
    accuracy = accuracy_score([row["labels"] for row in held], alone)
    for name, found in speeds.items():
        beside = [speed / base for speed, base in zip(found, speeds["transformers"], strict=True)]
        print(f"{name:<20}{median(found):>10,.0f} tokens/s of CPU time   {median(beside):.2f} ×")
    print(f"accuracy of the same predictions: {judged.figures['accuracy']:.6f} here, {accuracy:.6f} by scikit-learn")


if __name__ == "__main__":
    main()
