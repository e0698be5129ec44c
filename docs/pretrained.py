"""Fine-tune each task from a pretrained model and from random weights under one budget: what is pretraining worth?

    apt-get download wordnet-base python3.11-doc
    for package in *.deb; do dpkg -x "$package" unpacked; done
    python docs/pretrained.py unpacked FOLDER

FOLDER gets the examples, the runs and `pretrained.csv`. It takes about 40 minutes of one CPU core; a run that is there
already is not made again.
"""

import csv
import json
import random
import re
import runpy
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import attnkit
from attnkit.cli import main
from attnkit.data import python_docs
from attnkit.tasks.metrics import metrics

MAKE = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "tasks" / "examples" / "make_examples.py"))
SEEDS = (1, 2, 3)
ROWS = {"train": 1000, "held_out": 1500}  # of each task, at most
STARTS = ("random", "pretrained")
GLOSSES = 30_000  # that are read in pretraining
SHAPE = {"hidden_size": 192, "num_attention_heads": 6, "norm": "rmsnorm", "initializer_range": 0.06}
SHAPE |= {"position": "rope", "embedding_scale": 13.86, "max_position_embeddings": 256}
MODELS: dict[str, dict[str, Any]] = {
    "causal": {**SHAPE, "architecture": "decoder", "num_hidden_layers": 3},
    "denoising": {**SHAPE, "architecture": "encoder-decoder", "num_hidden_layers": 2},
}
PRETRAIN: dict[str, dict[str, Any]] = {
    "causal": {"training.max_steps": 2000, "training.per_device_batch_size": 8, "training.learning_rate": 5e-3},
    "denoising": {"training.max_steps": 800, "training.per_device_batch_size": 8, "training.learning_rate": 3e-3}
    | {"objective.mask_rate": 0.5, "objective.span_length": 8},
}
FINETUNE = {"data.sequence_length": 64, "training.max_steps": 120, "training.per_device_batch_size": 8}
FINETUNE |= {"training.learning_rate": 2e-3, "training.group_by_length": "true"}
READS = {"model.pooling": "mean"}  # what the last token of a causal model knows has more to do with the next
TASKS: dict[str, dict[str, Any]] = {
    "classification": READS,
    "multi_label": READS,
    "regression": READS,
    "token_classification": {},
    "instruction": {},
    "sequence_to_sequence": {"task.options.max_target_tokens": 16, "data.max_held_out_samples": 300}
    | {"task.metrics": "[perplexity, token_accuracy]"},
    "multiple_choice": {**READS, "training.per_device_batch_size": 4, "data.max_held_out_samples": 500},
    "question_answering": {"data.sequence_length": 256, "training.per_device_batch_size": 4}
    | {"training.max_steps": 20},  # three times as many, and both know all but what is ambiguous
}

# ------------------------------------------------------------------------------------------------------------ examples


def side(key: str) -> str:
    """Where whatever has this key belongs; one key decides for all tasks and for what is read in pretraining."""
    return "held_out" if crc32(key.encode()) % 10 < 3 else "train"


def hypernym_depths(wordnet: Path) -> Iterator[dict[str, Any]]:
    """A gloss of a noun, and (d − 8) / 2 for what it defines d steps below `entity`."""
    above, gloss_of = {}, {}
    for line in (wordnet / "data.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            data, _, text = line.partition(" | ")
            number, *fields = data.split()
            above[number] = [fields[at + 1] for at, field in enumerate(fields) if field in ("@", "@i")][:1]
            gloss_of[number] = re.split(r'; ?"', text, maxsplit=1)[0].strip()
    for number, gloss in gloss_of.items():
        depth, chain = 0, above[number]
        while chain:
            depth, chain = depth + 1, above[chain[0]]
        yield {"text": gloss, "label": (depth - 8) / 2}


def choices(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """A word in a sentence, and what it means there among three other orders of the same words."""
    draw = random.Random(0)
    for row in rows:
        words = row["label"].split()
        given = [row["label"], *(" ".join(draw.sample(words, len(words))) for _ in range(3))]
        draw.shuffle(given)
        if len(set(given)) == 4:
            yield {"text": row["text"], "choices": given, "label": given.index(row["label"])}


def examples(wordnet: Path, docs: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(task, side, row) of every task."""
    for row in python_docs.labelled():
        yield "classification", side(row["text"]), row
    for row in hypernym_depths(wordnet):
        yield "regression", side(row["text"]), row
    pairs = [{"text": row["text"], "label": row["target"]} for row in MAKE["definitions"](wordnet)]
    for part in ("train", "held_out"):
        mine = [row for row in pairs if side(row["label"]) == part]
        for name, rows in {"sequence_to_sequence": mine, "multiple_choice": choices(mine)}.items():
            yield from ((name, part, row) for row in rows)
        for _, word, gloss, _ in MAKE["synsets"](wordnet):
            if side(gloss) == part:
                yield "instruction", part, {"text": f"What is the meaning of {word}?", "label": gloss}
        for row in MAKE["roles"](docs / part):
            yield "token_classification", part, {"text": row["words"], "label": row["tags"]}
            marks = sorted({tag[2:] for tag in row["tags"] if tag != "O"})
            yield "multi_label", part, {"text": " ".join(row["words"]), "label": marks}
        for row in MAKE["versions"](docs / part):
            yield "question_answering", part, {**row, "label": row["answers"]}


def corpus(wordnet: Path, docs: Path) -> list[str]:
    """What is read in pretraining: text without labels, nothing of it held out for any task."""
    synsets = [(word, [gloss, *said]) for _, word, gloss, said in MAKE["synsets"](wordnet) if side(gloss) == "train"]
    entries = [f"{word}: {'; '.join(texts)}" for word, texts in synsets]
    docstrings = [row["text"] for row in python_docs.labelled() if side(row["text"]) == "train"]
    prose = [MAKE["plain"](line) for line in MAKE["paragraphs"](docs / "train")]
    return random.Random(0).sample(entries, GLOSSES) + docstrings + prose


def make_examples(unpacked: Path, folder: Path) -> None:
    """Write the text and the examples of every task. The documentation is split by its files."""
    wordnet, docs = unpacked / "usr/share/wordnet", folder / "docs"
    for path in sorted((unpacked / "usr/share/doc/python3.11/html/_sources").glob("*/*.txt")):
        if path.parent.name != "whatsnew":  # which says of everything when it was added
            place = docs / side(path.name) / "library" / f"{path.parent.name}.{path.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for task, part, row in examples(wordnet, docs):
        rows.setdefault((task, part), []).append(row)
    for (task, part), members in rows.items():
        write(folder / f"{task}-{part}.jsonl", random.Random(0).sample(members, min(len(members), ROWS[part])))
    write(folder / "corpus.jsonl", [{"text": text} for text in corpus(wordnet, docs)])


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------- runs


def run(verb: str, settings: dict[str, Any], *, place: Path) -> None:
    """One run, unless it is there already."""
    steps = settings["training.max_steps"]
    given = {"training.output_dir": place, "training.overwrite": "true", "training.schedule": "cosine"}
    given |= {"training.warmup_steps": steps // 20, "training.eval_steps": steps, "training.save_steps": steps}
    flags = [word for name, value in {**given, **settings}.items() for word in (f"--{name}", str(value))]
    if not (place / "summary.json").is_file() and main([verb, *flags]) != 0:
        sys.exit(f"{place}: this run failed")


def pretrain(folder: Path, objective: str) -> None:
    settings = {f"model.{name}": value for name, value in MODELS[objective].items()}
    settings |= {"tokenizer.vocab_size": 4096, "data.source": folder / "corpus.jsonl", "data.sequence_length": 128}
    settings |= {"data.held_out_fraction": 0.01, "objective.name": objective, **PRETRAIN[objective]}
    run("pretrain", settings, place=folder / objective)


def finetune(folder: Path, task: str, *, start: str, seed: int) -> None:
    objective = "denoising" if task == "sequence_to_sequence" else "causal"
    settings = {f"model.{name}": value for name, value in MODELS[objective].items()}
    if start == "pretrained":
        settings = {"model.path": folder / objective / "model"}
    settings |= {"tokenizer.path": folder / objective / "model", "task.name": task, "training.seed": seed}
    files = {part: folder / f"{task}-{part}.jsonl" for part in ROWS}
    settings |= {"data.source": files["train"], "data.held_out_source": files["held_out"], **FINETUNE, **TASKS[task]}
    run("finetune", settings, place=folder / f"{task}-{start}-{seed}")


# ------------------------------------------------------------------------------------------------------------- figures


def figures(place: Path, *, task: str, metric: str, weights: np.ndarray | None = None) -> np.ndarray:
    """The figure of a run, or its figures if each held-out example counts as often as weights [R, N] say."""
    judged = attnkit.tasks[task].judged
    kind = next(kind for kind in judged if kind in metrics[metric].judges)
    labels = json.loads((place / "model" / "config.json").read_text(encoding="utf-8")).get("label2id", {})
    lines = (place / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    judge = metrics[metric](kind=kind, names=list(labels))
    statistics = judge.statistics([row[judged[kind]] for row in rows], [row["gold"] for row in rows])
    counts = np.ones(len(rows)) if weights is None else weights
    return judge.figure(counts @ np.asarray(statistics, dtype=float))


def compare(folder: Path, task: str) -> Iterator[dict[str, Any]]:
    """A line for each metric. The interval of the difference of means is that of drawing held-out examples again."""
    places = {start: [folder / f"{task}-{start}-{seed}" for seed in SEEDS] for start in STARTS}
    summary = json.loads((places["random"][0] / "summary.json").read_text(encoding="utf-8"))
    num = summary["examples"]["held_out"]
    weights = np.random.default_rng(0).multinomial(num, np.full(num, 1 / num), size=1000)
    for metric in (name for name in summary["held_out"] if name != "loss"):
        line = {"task": task, "metric": metric, "held_out": num, "guess": summary["baseline"].get(metric, "")}
        drawn = {}
        for start, members in places.items():
            for seed, place in zip(SEEDS, members, strict=True):
                line[f"{start}_{seed}"] = float(figures(place, task=task, metric=metric))
            line[start] = float(np.mean([line[f"{start}_{seed}"] for seed in SEEDS]))
            drawn[start] = np.mean(
                [figures(place, task=task, metric=metric, weights=weights) for place in members], axis=0
            )
        low, high = np.quantile(drawn["pretrained"] - drawn["random"], [0.025, 0.975])
        yield line | {"difference": line["pretrained"] - line["random"], "low": float(low), "high": float(high)}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "corpus.jsonl").is_file():
        make_examples(source, target)
    for name in PRETRAIN:
        pretrain(target, name)
    for seed in SEEDS:
        for name in TASKS:
            for start in STARTS:
                finetune(target, name, start=start, seed=seed)
    found = [line for name in TASKS for line in compare(target, name)]
    with (target / "pretrained.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{it:.4f}" if isinstance(it, float) else it for key, it in line.items()} for line in found
        )
