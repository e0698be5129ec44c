"""Every shipped preset reads files that have the columns of its data set, with the model's tokenizer left out."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnkit.tasks
from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.tasks import load_examples, make_task
from attnkit.tasks.metrics import metrics

CONFIGS = Path(__file__).parents[2] / "configs" / "finetune"
ONE, TWO = "The cat sat on the mat today.", "A dog ran away from the red house."
SQUAD = {"id": "1", "title": "x", "context": f"{ONE} {TWO}", "question": "Who ran?"}
NO_ANSWER = {"text": [], "answer_start": []}


def glue(*columns: str, labels: tuple[Any, ...]) -> list[dict[str, Any]]:
    texts = dict(zip(columns, (ONE, TWO), strict=False))
    return [{**texts, "label": label, "idx": number} for number, label in enumerate(labels)]


ROWS: dict[str, list[dict[str, Any]]] = {
    "cola": glue("sentence", labels=(0, 1)),
    "sst2": glue("sentence", labels=(0, 1)),
    "mrpc": glue("sentence1", "sentence2", labels=(0, 1)),
    "qqp": glue("question1", "question2", labels=(0, 1)),
    "stsb": glue("sentence1", "sentence2", labels=(0.0, 3.8, 5.0)),
    "mnli": glue("premise", "hypothesis", labels=(0, 1, 2)),
    "qnli": glue("question", "sentence", labels=(0, 1)),
    "rte": glue("sentence1", "sentence2", labels=(0, 1)),
    "wnli": glue("sentence1", "sentence2", labels=(0, 1)),
    "squad1": [{**SQUAD, "answers": {"text": ["A dog"], "answer_start": [30]}}],
    "squad2": [{**SQUAD, "answers": {"text": ["dog"], "answer_start": [32]}}, {**SQUAD, "answers": NO_ANSWER}],
    "conll2003": [{"id": "1", "tokens": ["EU", "rejects", "German", "call"], "ner_tags": [3, 0, 7, 0]}],
    "swag": [
        {"sent1": ONE, "sent2": "It", "ending0": "ran.", "ending1": "sat.", "ending2": "slept.", "ending3": "ate."}
        | {"label": label}
        for label in (0, 3)
    ],
    "xsum": [{"document": f"{ONE} {TWO}", "summary": ONE, "id": "1"}],
    "cnn_dailymail": [{"article": f"{ONE} {TWO}", "highlights": f"{ONE}\n{TWO}", "id": "1"}],
    "wmt14": [{"translation": {"en": ONE, "de": "Die Katze saß heute auf der Matte."}}],
}
PRESETS = [path for path in sorted(CONFIGS.rglob("*.yaml")) if path.stem not in ("classification", "random_weights")]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([ONE, TWO] * 3, TokenizerConfig(vocab_size=275))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_reads_files_with_the_columns_of_its_data_set(path: Path, tmp_path: Path, tokenizer: Any) -> None:
    run = load(FinetuneRun, ["--config", str(path)])
    assert run.training.output_dir == f"runs/{path.relative_to(CONFIGS).with_suffix('')}"
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[path.stem]), encoding="utf-8")
    sources = {key: str(file) for key, value in vars(run.data).items() if key.endswith("source") and value is not None}
    task = make_task(run.task, replace(run.data, **sources))
    assert run.training.best_metric in task.metric_names
    assert task.metrics()[run.training.best_metric][0].mode == run.training.best_mode
    examples = load_examples(task, replace(run.data, **sources))
    task.prepare_tokenizer(tokenizer)
    if task.is_generated:
        task.start = tokenizer.bos_token_id  # what a model would say
    rows = task.encode(examples["train"], tokenizer, max_length=run.data.sequence_length)
    batch = task.collator(tokenizer)(rows)
    assert len(batch["input_ids"]) == len(rows) >= len(ROWS[path.stem])
    assert set(batch) & {"labels", "start_positions"}
    figures = task.baseline(examples["train"], examples["held_out"])
    assert list(figures) == task.metric_names
    if run.task.label_names is not None:
        assert task.names() == run.task.label_names


def test_labels_that_have_no_name_are_refused(tmp_path: Path) -> None:
    run = load(FinetuneRun, ["--config", str(CONFIGS / "glue" / "cola.yaml")])
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"sentence": ONE, "label": -1}) + "\n" + json.dumps({"sentence": TWO, "label": 2}))
    data = replace(run.data, source=str(file), held_out_source=str(file))
    with pytest.raises(ValueError, match=r"rows\.jsonl:1, .*rows\.jsonl:1: column|column 'label' holds '-1'"):
        load_examples(make_task(run.task, data), data)


def commands() -> list[list[str]]:
    page = (CONFIGS.parents[1] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    return [words for line in blocks.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("words", [words for words in commands() if words[1] == "finetune"], ids=" ".join)
def test_the_commands_of_the_page_are_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parents[1])
    run = load(FinetuneRun, words[2:])
    assert make_task(run.task, run.data).metric_names


def test_the_page_names_every_task_and_its_metrics() -> None:
    page = (CONFIGS.parents[1] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    for name, task in attnkit.tasks.tasks.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        usual, more = (cell.strip() for cell in row.split("|")[5:7])
        assert usual == ", ".join(task.usual_metrics)
        fit = {key for key, metric in metrics.items() if set(metric.judges) & task.judged.keys()}
        named = set(more.replace("those of texts", "rouge1, rouge2, rougeL, chrf, rougeLsum, bleu").split(", ")) - {""}
        assert named == fit - set(task.usual_metrics)
        for setting, value in {"data.text_column": "text", "task.label_column": "label"}.items():
            assert f"`{setting}` is `{value}`" in page.replace("\n", " ")
