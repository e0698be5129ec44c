"""Laws that every task keeps, on real examples: what is reported is what is saved, whatever the size of a batch."""

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import judged_runs
import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

import attnkit
from attnkit.cli import main
from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.errors import UsageError
from attnkit.recipes.finetune import check_best_metric
from attnkit.recipes.judge import show
from attnkit.tasks import ExamplesConfig, TaskConfig, make_task
from attnkit.tasks.metrics import metrics
from attnkit.tasks.metrics_of_labels import MISSED
from attnkit.training.launch import make_accelerator
from attnkit.training.settings import TrainingConfig

EXAMPLES = Path(__file__).parent / "examples"
CONFIGS = Path(__file__).parents[2] / "configs"
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def rows_of(name: str, number: int = 40) -> list[dict[str, Any]]:
    lines = (EXAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:number]]


def coarse(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"label": row["label"].split(".")[0]} for row in rows]


ROWS = {
    "classification": coarse(rows_of("glosses")),
    "multi_label": [row | {"label": row["label"].split(".")} for row in rows_of("glosses")],
    "regression": [row | {"label": len(row["text"]) / 100} for row in rows_of("glosses")],
    "multiple_choice": [
        {"text": row["text"], "choices": [row["target"], other["target"]], "label": 0}
        if number % 2
        else {"text": row["text"], "choices": [other["target"], row["target"]], "label": 1}
        for number, (row, other) in enumerate(zip(rows_of("definitions"), rows_of("definitions")[::-1], strict=True))
    ],
    "token_classification": [{"text": row["words"], "label": row["tags"]} for row in rows_of("roles")],
    "question_answering": [
        {"text": row["text"], "question": row["question"], "label": row["answers"]} for row in rows_of("versions", 12)
    ],
    "sequence_to_sequence": [{"text": row["text"], "label": row["target"]} for row in rows_of("definitions")],
    "instruction": [{"text": row["text"], "label": row["target"]} for row in rows_of("definitions")],
}
FLAGS = {
    "classification": ["--task.options.balanced", "true"],
    "question_answering": ["--data.sequence_length", "128"],
    "sequence_to_sequence": ["--model.architecture", "encoder-decoder", "--task.options.max_target_tokens", "6"],
    "instruction": ["--model.architecture", "decoder", "--task.options.max_new_tokens", "4"],
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def finetune(name: str, folder: Path, *flags: object) -> int:
    source = write(folder / "examples.jsonl", ROWS[name])
    words = ["finetune", "--task.name", name, "--data.source", source, "--training.output_dir", folder / "run"]
    words += ["--data.sequence_length", 64, "--data.held_out_fraction", 0.4, "--tokenizer.vocab_size", 300]
    words += ["--model.architecture", "encoder", *(word for key in TINY for word in (f"--model.{key}", TINY[key]))]
    words += ["--training.max_steps", 2, "--training.warmup_steps", 0, "--tracking.progress", "false"]
    return main([str(word) for word in (*words, *FLAGS.get(name, []), *flags)])


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a task, which is made once; its test examples are beside it."""
    root = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Path:
        folder = root / name
        if not folder.is_dir():
            folder.mkdir()
            test = write(folder / "test.jsonl", ROWS[name][:9])
            assert finetune(name, folder, "--data.test_source", test) == 0
        return folder / "run"

    return make


def test_every_task_has_rows_here() -> None:
    assert ROWS.keys() == set(attnkit.tasks)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_reported_is_what_is_saved(
    name: str, run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(name)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    made = load(FinetuneRun, ["--config", str(run / "config.yaml")])
    task = make_task(made.task, made.data)
    assert list(summary["held_out"]) == ["loss", *task.metric_names]
    assert list(summary["baseline"]) == task.metric_names
    for split in ("held_out", "test"):
        lines = (run / "predictions" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        said = [json.loads(line) for line in lines]
        assert len(said) == summary["examples"][split]
        names = sorted(
            {name for line in said for name in map(str, np.atleast_1d(line["gold"]))} | set(class_names(run))
        )
        for metric_name in task.metric_names:
            kind = next(kind for kind in task.judged if kind in metrics[metric_name].judges)
            metric = metrics[metric_name](kind=kind, names=names)
            predictions = [line[task.judged[kind]] for line in said]
            figure = metric.compute(predictions=predictions, references=[line["gold"] for line in said])
            assert figure[metric_name] == summary[split][metric_name]
            low, high = summary["intervals"][split][metric_name]
            assert low <= figure[metric_name] <= high
    capsys.readouterr()
    assert main(["evaluate", str(run), "--training.per_device_batch_size", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for split, line in (("held_out", lines[0]), ("test", next(it for it in lines if it.startswith("test")))):
        for figure, value in summary[split].items():
            assert f"{figure} {show(value)}" in line
    assert main(["evaluate", str(run), "--data.source", str(write(tmp_path / "other.jsonl", ROWS[name][6:12]))]) == 0
    assert re.search(r"^all +loss [\d.]+, (.*\n)+examples +6$", capsys.readouterr().out, re.MULTILINE)
    assert main(["evaluate", str(run), "--data.packing", "best_fit", "--objective.name", "masked"]) == 2
    assert re.findall(r"error: (\S+): is of pretraining, and ", capsys.readouterr().err) == [
        "data.packing",
        "objective.name",
    ]
    assert (run / "report.png").stat().st_size > 1000
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    ends = ", ".join(f"{end:.6g}" for end in summary["intervals"]["held_out"][task.metric_names[0]])
    assert f"| intervals.held_out.{task.metric_names[0]} | [{ends}] |" in card
    assert ("## Use\n\n```python" in card) == (name not in ("question_answering", "multiple_choice"))
    capsys.readouterr()
    do_as_the_card_says(run / "model")
    assert "LABEL_" not in capsys.readouterr().out

    unlabelled = [{key: value for key, value in row.items() if key != "label"} for row in ROWS[name][:5]]
    unlabelled = [{**row, "id": {"place": place}} for place, row in enumerate(unlabelled)]
    words = ["predict", str(run), "--data.source", str(write(tmp_path / "new.jsonl", unlabelled))]
    assert main([*words, "--data.kept_columns", "[id]"]) == 0
    said = [json.loads(line) for line in (run / "predictions" / "new.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(said) == 5
    assert all("prediction" in line and "gold" not in line for line in said)
    assert [{key: line[key] for key in row} for line, row in zip(said, unlabelled, strict=True)] == unlabelled
    kept = (tmp_path / "new.jsonl").read_text(encoding="utf-8")
    assert main([*words, "--output", words[-1]]) == 2
    assert "new.jsonl is there already" in capsys.readouterr().err
    assert (tmp_path / "new.jsonl").read_text(encoding="utf-8") == kept


def do_as_the_card_says(model: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL):
        with warnings.catch_warnings():
            # Whether two tokens are of one word is told by the space between, which is what this task calls a word.
            warnings.filterwarnings("ignore", "Tokenizer does not support real words", UserWarning)
            exec(code.replace("…", str(model)), {})


def read_pipeline(name: str, ask: Any, line: dict[str, Any]) -> Any:
    """What a pipeline of transformers says to one example, in the form of `prediction`."""
    if name == "instruction":
        return ask([{"role": "user", "content": line["text"]}], max_new_tokens=4, do_sample=False)[0]["generated_text"]
    if name == "token_classification":
        said, end, tags = ask(" ".join(line["text"]), ignore_labels=[]), 0, []
        for word in line["text"]:
            tags += [[it["entity"] for it in said if it["start"] <= end < it["end"]][:1]]
            end += len(word) + 1
        return tags
    said = {it["label"]: it["score"] for it in ask(line["text"], top_k=None)}
    if name == "multi_label":
        return sorted(label for label, score in said.items() if score > 0.5)
    return max(said.values()) if name == "regression" else max(said, key=said.__getitem__)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("classification", "text-classification"),
        ("multi_label", "text-classification"),
        ("regression", "text-classification"),
        ("token_classification", "token-classification"),
        ("instruction", "text-generation"),
    ],
)
def test_a_pipeline_says_what_predict_says(name: str, kind: str, run_of: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "label"} for row in ROWS[name][:6]]
    new, out = write(tmp_path / "new.jsonl", rows), tmp_path / "said.jsonl"
    assert main(["predict", str(run_of(name)), "--data.source", str(new), "--output", str(out)]) == 0
    settings = {"truncation": True} if kind == "text-classification" else {}
    ask = pipeline(kind, model=str(run_of(name) / "model"), **settings)
    for line in map(json.loads, out.read_text(encoding="utf-8").splitlines()):
        said, written = read_pipeline(name, ask, line), line["prediction"]
        if name == "instruction":
            assert said[-1] == {"role": "assistant", "content": said[-1]["content"]}
            assert said[-1]["content"].strip() == written
        elif name == "token_classification":
            assert said == [[tag] if tag != MISSED else [] for tag in written]
        else:
            assert said == (pytest.approx(written, rel=1e-5) if name == "regression" else written)


@pytest.mark.parametrize("name", ["classification", "multi_label", "regression"])
def test_a_pipeline_is_asked_about_pairs(name: str, run_of: Callable[[str], Path]) -> None:
    task: Any = make_task(TaskConfig(name=name, text_pair_column="more"), ExamplesConfig())
    assert '{"text": "a text", "text_pair": ' in task.code()
    found: dict[str, Any] = {"folder": str(run_of(name) / "model")}
    exec(task.code(), found)
    found["ask"]({"text": "a long text " * 100, "text_pair": "another one"})  # which is cut


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
def test_a_pipeline_that_joins_tokens_says_the_tag_of_each_word(run_of: Callable[[str], Path]) -> None:
    run = run_of("token_classification")
    settings: dict[str, Any] = {"aggregation_strategy": "first", "ignore_labels": []}
    ask = pipeline("token-classification", model=str(run / "model"), **settings)
    for line in map(json.loads, (run / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()):
        text = " ".join(line["text"])
        said = [(word, it["entity_group"]) for it in ask(text) for word in text[it["start"] : it["end"]].split()]
        tags = [tag.removeprefix("B-").removeprefix("I-") for tag in line["prediction"] if tag != MISSED]
        assert [tag for _, tag in said] == tags
        assert all(whole.startswith(word) for (word, _), whole in zip(said, line["text"], strict=False))  # one is cut


def test_two_processes_say_what_one_says(run_of: Callable[[str], Path]) -> None:
    (folder,) = {run_of(name).parents[1] for name in ROWS}
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(CONFIGS / "accelerate" / "two_processes_cpu.yaml")]
    command += [judged_runs.__file__, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    one = judged_runs.figures(folder, make_accelerator())
    assert one.keys() == set(attnkit.tasks)
    for rank in (0, 1):
        two = json.loads((folder / f"figures-{rank}.json").read_text(encoding="utf-8"))
        assert two["num_processes"] == 2
        for name, figures in two["figures"].items():
            # A row too many, or one too few, would change a thousandth: sums of two processes, and on some processors
            # where numbers lie in memory, change the last digits.
            assert figures == pytest.approx(one[name], rel=1e-6, abs=1e-7)
            summary = json.loads((folder / name / "run" / "summary.json").read_text(encoding="utf-8"))
            assert figures == pytest.approx(summary["held_out"], rel=1e-4)


def class_names(run: Path) -> list[str]:
    return list(json.loads((run / "model" / "config.json").read_text(encoding="utf-8")).get("label2id", []))


@pytest.mark.parametrize("name", ROWS)
def test_unknown_options_and_metrics_are_named(name: str) -> None:
    with pytest.raises(UsageError, match=r"task\.options: \w+ takes no option 'strid'"):
        make_task(TaskConfig(name=name, options={"strid": 3}), ExamplesConfig())
    if name == "multiple_choice":
        with pytest.raises(UsageError, match=r"task\.metrics: no metric 'macro_f1' for task 'multiple_choice'"):
            make_task(TaskConfig(name=name, metrics=["macro_f1"]), ExamplesConfig())  # choices have no classes
    with pytest.raises(UsageError, match=rf"task\.metrics: no metric 'acuracy' for task '{name}': .*allowed"):
        make_task(TaskConfig(name=name, metrics=["acuracy"]), ExamplesConfig())
    with pytest.raises(UsageError, match=r"no metric 'one' .*\ntask\.metrics: no metric 'two'"):
        make_task(TaskConfig(name=name, metrics=["one", "two"]), ExamplesConfig())


@pytest.mark.parametrize("name", ROWS)
def test_no_setting_of_a_task_is_left_unread(name: str) -> None:
    settings = {"label_names": ["O", "B-x"], "text_pair_column": "pair"}
    read = {"label_names": {"classification", "multi_label", "token_classification"}}
    read["text_pair_column"] = {"classification", "multi_label", "regression", "multiple_choice", "instruction"}
    for key, value in settings.items():
        refused = pytest.raises(UsageError, match=rf"task\.{key}: task '{name}' .*: leave it out")
        with nullcontext() if name in read[key] else refused:
            make_task(TaskConfig(name=name, **{key: value}), ExamplesConfig())


@pytest.mark.parametrize("name", ROWS)
def test_no_metric_can_be_named_so_that_its_worst_is_kept(name: str) -> None:
    kinds = attnkit.tasks[name].judged
    fit = [key for key, metric in metrics.items() if set(metric.judges) & kinds.keys()]
    task = make_task(TaskConfig(name=name, metrics=fit), ExamplesConfig())
    for metric, right in {"loss": "min", **{key: metrics[key].mode for key in fit}}.items():
        wrong = "max" if right == "min" else "min"
        for mode in (right, wrong):
            run = FinetuneRun(training=TrainingConfig(best_metric=metric, best_mode=mode))
            refused = pytest.raises(UsageError, match=rf"keep the worst {metric}: set it to '{right}'")
            with refused if mode == wrong else nullcontext():
                check_best_metric(run, task)
    for metric in ("eval_loss", f"eval_{fit[0]}", f"{fit[0]}_loss"):
        with pytest.raises(UsageError, match=rf"training\.best_metric: this run has no metric '{metric}'"):
            check_best_metric(FinetuneRun(training=TrainingConfig(best_metric=metric)), task)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data.sequence_length", 0], "data.sequence_length: 0 must be from 2 to 16777216"),
        (["--data.sequence_length", 2], "data.sequence_length: 2 leaves no room for text"),
        (["--model.pooling", "eos"], "model.pooling: 'eos' reads the state of an end token"),
        (["--training.best_metric", "acuracy"], "training.best_metric: this run has no metric 'acuracy': did you mean"),
        (["--training.best_metric", "accuracy"], "training.best_mode: 'min' would keep the worst accuracy: set it to"),
        (["--training.frozen_layers", 2], "training.frozen_layers: 2 is more than the 1 layers"),
        (["--adapter.method", "lore"], "adapter.method: unknown method 'lore': did you mean"),
        (["--adapter.method", "prompt_tuning"], "'prompt_tuning' does not merge into weights"),
        (["--adapter.method", "lora", "--adapter.options.rank", 3], "adapter.options: no option 'rank'"),
        (["--adapter.method", "lora", "--adapter.options.lora_dropout", -1], "must be at least 0 and finite, not -1"),
        (["--grid.batch_sizes", "[0]"], "grid.batch_sizes: 0 must be 1 or more"),
        (["--grid.seeds", "[1, 2, 1]"], "grid.seeds: 1 is there twice; give it once"),
        (["--grid.learning_rates", "[0.01, 1e-2]"], "grid.learning_rates: 0.01 is there twice; give it once"),
        (["--grid.batch_sizes", "[4, 4]"], "grid.batch_sizes: 4 is there twice; give it once"),
        (["--task.label_names", "[]"], "task.label_names: is an empty list; name the labels in the order of"),
        (["--task.label_names", "[a, a]"], "task.label_names: 'a' is there twice; give it once"),
        (["--task.metrics", "[accuracy, accuracy]"], "task.metrics: 'accuracy' is there twice; give it once"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    flags: list, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finetune("classification", tmp_path, *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_adapter_trains_few_weights_and_is_merged(tmp_path: Path) -> None:
    flags = ("--adapter.method", "lora", "--adapter.options", "{r: 2, use_dora: true}")
    assert finetune("classification", tmp_path, *flags) == 0
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["trained_parameters"] < summary["parameters"] / 2
    saved = load_file(run / "adapter" / "adapter_model.safetensors")
    assert summary["trained_parameters"] == sum(it.numel() for it in saved.values())
    from transformers import AutoModelForSequenceClassification

    merged = AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]


PEERS = [
    ("token_classification", "bert"),
    ("question_answering", "bert"),
    ("sequence_to_sequence", "t5"),
    ("sequence_to_sequence", "marian"),
    ("instruction", "gpt2"),
]


LAYERS = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of transformers, each with a tokenizer that has what such models are given."""
    folder = tmp_path_factory.mktemp("peers")
    texts = [text for row in rows_of("definitions", 100) for text in row.values()]
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=400))
    size = {"vocab_size": 400, "pad_token_id": 0}
    models = {
        "bert": BertForMaskedLM(BertConfig(**size, **TINY, intermediate_size=32)),
        "gpt2": GPT2LMHeadModel(GPT2Config(**size, n_embd=16, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=2)),
        "marian": MarianMTModel(
            MarianConfig(
                **size,
                d_model=16,
                max_position_embeddings=128,
                decoder_start_token_id=0,
                eos_token_id=2,
                forced_eos_token_id=2,
                **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in LAYERS.items()},
            )
        ),
        "t5": T5ForConditionalGeneration(
            T5Config(**size, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
        ),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize(("name", "peer"), PEERS)
def test_models_of_transformers_go_through_the_same_pipe(
    name: str, peer: str, peers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "examples.jsonl", ROWS[name])
    words = ["finetune", "--task.name", name, "--data.source", source, "--training.output_dir", tmp_path / "run"]
    words += ["--data.sequence_length", 128, "--data.held_out_fraction", 0.4, "--model.path", peers / peer]
    words += ["--training.max_steps", 2, "--training.warmup_steps", 0, "--tracking.progress", "false"]
    words += [word for word in FLAGS.get(name, []) if "task.options" in word or (word.isdecimal() and word != "128")]
    assert main([str(word) for word in words]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--training.per_device_batch_size", "3"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["model_type"] == peer
    do_as_the_card_says(tmp_path / "run" / "model")
    for figure, value in summary["held_out"].items():
        assert f"{figure} {show(value)}" in line
    assert main([*map(str, words), "--training.max_steps", "3", "--resume"]) == 0
    sinusoids = 2 * 128 * 16 if peer == "marian" else 0
    assert summary["trained_parameters"] == summary["parameters"] - sinusoids
