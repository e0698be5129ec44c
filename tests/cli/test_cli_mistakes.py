"""Mistakes of the user: one line that names the place, exit code 2, nothing written, nothing but that line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import Cli
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM, BertLMHeadModel

from attnkit.cli import VERBS
from attnkit.data.objectives import objectives

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretran"], r"unknown verb 'pretran': did you mean 'pretrain' or "),
        (["pretrain", "--config", "none.yaml"], r"none\.yaml: no such file"),
        (["generate"], r"generate needs path: attnkit generate RUN_OR_MODEL"),
        (["evaluate", "--data.source", "x"], r"evaluate needs path: attnkit evaluate RUN_OR_MODEL"),
        (["generate", ".", "--promt", "x"], r"command line: unknown key 'promt': did you mean 'prompt'"),
        (["generate", ".", "--top_p", "1.5"], r"command line: top_p: 1\.5 must be more than 0 and at most 1"),
        (["generate", ".", "--seed", "-1"], r"command line: seed: -1 must be at least 0 and at most 4294967295"),
        (["generate", ".", "--seed", "4294967296"], r"command line: seed: 4294967296 must be at least 0"),
        (["generate", ".", "--max_new_tokens", "0"], r"command line: max_new_tokens: 0 must be 1 or more"),
        (["generate", "."], r"model \.: the folder has no config\.json: give that of a run or of a saved model"),
        (["evaluate", "."], r"model \.: the folder has no config\.json"),
        (["export", ".", "new", "--remote-code"], r"model \.: the folder has no config\.json"),
        (["export", "--remote-code", "."], r"export needs target: attnkit export RUN_OR_MODEL TARGET"),
        *[
            (
                [*verb, "r/nosuch"],
                r"'r/nosuch' is no file or folder here, and the hub cannot be .*; give the folder of a run",
            )
            for verb in (["generate"], ["evaluate"])
        ],
        (["generate", ".", "again"], r"command line: 'again' belongs to no flag: write --section\.key value"),
        (
            ["evaluate", ".", "--training.per_device_batch_size=0"],
            r"training\.per_device_batch_size: 0 must be 1 or more",
        ),
        (["import", "", "new"], r"command line: source: is empty: give a value, or leave it out"),
        (["tokenizer", "--output_dir", ""], r"command line: output_dir: is empty: give a value, or leave it out"),
        (["tokenizer", "--tokenizer.path", "x"], r"tokenizer\.path: x is trained already: leave it out"),
    ],
)
def test_mistakes_before_there_is_a_run(
    arguments: list[str], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, errors = cli(*arguments)
    assert (code, said, len(errors)) == (2, [], 1)
    assert re.match(f"attnkit: error: .*{message}", errors[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.scorer", "gausian"], r"model\.scorer: unknown scorer 'gausian': did you mean 'gaussian'"),
        (["--data.source", "none.txt"], r"none\.txt"),
        (["--data.text_column", "body", "--data.source", "{folder}/rows.jsonl"], r"rows\.jsonl.*'body'.*'text'"),
        (["--data.sequence_length", "100000"], r"data\.source: too little text"),
        (["--tokenizer.vocab_size", "30000"], r"tokenizer\.vocab_size: 30000 is more than the text supports"),
        (["--tokenizer.path", "{folder}"], r"tokenizer\.path: .* holds no tokenizer"),
        (["--model.vocab_size", "100"], r"model\.vocab_size: 100 rows in the embedding for the 290 entries"),
        (["--model.pad_token_id", "7"], r"model\.pad_token_id: 7 is not the tokenizer's, 0: leave it out"),
        (
            ["--model.max_position_embeddings", "16"],
            r"data\.sequence_length: 24 is more than model\.max_position_embeddings: 16, the positions that the",
        ),
        (
            ["--model.max_position_embeddings", "16", "--model.position", "rope"],
            r"data\.sequence_length: 24 is more than model\.max_position_embeddings: 16, how far this model",
        ),
        (["--objective.name", "causl"], r"unknown objective 'causl': did you mean 'causal'"),
        (
            ["--objective.name", "masked"],
            r"objective\.name: 'masked' trains model\.architecture encoder, not 'decoder'",
        ),
        (["--model.architecture", "encoder"], r"objective\.name: 'causal' trains model\.architecture decoder"),
        (["--training.num_processes", "2"], r"this run has 1 process but training\.num_processes is 2"),
        (["--training.output_dir", "{folder}/rows.jsonl"], r"training\.output_dir: .*rows\.jsonl is a file"),
        (["--model.path", ""], r"model\.path: is empty: give a value, or leave it out"),
        (
            ["--model.hidden_size", "10000000"],
            r"model\.hidden_size: 10000000, with 1 layers and 290 tokens, takes .* TiB for weights and gradients alone",
        ),
        (["--model.num_hidden_layers", "1000000000"], r"with 1000000000 layers .* this machine has .* make the model"),
        (
            ["--model.hidden_size", "1000000000000"],
            r"model\.hidden_size: must be at most 2147483647, not 1000000000000",
        ),
        (["--model.path", "{folder}"], r"model .*: the folder has no config\.json"),
    ],
)
def test_mistakes_in_a_run_leave_nothing_behind(
    arguments: list[str], message: str, config: Path, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "Some text."}) + "\n")
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    output = [] if "--training.output_dir" in arguments else ["--training.output_dir", str(tmp_path / "run")]
    code, said, errors = cli("pretrain", "--config", config, *output, *arguments)
    assert (code, said, len(errors)) == (2, [], 1)
    assert re.search(message, errors[0])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_changes_that_a_saved_model_cannot_follow(finished: Path, text: Path, cli: Cli, tmp_path: Path) -> None:
    common = ("pretrain", "--data.source", text, "--data.sequence_length", "24", "--model.path", finished / "model")
    for change in ("--model.num_hidden_layers=2", "--model.hidden_size=32", "--model.scorer=dot"):
        code, _, errors = cli(*common, change, "--training.output_dir", tmp_path / "run")
        assert (code, len(errors)) == (2, 1)
        assert re.search(r"not weights of AttnKitForCausalLM \(.*\): change no key of `model`", errors[0])
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_delete_what_it_starts_from(finished: Path, text: Path, cli: Cli) -> None:
    common = ("pretrain", "--data.source", text, "--data.sequence_length", "24", "--model.path", finished)
    code, _, errors = cli(*common, "--training.output_dir", finished, "--overwrite")
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"training\.overwrite: .* holds model\.path: choose another training\.output_dir", errors[0])
    assert (finished / "model").is_dir()


def test_a_classifier_is_no_language_model(finished: Path, tmp_path: Path, cli: Cli) -> None:
    AutoTokenizer.from_pretrained(finished / "model").save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(finished / "model").save_pretrained(tmp_path)
    for verb in ("generate", "evaluate"):
        code, _, errors = cli(verb, tmp_path)
        assert (code, len(errors)) == (2, 1)
        assert re.search(r"these are not weights of AttnKitForCausalLM \(score\..*\): give a model", errors[0])


def test_an_encoder_of_transformers_writes_nothing(finished: Path, tmp_path: Path, cli: Cli) -> None:
    AutoTokenizer.from_pretrained(finished / "model").save_pretrained(tmp_path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=290, **sizes)).save_pretrained(tmp_path)
    code, _, errors = cli("generate", tmp_path)
    assert (code, len(errors)) == (2, 1)
    assert errors[0].startswith(f"attnkit: error: model {tmp_path}: ")
    BertLMHeadModel(BertConfig(vocab_size=290, is_decoder=True, **sizes)).save_pretrained(tmp_path)
    assert cli("generate", tmp_path, "--max_new_tokens", "1")[0] == 0


def test_no_run_begins_inside_another(finished: Path, config: Path, cli: Cli) -> None:
    before = sorted(finished.rglob("*"))
    for inner, flags in (("model", []), ("inner", ["--overwrite"]), ("checkpoints/inner", ["--resume"])):
        code, _, errors = cli("pretrain", "--config", config, "--training.output_dir", finished / inner, *flags)
        assert (code, len(errors)) == (2, 1)
        assert re.search(rf"training\.output_dir: .*{inner} is inside the run {finished}; choose a folder", errors[0])
    assert sorted(finished.rglob("*")) == before


def test_a_folder_of_checkpoints_around_it_is_no_run(config: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    common = ("pretrain", "--config", config, "--training.output_dir", tmp_path / "run")
    assert cli(*common, "--training.max_steps", "1", "--training.warmup_steps", "0")[0] == 0


DAMAGED = {
    "": r"cannot be loaded",
    "[]": r"cannot be loaded",
    '{"model_type": "attnkit"': r"cannot be loaded",
    '{"model_type": "attnkit", "hidden_size": "wide"}': r"hidden_size",
    '{"model_type": "attnkit", "hidden_size": -1}': r"hidden_size must be at least 1, not -1",
    '{"model_type": "attnkit", "scorer": "gone"}': r"unknown scorer 'gone'.*; a part of your own needs its file in",
    '{"model_type": "gone"}': r"cannot be loaded",
}


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_config_of_a_model_is_one_line(content: str, finished: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(content)
    for use in (["generate"], ["evaluate"], ["export", "--remote-code"], ["scale", "count"]):
        target = [tmp_path / "new"] if "export" in use else []
        code, _, errors = cli(*use, tmp_path / "model", *target)
        assert (code, len(errors)) == (2, 1), use
        assert str(tmp_path / "model") in errors[0]
        if use[0] in ("generate", "evaluate"):
            assert re.search(DAMAGED[content], errors[0])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "name", ["summary.json", "config.yaml", "model/tokenizer.json", "checkpoints/step-000006/tokenizer.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"\x00"], ids=repr)
def test_a_damaged_file_of_a_run_is_one_line(
    name: str, content: bytes, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / name).write_bytes(content)
    model = (run / name).parent if name.startswith("checkpoints") else run
    code, _, errors = cli(*(["summary"] if name == "summary.json" else ["generate"]), model)
    assert (code, len(errors)) == (2, 1)
    assert str(model if "tokenizer" in name else run / name) in errors[0]


def test_a_damaged_model_is_named(finished: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"damaged")
    code, _, errors = cli("generate", tmp_path / "model")
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"model .*: cannot be loaded: ", errors[0])


def test_what_is_no_number_and_a_damaged_generation_config_are_named(finished: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text("[1]")
    code, _, errors = cli("generate", tmp_path / "model")
    assert (code, len(errors)) == (2, 1)
    assert "generation_config.json: holds list and no mapping" in errors[0]
    (tmp_path / "model" / "generation_config.json").unlink()
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    damaged = {key: tensor * torch.nan for key, tensor in tensors.items()}
    save_file(damaged, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    for verb in ("generate", "evaluate"):
        code, _, errors = cli(verb, tmp_path / "model")
        assert (code, len(errors)) == (2, 1)
        assert re.search(r"model .*: holds NaN or infinity in .* and \d+ more: give one", errors[0])


def test_a_config_that_its_class_does_not_take_says_no_more(finished: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for fields, said in (
        ({"architectures": ["AttnKitForMaskedLM"]}, "AttnKitForMaskedLM is for architecture 'encoder', not 'decoder'"),
        ({"hidden_size": "wide"}, "Field 'hidden_size' expected int, got str (value: 'wide')"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps(config | fields))
        code, _, errors = cli("export", tmp_path / "model", tmp_path / "new", "--remote-code")
        assert (code, errors) == (2, [f"attnkit: error: model {tmp_path / 'model'}: {said}"])


def test_more_tokens_than_learned_positions(finished: Path, cli: Cli) -> None:
    code, _, errors = cli("generate", finished, "--max_new_tokens", "24")
    assert code == 2
    assert re.search(r"max_new_tokens: .* up to 25 tokens, and the model has 24 learned positions", errors[0])
    assert cli("generate", finished, "--prompt", "The cat")[0] == 0  # the default is what is left


def test_imports_of_a_verb_that_takes_a_run(finished: Path, cli: Cli, tmp_path: Path) -> None:
    code, _, errors = cli("generate", finished, "--imports", tmp_path / "none.py")
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"imports: .*none\.py: no such file", errors[0])


OWN_OBJECTIVE = """
import attnkit
from attnkit.data.objectives.causal import Causal
from attnkit.data.objectives.base import Objective


@attnkit.objectives.register("{name}")
class Own(Objective):
    auto_class, architectures = Causal.auto_class, Causal.architectures

    def example(self, row):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {}['x']", r"{file}:12: KeyError: 'x'$"),
        ("assert False, 'two\\nlines'", r"{file}:12: AssertionError: two lines$"),
    ],
)
def test_what_an_own_objective_raises_is_one_line(body: str, said: str, config: Path, cli: Cli, tmp_path: Path) -> None:
    name = f"failing_{len(body)}"
    file = tmp_path / f"{name}.py"
    file.write_text(OWN_OBJECTIVE.format(name=name, body=body))
    run = ["--training.output_dir", tmp_path / "run", "--imports", file, "--objective.name", name]
    code, _, errors = cli("pretrain", "--config", config, *run)
    objectives.pop(name)
    assert (code, len(errors)) == (2, 1)
    assert re.search("attnkit: error: imports: " + said.format(file=file), errors[0])
    assert not (tmp_path / "run").exists()


def test_every_problem_has_its_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {scorer: gausian}\ntraining: {max_stps: 3}\n")
    code, _, errors = cli("pretrain", "--config", path)
    assert code == 2
    assert [line.split(": ")[:3] for line in errors] == [["attnkit", "error", f"{path}:{line}"] for line in (2, 1)]


def test_ctrl_c_is_no_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ctrl_c.py").write_text("raise KeyboardInterrupt\n")
    assert cli("pretrain", "--imports", tmp_path / "ctrl_c.py") == (130, [], [])


def test_only_the_main_process_speaks_when_it_can(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert cli("--version") == (0, [], [])


def spelling(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_script_ends_with_the_line_and_the_code_of_its_verb() -> None:
    done = spelling("train/pretrain.py", "--config", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "attnkit: error: none.yaml: no such file\n"


@pytest.mark.parametrize(
    "arguments", ["--version", "pretrain --help", "scale --help", "scale memory --help", "scale plan --help"]
)
def test_help_does_not_wait_for_torch(arguments: str) -> None:
    done = spelling("-X", "importtime", "-m", "attnkit", *arguments.split())
    assert done.returncode == 0
    assert done.stdout
    assert "attnkit.cli" in done.stderr
    assert not re.search(r"\b(torch|scipy|transformers|datasets|matplotlib|jsonargparse)\b", done.stderr)


def test_two_processes_say_a_mistake_once() -> None:
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    launch = ["-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/two_processes_cpu.yaml"]
    arguments = ["train/pretrain.py", "--config", "none.yaml"]
    done = subprocess.run(
        [sys.executable, *launch, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode != 0
    assert done.stderr.count("attnkit: error:") == 1
    assert "Traceback" not in done.stderr.partition("attnkit: error:")[0]


def test_a_run_that_was_stopped_before_it_held_anything_begins_again(
    finished: Path, config: Path, tmp_path: Path, cli: Cli
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "config.yaml", run)
    shutil.copytree(finished / "tokenizer", run / "tokenizer")
    again = ["pretrain", "--config", config, "--training.output_dir", run]
    assert cli(*again)[0] == 0
    # An overwrite deletes last what marks a run, so one that is cut short can be repeated.
    shutil.rmtree(run / "tokenizer")
    shutil.rmtree(run / "model")
    assert cli(*again, "--overwrite")[0] == 0
    for mark in ("checkpoints", "log.jsonl"):
        shutil.rmtree(run / mark) if (run / mark).is_dir() else (run / mark).unlink()
    code, _, errors = cli(*again)
    assert code == 2
    assert re.search(r"holds no run, but has .*model", errors[0])


@pytest.mark.parametrize("flag", ["--training.seed", "--model.scorer_options.exponent"])
@pytest.mark.parametrize("text", ["!!timestamp dot", "[" * 3000], ids=["time", "deep"])
def test_a_flag_that_is_no_yaml_is_one_line(flag: str, text: str, cli: Cli) -> None:
    code, _, errors = cli("pretrain", flag, text)
    assert (code, len(errors)) == (2, 1)
    assert flag.removeprefix("--").split(".")[1] in errors[0]


def test_too_little_text_says_what_was_left_out(finished: Path, config: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "few.txt").write_text("\n\n".join(["The cat sees the dog.", "A dog runs."] * 9))
    words = ("--data.source", tmp_path / "few.txt", "--tokenizer.path", finished / "tokenizer")
    code, _, [error] = cli(
        "pretrain",
        "--config",
        config,
        *words,
        "--data.sequence_length",
        "90",
        "--training.output_dir",
        tmp_path / "run",
    )
    assert code == 2
    assert re.search(r"are needed \(16 duplicates were left out\); give more text", error)


@pytest.mark.parametrize("content", ["{}", '{"text": 3}', '{"task": "x"}'])
def test_a_foreign_summary_is_named(content: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "summary.json").write_text(content)
    code, _, errors = cli("summary", tmp_path)
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"summary\.json: is no summary of a run", errors[0])


@pytest.mark.parametrize("length", [1, 10**20])
def test_a_row_length_that_cannot_be(length: int, config: Path, tmp_path: Path, cli: Cli) -> None:
    words = ["--config", config, "--training.output_dir", tmp_path / "run", "--data.sequence_length", length]
    code, _, errors = cli("pretrain", *words)
    assert (code, len(errors)) == (2, 1)
    assert f"data.sequence_length: {length} must be from 2 to" in errors[0]


LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.source", f"{LONG}.txt"], rf"{LONG}\.txt: File name too long: give another path"),
        (["--tokenizer.path", LONG], rf"{LONG}.*: File name too long: give another path"),
        (["--imports", f"{LONG}.py"], rf"{LONG}\.py: File name too long: give another path"),
        (["--training.best_metric", "foo"], r"training\.best_metric: this run has no metric 'foo': allowed: loss"),
        (["--training.ema_decay", "1"], r"training\.ema_decay: 1\.0 must be at least 0 and less than 1"),
        (["--training.from_checkpoint", "nowhere"], r"training\.from_checkpoint: nowhere is no complete checkpoint"),
        (["--training.output_dir", "caf\udce9"], r"training\.output_dir: 'caf\\udce9' is not UTF-8: give another name"),
    ],
)
def test_names_that_no_disk_takes(arguments: list[str], message: str, config: Path, cli: Cli, tmp_path: Path) -> None:
    code, _, errors = cli("pretrain", "--config", config, "--training.output_dir", tmp_path / "run", *arguments)
    assert (code, len(errors)) == (2, 1)
    assert re.search(message, errors[0])
    assert not list(tmp_path.iterdir())


NAME = "first\n\x1b\x85\u2028second"
NAMED = {
    "tokenizer": ["--data.source", NAME],
    "prepare": ["--data.source", NAME, "--data.prepared", "rows"],
    "pretrain": ["--data.source", NAME],
    "finetune": ["--data.source", NAME, "--model.path", "."],
    "generate": [f"./{NAME}"],
    "evaluate": [f"./{NAME}"],
    "predict": [f"./{NAME}", "--data.source", "."],
    "import": [f"./{NAME}", "new"],
    "export": [f"./{NAME}", "new", "--remote-code"],
    "summary": [NAME],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_would_end_the_line_does_not(
    verb: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (NAMED[verb], [*["x"] * len(VERBS[verb].words), "--config", NAME]):
        code, said, errors = cli(verb, *arguments)
        assert (code, said, len(errors)) == (2, [], 1), errors
        assert r"first\n\x1b\x85\u2028second" in errors[0]


def test_a_link_that_leads_back_to_itself(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "it").symlink_to(tmp_path / "it")
    for verb in ("generate", "evaluate", "predict"):
        source = ["--data.source", "new.csv"] if verb == "predict" else []
        code, _, errors = cli(verb, tmp_path / "it", *source)
        assert (code, len(errors)) == (2, 1)
        assert re.search(r"it: a link that leads back to itself: give the folder that is meant", errors[0])
    code, _, errors = cli("pretrain", "--data.source", tmp_path / "it", "--training.output_dir", tmp_path / "run")
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"it: there is no such file or folder; (?!did you mean)", errors[0])


def test_a_file_whose_name_is_not_utf_8(text: Path, config: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "texts").mkdir()
    shutil.copy(text, tmp_path / "texts" / "caf\udce9.txt")
    source = ["--data.source", tmp_path / "texts", "--training.output_dir", tmp_path / "run"]
    assert cli("pretrain", "--config", config, *source)[0] == 0
    assert cli("pretrain", "--config", config, *source, "--resume")[0] == 0


@pytest.mark.parametrize("content", ["{}", '{"files": 5}', '{"files": [3]}', '{"files": [{"path": 1}]}', "[", ""])
def test_a_damaged_manifest_can_be_deleted(
    content: str, finished: Path, config: Path, tmp_path: Path, cli: Cli
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "data_manifest.json").write_text(content)
    again = ["pretrain", "--config", config, "--training.output_dir", run, "--resume"]
    code, _, errors = cli(*again)
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"data_manifest\.json.*: delete it to go on without a look at the files", errors[0])


def test_a_tokenizer_that_is_gone_is_that_of_the_newest_checkpoint(
    finished: Path, config: Path, tmp_path: Path, cli: Cli
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "tokenizer" / "COMPLETE").write_text("{")
    again = ["pretrain", "--config", config, "--training.output_dir", run, "--resume"]
    code, _, errors = cli(*again)
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"tokenizer is damaged \(.*\): delete it, and that of .*step-000006 is taken", errors[0])
    shutil.rmtree(run / "tokenizer")
    assert cli(*again)[0] == 0
    assert (run / "tokenizer" / "COMPLETE").is_file()
