"""Fine-tuning from the command line to a folder that `pipeline` runs, and what the command refuses."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
    pipeline,
)

import attnkit
from attnkit.cli import main
from attnkit.config.finetune_run import FinetuneRun, GridConfig
from attnkit.config.load import load
from attnkit.config.runs import PretrainRun
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.recipes.finetune import padding_side
from attnkit.recipes.grid import Member, Setting, runs_of, say, summarize
from attnkit.training.settings import TrainingConfig

ROOT = Path(__file__).parents[2]
SENTENCES = [f"{opening} {noun} {verb}" for opening in ("the", "a", "this") for noun in "xyz" for verb in ("is", "was")]
TEXTS = {label: [f"{text} {word}" for text in SENTENCES] for label, word in {"pos": "good", "neg": "bad"}.items()}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "reviews.csv"
    rows = [f"{text},{label}" for label, texts in TEXTS.items() for text in texts]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pretrained models of three kinds, each with its tokenizer: ours, an encoder and a decoder of transformers."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = train_tokenizer([text for texts in TEXTS.values() for text in texts], TokenizerConfig(vocab_size=280))
    size = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 2}
    models = {
        "attnkit": attnkit.AttnKitForCausalLM(attnkit.AttnKitConfig(**size, **special, scorer="multiplicative")),
        "masked": attnkit.AttnKitForMaskedLM(
            attnkit.AttnKitConfig(**size, architecture="encoder", pooler=True, pad_token_id=0)
        ),
        "bert": BertForMaskedLM(BertConfig(**size, intermediate_size=32, pad_token_id=0)),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64)),
        "llama": LlamaForCausalLM(LlamaConfig(**size, intermediate_size=16, max_position_embeddings=64)),
        "t5": T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokenizer),
                d_model=16,
                d_kv=8,
                d_ff=16,
                num_layers=1,
                num_heads=2,
                decoder_start_token_id=0,
            )
        ),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    bare = AutoTokenizer.from_pretrained(folder / "gpt2", pad_token=None)
    bare.save_pretrained(folder / "gpt2")
    return folder


def finetune(examples: Path, output: Path, *flags: object) -> int:
    return main(
        [
            "finetune",
            *("--data.source", str(examples), "--data.held_out_fraction", "0.3", "--data.sequence_length", "32"),
            *("--training.output_dir", str(output), "--training.max_steps", "30", "--training.eval_steps", "15"),
            *("--training.learning_rate", "1e-2", "--training.warmup_steps", "3", "--tracking.progress", "false"),
            *map(str, flags),
        ]
    )


def read_summary(output: Path) -> dict:
    return json.loads((output / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("verb", ["finetune", "pretrain", "evaluate"])
def test_an_encoder_is_no_causal_model(
    verb: str, saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb == "finetune":
        code = finetune(examples, tmp_path / "run", "--model.path", saved / "bert", "--task.name", "instruction")
    else:
        (tmp_path / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
        flags = [verb, "--data.source", tmp_path / "text.txt", "--data.documents", "line", "--data.sequence_length", 16]
        flags += [saved / "bert"] if verb == "evaluate" else ["--model.path", saved / "bert"]
        flags += ["--training.output_dir", tmp_path / "run"] * (verb == "pretrain")
        code = main(list(map(str, flags)))
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert code == 2
    assert f"model {saved / 'bert'}: BertLMHeadModel sees the tokens after the one that it predicts" in error
    assert "give a causal model as model.path" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["attnkit", "bert", "gpt2"])
def test_any_saved_model_learns_the_task_and_runs_in_a_pipeline(
    saved: Path, examples: Path, tmp_path: Path, name: str
) -> None:
    assert finetune(examples, tmp_path, "--model.path", saved / name) == 0
    summary = read_summary(tmp_path)
    assert summary["held_out"]["accuracy"] == summary["held_out"]["macro_f1"] == 1.0
    assert summary["baseline"]["accuracy"] == pytest.approx(0.5, abs=0.1)
    assert summary["started_from"] == str(saved / name)
    assert (tmp_path / "loss.png").stat().st_size > 1000
    classify = pipeline("text-classification", model=str(tmp_path / "model"))
    said = classify(["the x is good", "this y was bad"], batch_size=2)
    assert [answer["label"] for answer in said] == ["pos", "neg"]


SMALL = {"vocab_size": 280, "num_labels": 2, "pad_token_id": 0}
UNKNOWN = ("gpt2", "multiple_choice")
READERS = {
    "attnkit": lambda: attnkit.AttnKitForCausalLM(
        attnkit.AttnKitConfig(**SMALL, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL, n_embd=16, n_layer=1, n_head=2, n_positions=64)),
    "xlnet": lambda: XLNetLMHeadModel(XLNetConfig(**SMALL, d_model=16, n_layer=1, n_head=2, d_inner=16)),
    "bert": lambda: BertForMaskedLM(
        BertConfig(**SMALL, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("name", "task"),
    # transformers has no multiple choice of GPT-2
    [(name, task) for name in READERS for task in ("classification", "multiple_choice") if (name, task) != UNKNOWN],
)
def test_padding_changes_no_prediction(
    name: str, side: str, task: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    READERS[name]().save_pretrained(tmp_path / "base")
    said = {} if side == "right" else {"padding_side": side}
    AutoTokenizer.from_pretrained(saved / "bert", **said).save_pretrained(tmp_path / "base")
    texts = [f"{text} {'and so on ' * (number % 4)}" for number, text in enumerate(SENTENCES)]
    rows: list[dict] = [{"text": text, "label": number % 2} for number, text in enumerate(texts)]
    if task == "multiple_choice":
        rows = [row | {"choices": [row["text"], "the other"]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    flags = ("--model.path", tmp_path / "base", "--task.name", task, "--training.max_steps", 4)
    assert finetune(tmp_path / "rows.jsonl", tmp_path / "run", *flags) == 0
    lines = (tmp_path / "run" / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    probabilities = [json.loads(line)["probability"] for line in lines]
    flags = ("--training.per_device_batch_size", "1", "--output", str(tmp_path / "alone.jsonl"))
    assert main(["predict", str(tmp_path / "run"), "--data.source", str(tmp_path / "rows.jsonl"), *flags]) == 0
    alone = (tmp_path / "alone.jsonl").read_text(encoding="utf-8").splitlines()
    by_text = {line["text"]: line["probability"] for line in map(json.loads, alone)}
    expected = [by_text[json.loads(line)["text"]] for line in lines]
    assert probabilities == pytest.approx(expected, rel=1e-4)
    if task == "classification" and name != "xlnet":  # whose memories pipelines of transformers divide into no rows
        ask = pipeline("text-classification", model=str(tmp_path / "run" / "model"), truncation=True)
        said = ask([json.loads(line)["text"] for line in lines], batch_size=len(lines))
        assert [it["score"] for it in said] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("head", "side"), [("xlnet", "left"), ("bert", "right"), ("gpt2", "right")])
def test_the_side_of_padding_is_known_where_rows_leave_no_room_for_it(
    head: str, side: str, saved: Path, tmp_path: Path
) -> None:
    READERS[head]().save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(saved / "bert", model_max_length=9)
    row = {"input_ids": list(range(5, 14)), "attention_mask": [1] * 9}
    assert padding_side(model, row, tokenizer=tokenizer) == side


@pytest.mark.parametrize("num_types", [0, 2])
def test_token_types_are_given_to_a_model_that_tells_them_apart(num_types: int, saved: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        saved / "bert", model_input_names=["input_ids", "token_type_ids", "attention_mask"]
    )
    separator = (tokenizer.sep_token, tokenizer.sep_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {separator[0]}", pair=f"$A {separator[0]} $B:1 {separator[0]}:1", special_tokens=[separator]
    )
    assert 1 in tokenizer("a", "b")["token_type_ids"]
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [json.dumps({"text": text, "other": text, "label": name}) for name in TEXTS for text in TEXTS[name]]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    flags = ["--tokenizer.path", tmp_path / "tokenizer", "--task.text_pair_column", "other", "--training.max_steps", 2]
    flags += ["--model.architecture", "encoder", "--model.type_vocab_size", num_types, "--model.hidden_size", 16]
    flags += ["--model.num_hidden_layers", 1, "--model.num_attention_heads", 2, "--training.eval_steps", 2]
    assert finetune(tmp_path / "rows.jsonl", tmp_path / "run", *flags) == 0
    ask = pipeline("text-classification", model=str(tmp_path / "run" / "model"))
    line = json.loads((tmp_path / "run" / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert ("token_type_ids" in ask.tokenizer(line["text"], line["other"])) == bool(num_types)
    assert ask({"text": line["text"], "text_pair": line["other"]})["label"] == line["prediction"]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # which PEFT asks for
@pytest.mark.parametrize("method", ["lora", "ia3"])
@pytest.mark.parametrize("name", ["attnkit", "masked", "bert", "gpt2"])
def test_an_adapter_beside_its_base_is_the_merged_model(
    saved: Path, examples: Path, tmp_path: Path, name: str, method: str
) -> None:
    flags = ("--model.path", saved / name, "--adapter.method", method, "--training.max_steps", 15)
    assert finetune(examples, tmp_path, *flags) == 0
    base = AutoModelForSequenceClassification.from_pretrained(saved / name, num_labels=2, pad_token_id=0)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids = torch.randint(4, 260, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def test_the_saved_folder_gives_the_reported_figures(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--model.path", saved / "attnkit", "--training.max_steps", 4, "--training.warmup_steps", 1)
    assert finetune(examples, tmp_path, *flags) == 0
    lines = (tmp_path / "predictions" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    predicted = [json.loads(line) for line in lines]
    classify = pipeline("text-classification", model=str(tmp_path / "model"))
    assert [answer["label"] for answer in classify([it["text"] for it in predicted])] == [
        it["prediction"] for it in predicted
    ]
    right = [it["prediction"] == it["gold"] for it in predicted]
    held_out = read_summary(tmp_path)["held_out"]
    assert held_out["accuracy"] == sum(right) / len(right)
    for size in (1, 5, 16):
        capsys.readouterr()
        assert main(["evaluate", str(tmp_path), "--training.per_device_batch_size", str(size)]) == 0
        said = capsys.readouterr().out
        for name, value in held_out.items():
            assert f"{name} {value:.4f}" in said


def test_without_a_path_weights_are_random_and_the_tokenizer_is_trained(examples: Path, tmp_path: Path) -> None:
    flags = ["--tokenizer.vocab_size", 280, "--model.hidden_size", 16, "--model.num_hidden_layers", 1]
    assert finetune(examples, tmp_path, *flags, "--model.architecture", "encoder", "--model.scorer", "cosine") == 0
    summary = read_summary(tmp_path)
    assert (summary["started_from"], summary["scorer"]) == (None, "cosine")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == 280
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.config.label2id == {"neg": 0, "pos": 1}


def test_rows_are_as_long_as_the_model_has_positions(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{text},{label}" for label, texts in TEXTS.items() for text in texts[:2] for _ in range(10)]
    (tmp_path / "repeated.csv").write_text("\n".join(["text,label", *rows, "a,pos", "a,neg"]) + "\n")
    flags = ["--data.source", tmp_path / "repeated.csv", "--training.output_dir", tmp_path / "run"]
    flags += ["--training.max_steps", "1", "--training.warmup_steps", "0", "--tracking.progress", "false"]
    words = ["finetune", "--model.path", saved / "gpt2", "--data.held_out_fraction", "0.1", *flags]
    assert main([str(word) for word in words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^rows +of at most 64 tokens$", said, re.MULTILINE)
    assert re.search(
        r"^split +47.6% are held out: 37 of 42 repeat .* side, and 2 are of texts with several", said, re.MULTILINE
    )
    assert load(FinetuneRun, ["--config", str(tmp_path / "run" / "config.yaml")]).data.sequence_length == 64
    assert main([str(word) for word in [*words, "--training.max_steps", "2", "--resume"]]) == 0
    assert main(["predict", str(tmp_path / "run"), "--data.source", str(tmp_path / "repeated.csv")]) == 0


def test_the_same_run_gives_the_same_model(saved: Path, examples: Path, tmp_path: Path) -> None:
    for name in "ab":
        finetune(examples, tmp_path / name, "--model.path", saved / "attnkit", "--training.max_steps", 5)
    states = [
        AutoModelForSequenceClassification.from_pretrained(tmp_path / name / "model").state_dict() for name in "ab"
    ]
    for key, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][key], rtol=0, atol=0)


def test_a_saved_config_repeats_the_run(saved: Path, examples: Path, tmp_path: Path) -> None:
    finetune(examples, tmp_path / "a", "--model.path", saved / "attnkit", "--training.max_steps", 4)
    again = ["finetune", "--config", str(tmp_path / "a" / "config.yaml"), "--training.output_dir", str(tmp_path / "b")]
    assert main(again) == 0
    assert read_summary(tmp_path / "a")["held_out"] == read_summary(tmp_path / "b")["held_out"]


def test_two_processes_score_each_row_once(saved: Path, examples: Path, tmp_path: Path) -> None:
    flags = ["--model.path", saved / "attnkit", "--training.max_steps", 4, "--training.warmup_steps", 1]
    assert finetune(examples, tmp_path / "one", *flags, "--training.per_device_batch_size", 6) == 0
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", ROOT / "configs" / "accelerate" / "two_processes_cpu.yaml"),
        *(ROOT / "finetune" / "classification.py", "--config", tmp_path / "one" / "config.yaml"),
        *("--training.output_dir", tmp_path / "two", "--training.per_device_batch_size", "3"),
    ]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    one, two = read_summary(tmp_path / "one"), read_summary(tmp_path / "two")
    assert one["tokens_seen"] == two["tokens_seen"]
    assert two["held_out"]["accuracy"] == one["held_out"]["accuracy"]
    assert two["held_out"]["loss"] == pytest.approx(one["held_out"]["loss"], rel=1e-4)  # float32 sums in another order


def test_two_processes_make_all_runs_of_a_grid(saved: Path, examples: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", ROOT / "configs" / "accelerate" / "two_processes_cpu.yaml"),
        *(ROOT / "finetune" / "classification.py", "--data.source", examples, "--data.held_out_fraction", "0.3"),
        *("--model.path", saved / "attnkit", "--training.max_steps", "2", "--training.output_dir", tmp_path / "run"),
        *("--training.warmup_steps", "0", "--grid.seeds", "[1, 2]", "--training.per_device_batch_size", "4"),
    ]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "grid.json").read_text(encoding="utf-8"))
    found = [read_summary(Path(folder))["held_out"]["loss"] for folder in report["settings"][0]["runs"]]
    assert report["settings"][0]["held_out"]["loss"]["mean"] == pytest.approx(sum(found) / 2)
    assert len(set(found)) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_weights_learn_in_whole_ones(dtype: str, saved: Path, examples: Path, tmp_path: Path) -> None:
    base = BertForMaskedLM.from_pretrained(saved / "bert", dtype=dtype)
    base.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(saved / "bert").save_pretrained(tmp_path / "base")
    flags = ("--model.path", tmp_path / "base", "--training.learning_rate", 1e-5, "--training.max_steps", 2)
    assert finetune(examples, tmp_path / "run", *flags, "--training.warmup_steps", 0) == 0
    learnt = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    before, after = base.bert.encoder.layer[0].intermediate.dense.weight, learnt.bert.encoder.layer[0]
    assert learnt.dtype == torch.float32
    assert not (after.intermediate.dense.weight == before.float()).any()


def test_an_interrupted_run_goes_on_with_the_same_examples_only(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model.path", saved / "attnkit", "--training.max_steps", 6, "--training.save_steps", 3]
    assert finetune(examples, tmp_path, *flags) == 0
    assert finetune(examples, tmp_path, *flags) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert finetune(examples, tmp_path, *flags, "--data.seed", 1, "--resume") == 2
    assert "data.seed was 0 and is 1" in capsys.readouterr().err
    assert finetune(examples, tmp_path, *flags, "--resume") == 0


@pytest.mark.parametrize(
    ("name", "task"), [("bert", "classification"), ("t5", "sequence_to_sequence"), ("gpt2", "instruction")]
)
def test_a_run_goes_on_where_the_model_that_it_began_with_is_gone(
    name: str, task: str, saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(saved / name, tmp_path / "base")
    if task != "classification":
        said = {"decoder_start_token_id": 0} if name == "t5" else {}
        generation = GenerationConfig(**said, eos_token_id=2, num_beams=2, repetition_penalty=5.0, min_new_tokens=3)
        generation.save_pretrained(tmp_path / "base")
    flags = ["--model.path", tmp_path / "base", "--training.schedule", "constant", "--training.eval_steps", 2]
    flags += ["--task.name", task, "--training.max_steps"]
    assert finetune(examples, tmp_path / "whole", *flags, 6) == 0
    assert finetune(examples, tmp_path / "parts", *flags, 4) == 0
    shutil.rmtree(tmp_path / "base")
    assert finetune(examples, tmp_path / "parts", *flags, 6, "--resume") == 0
    assert "going on from" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "whole" / "model").iterdir()} - {"README.md", "tokenizer_config.json"}
    assert ("generation_config.json" in names) == (task != "classification")
    assert "model.safetensors" in names
    for file in ("predictions/held_out.jsonl", *(f"model/{name}" for name in names)):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        (
            "multiple_choice",
            "gpt2",
            r"transformers has no AutoModelForMultipleChoice of 'gpt2': `attnkit import` makes",
        ),
        ("sequence_to_sequence", "gpt2", r"has no AutoModelForSeq2SeqLM of 'gpt2': give a model of another type"),
        ("question_answering", "llama", r"\(it has none named transformer\.…\): `attnkit import` makes a model of it"),
        ("sequence_to_sequence", "attnkit", r"is for architecture 'encoder-decoder', not 'decoder'$"),
        ("classification", "t5", r"a t5 model takes no row of this task and tokenizer \(Each example must contain"),
    ],
)
def test_a_model_without_the_head_of_a_task_is_one_line(
    name: str, model: str, message: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"text": f"the x {n}", "question": "x", "choices": ["a", "b"], "label": {"text": ["x"], "answer_start": [4]}}
        for n in range(6)
    ]
    if name != "question_answering":
        rows = [{**row, "label": str(n % 2)} for n, row in enumerate(rows)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = ["--model.path", saved / model, "--task.name", name]
    assert finetune(source, tmp_path / "run", *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task.name", "clasification"], "unknown task 'clasification': did you mean 'classification'"),
        (["--task.label_column", "stars"], "has no column 'stars' (columns: 'text', 'label'); name it with task.label"),
        (["--model.path", "nowhere/at/all"], "nowhere/at/all"),
        (["--training.best_metric", "f1"], "training.best_metric: this run has no metric 'f1'"),
        (["--data.sequence_length", 200], "data.sequence_length: 200 is more than model.max_position_embeddings: 64"),
        (["--model.attention_dropout", "0.3"], "model.attention_dropout: the config of "),
    ],
)
def test_mistakes_are_one_line(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list, message: str
) -> None:
    assert finetune(examples, tmp_path / "run", "--model.path", saved / "gpt2", *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("attnkit: error: ")
    assert message in line
    assert not (tmp_path / "run" / "model").exists()


def test_a_tokenizer_that_cannot_pad(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AutoTokenizer.from_pretrained(saved / "gpt2", eos_token=None).save_pretrained(tmp_path / "tokenizer")
    flags = ["--model.path", saved / "gpt2", "--tokenizer.path", tmp_path / "tokenizer"]
    assert finetune(examples, tmp_path / "run", *flags) == 2
    assert "has no pad_token and no eos_token to pad with" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_demo_compares_the_same_model_under_the_same_budget() -> None:
    configs = ROOT / "configs"
    classifier = ["--config", str(configs / "finetune" / "classification.yaml")]
    pretrained = load(FinetuneRun, classifier)
    random = load(FinetuneRun, [*classifier, "--config", str(configs / "finetune" / "random_weights.yaml")])
    demo = load(PretrainRun, ["--config", str(configs / "pretrain" / "demo.yaml")])
    assert pretrained.model.path == random.tokenizer.path == f"{demo.training.output_dir}/model"
    built = replace(demo.model, max_position_embeddings=demo.data.sequence_length, pooling=pretrained.model.pooling)
    assert random.model == built
    assert random.task == pretrained.task
    assert random.data == pretrained.data
    assert replace(random.training, output_dir="") == replace(pretrained.training, output_dir="")


def test_finished_runs_are_shown_side_by_side(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--training.max_steps", 2, "--training.warmup_steps", 1]
    assert finetune(examples, tmp_path / "a", "--model.path", saved / "attnkit", *flags) == 0
    assert finetune(examples, tmp_path / "b", "--model.path", saved / "gpt2", *flags) == 0
    capsys.readouterr()
    assert main(["summary", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    assert main(["summary", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == whole
    assert main(["summary", str(tmp_path / "a"), str(examples.parent), str(tmp_path / "c")]) == 2
    assert capsys.readouterr().err.count(": no finished run is in this folder") == 2
    assert main(["summary", str(tmp_path)]) == 0
    *_, title, ours, theirs, baseline = capsys.readouterr().out.splitlines()
    assert title.split() == ["classification,", "one", "of", "2", "classes", "loss", "accuracy", "macro_f1"]
    assert ours.startswith(f"  from {saved / 'attnkit'}")
    assert theirs.startswith(f"  from {saved / 'gpt2'}")
    assert baseline.split()[:4] == ["majority", "class", "-", "0.5000"]


def test_a_summary_needs_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path)]) == 2
    assert "no finished run is in this folder: there is no summary.json" in capsys.readouterr().err


def test_rates_that_differ_little_have_folders_of_their_own(tmp_path: Path) -> None:
    training = TrainingConfig(output_dir=str(tmp_path))
    grid = GridConfig(learning_rates=[1e-5, 1.0000001e-5], seeds=[1, 2], batch_sizes=[2, 4])
    folders = {member.training.output_dir for _, _, member in runs_of(FinetuneRun(training=training, grid=grid))}
    assert len(folders) == 8


@pytest.mark.parametrize(("losses", "tie"), [([2.0, 1.0, 1.0], ", the first of 2 with equal ones"), ([1.0, 2.0], "")])
def test_a_tie_of_a_grid_is_said(losses: list[float], tie: str) -> None:
    groups = {
        Setting(learning_rate=float(number), per_device_batch_size=8): [
            Member(seed=1, folder=Path("run"), figures={"held_out": {"loss": loss}})
        ]
        for number, loss in enumerate(losses)
    }
    report = summarize(groups, {}, best_metric="loss", best_mode="min")
    assert report["best"] == losses.index(1.0)
    assert say(report, Path("grid.json")).splitlines()[-2].endswith(f"by the mean of held-out loss{tie}")


def test_a_grid_goes_on_without_a_setting_that_diverges(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("--grid.learning_rates", "[1e30, 1e-2]", "--grid.seeds", "[1, 2]")
    flags = ("--model.path", saved / "bert", "--training.max_steps", 6, "--training.max_skipped_steps", 1)
    assert finetune(examples, tmp_path / "run", *flags, *grid) == 0
    report = json.loads((tmp_path / "run" / "grid.json").read_text(encoding="utf-8"))
    (setting,), (without,) = report["settings"], report["without_figures"]
    assert (setting["learning_rate"], setting["seeds"], report["best"]) == (1e-2, [1, 2], 0)
    assert (without["learning_rate"], list(without["reasons"])) == (1e30, ["1", "2"])
    assert all("the loss is nan" in reason for reason in without["reasons"].values())
    said = capsys.readouterr().out.splitlines()
    assert said[said.index("learning_rate 1e+30, batch 16: no figures") + 1].startswith("  seed 1: step ")
    grid = ("--grid.learning_rates", "[1e30, 1e29]")
    assert finetune(examples, tmp_path / "none", *flags, *grid) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "grid: no setting has figures; learning_rate 1e+30, batch 16: step " in error
    assert not (tmp_path / "none" / "grid.json").exists()


def test_a_grid_is_chosen_by_held_out_examples_and_reported_on_test_too(
    saved: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    grid = ("--grid.seeds", "[1, 2]", "--grid.learning_rates", "[1e-2, 1e-3]")
    flags = (*grid, "--data.test_source", examples, "--model.path", saved / "bert", "--training.max_steps", 2)
    assert finetune(examples, folder, *flags) == 0
    said = capsys.readouterr().out
    report = json.loads((folder / "grid.json").read_text(encoding="utf-8"))
    first, second = report["settings"]
    assert [(group["learning_rate"], group["seeds"]) for group in (first, second)] == [(0.01, [1, 2]), (0.001, [1, 2])]
    names = [f"rate0.01-batch16-seed{seed}" for seed in (1, 2)]
    assert first["runs"] == [str(folder / name) for name in names]
    summaries = [json.loads((folder / name / "summary.json").read_text(encoding="utf-8")) for name in names]
    for split in ("held_out", "test"):
        losses = [summary[split]["loss"] for summary in summaries]
        assert first[split]["loss"] == {"mean": statistics.mean(losses), "sd": pytest.approx(statistics.stdev(losses))}
        assert first["difference_to_first"][split]["loss"] == {"mean": 0, "sd": 0}
    assert f"  test loss                  {first['test']['loss']['mean']:.4f} ± " in said
    assert report["best"] == int(second["held_out"]["loss"]["mean"] < first["held_out"]["loss"]["mean"])
    rate = report["settings"][report["best"]]["learning_rate"]
    assert f"best of these: learning_rate {rate}, batch 16, by the mean of held-out loss" in said
    assert finetune(examples, folder, *flags) == 2
    assert "already holds a run; go on with the grid by --resume" in capsys.readouterr().err
    assert finetune(examples, tmp_path / "pushed", *flags, "--push_to_hub", "some/one") == 2
    assert "training.push_to_hub: a grid has a model for each of its runs" in capsys.readouterr().err
    assert not (tmp_path / "pushed").exists()
    assert finetune(examples, folder, *flags, "--resume") == 0
    for words in (["evaluate"], ["predict", "--data.source", str(examples)], ["generate"]):
        capsys.readouterr()
        assert main([words[0], str(folder), *words[1:]]) == 2
        assert re.search(r"run: is a folder of runs: give one of those inside \(rate0", capsys.readouterr().err)
    summaries[0].pop("test")
    (folder / names[0] / "summary.json").write_text(json.dumps(summaries[0]), encoding="utf-8")
    assert finetune(examples, folder, *flags, "--resume") == 2
    assert "has no test figures: it is damaged, or of a run without data.test_source" in capsys.readouterr().err
