"""Whole runs through the command line, from text to a model that is loaded again."""

import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from command_line import Cli, sentences
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from attnkit.attention import scorers
from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load
from attnkit.config.runs import PretrainRun

ROOT = Path(__file__).parents[2]


def test_pretrain_leaves_a_whole_run(finished: Path) -> None:
    files = {"config.yaml", "environment.json", "log.jsonl", "loss.png", "summary.json", "report.html"}
    files |= {"data_manifest.json"}
    assert files | {"checkpoints", "model", "tokenizer"} == {path.name for path in finished.iterdir()}
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["tokens_seen"] == 6 * 4 * 24
    assert summary["model"] == str(finished / "model")
    held_out = summary["held_out"]
    assert held_out["perplexity"] == pytest.approx(math.exp(held_out["loss"]))
    assert held_out["bits_per_byte"] == pytest.approx(
        held_out["loss"] * held_out["tokens"] / held_out["bytes"] / math.log(2)
    )
    assert 0 < held_out["unigram_loss"] < math.log(290)
    assert summary["sample"]["prompt"]


def test_the_model_comes_back_with_its_tokenizer(finished: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert model.config.scorer == "gaussian"
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (len(tokenizer), 24)
    assert tokenizer.model_max_length == 24
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert (
            vars(model.config)[name]
            == {
                "pad_token_id": tokenizer.pad_token_id,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
            }[name]
        )


def test_the_saved_config_repeats_the_run(finished: Path, tmp_path: Path, cli: Cli) -> None:
    again = tmp_path / "again"
    code, _, errors = cli("pretrain", "--config", finished / "config.yaml", "--training.output_dir", again)
    assert (code, errors) == (0, [])
    weights = [AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in (finished, again)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_evaluate_gives_the_held_out_loss_of_the_run(finished: Path, text: Path, cli: Cli) -> None:
    loss = json.loads((finished / "summary.json").read_text())["held_out"]["loss"]
    for path in (finished, finished / "model", finished / "checkpoints" / "step-000006"):
        code, said, _ = cli("evaluate", path)
        assert code == 0
        assert re.match(rf"scored      the held-out part of {text}: \d\d documents, ", said[0])
        assert said[1].startswith(f"loss        {loss:.3f} nats/token, ")
        assert "unigram model" in said[1]


def test_evaluate_scores_all_of_another_text(
    finished: Path, text: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the folder of the command, and without a look at the text that the run was trained on."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(text), str(tmp_path / "gone.txt")))
    (tmp_path / "other.txt").write_text("The cat sees a dog.\n\nA tree.\n")
    monkeypatch.chdir(tmp_path)
    for where in (["--data.source", "other.txt"], ["--data.held_out_source", "other.txt"]):
        code, said, _ = cli("evaluate", "run", *where)
        assert code == 0
        assert said[0].startswith(f"scored      all of {tmp_path / 'other.txt'}: 2 documents, ")
        assert said[0].endswith(" 26 bytes")
        assert "unigram" not in said[1]
    bits, per_token, tokens = (
        float(re.search(pattern, "\n".join(said))[1])
        for pattern in (r"([\d.]+) bits/byte", r"([\d.]+) nats/token", r"(\d+) tokens")
    )
    assert bits == pytest.approx(per_token * tokens / 26 / math.log(2), abs=2e-3)
    code, _, errors = cli("evaluate", "run")
    assert (code, len(errors)) == (2, 1)
    assert "gone.txt" in errors[0]


@pytest.mark.parametrize("way", ["memory", "prepared", "streaming"])
def test_evaluate_names_the_held_out_sources_of_the_run(way: str, config: Path, tmp_path: Path, cli: Cli) -> None:
    """Where the run had its own, no part of its training text is scored."""
    held_out = [tmp_path / f"held{number}.txt" for number in range(2)]
    for number, path in enumerate(held_out):
        path.write_text("\n\n".join(sentences(20, seed=number + 7)), encoding="utf-8")
    flags = ["--config", config, "--data.held_out_source", f"[{held_out[0]}, {held_out[1]}]"]
    flags += {"memory": [], "prepared": ["--data.prepared", tmp_path / "rows"], "streaming": ["--data.streaming=true"]}[
        way
    ]
    assert way != "prepared" or cli("prepare", *flags)[0] == 0
    code, _, errors = cli("pretrain", *flags, "--training.output_dir", tmp_path / "run")
    assert (code, errors) == (0, [])
    code, said, _ = cli("evaluate", tmp_path / "run")
    assert code == 0
    assert said[0].startswith(f"scored      all of {held_out[0]}, {held_out[1]}: 40 documents, ")
    code, said, _ = cli("evaluate", tmp_path / "run", "--data.held_out_source", held_out[1])
    assert code == 0
    assert said[0].startswith(f"scored      all of {held_out[1]}: 20 documents, ")


def test_evaluate_scores_a_held_out_source_that_is_given(finished: Path, tmp_path: Path, cli: Cli) -> None:
    """Also of a model that no run is around, of which no training text is known."""
    shutil.copytree(finished / "model", tmp_path / "model")
    (tmp_path / "held.txt").write_text("The cat sees a dog.\n\nA tree.\n")
    code, said, _ = cli(
        "evaluate", tmp_path / "model", "--data.held_out_source", tmp_path / "held.txt", "--data.sequence_length=24"
    )
    assert code == 0
    assert said[0].startswith(f"scored      all of {tmp_path / 'held.txt'}: 2 documents, ")


def test_evaluate_does_not_split_the_own_text_anew(finished: Path, cli: Cli) -> None:
    for change in ("--data.held_out_fraction=0.5", "--data.seed=1", "--data.documents=line"):
        code, _, errors = cli("evaluate", finished, change)
        assert (code, len(errors)) == (2, 1)
        assert re.search(r"data\.\w+: .* would split the run's own text in another way", errors[0])


def test_a_run_is_evaluated_from_any_folder(config: Path, text: Path, tmp_path: Path, cli: Cli, monkeypatch) -> None:
    monkeypatch.chdir(text.parent)
    common = ("--config", config, "--data.source", text.name, "--training.max_steps", "1")
    assert cli("pretrain", *common, "--training.output_dir", tmp_path / "run")[0] == 0
    monkeypatch.chdir(tmp_path)
    code, said, errors = cli("evaluate", "run")
    assert (code, errors) == (0, [])
    assert said[0].startswith(f"scored      the held-out part of {text}: ")


def test_generate_goes_on_from_a_prompt(finished: Path, cli: Cli) -> None:
    arguments = ("generate", finished, "--prompt", "The cat", "--max_new_tokens", "8")
    first, second = cli(*arguments), cli(*arguments)
    assert first == second
    assert first[0] == 0
    assert first[1][0].startswith("The cat")
    assert cli(*arguments, "--seed", "1")[1] != first[1]
    greedy = cli(*arguments, "--temperature", "0")
    assert greedy == cli(*arguments, "--temperature", "0", "--seed", "1")
    assert cli("generate", finished / "model", "--max_new_tokens=2")[0] == 0
    assert cli("generate", "--prompt", "The cat", "--max_new_tokens", "8", finished) == first
    assert cli("generate", "--prompt=The cat", f"--path={finished}", "--max_new_tokens", "8") == first


def test_a_run_that_has_not_finished_says_how_to_use_it(finished: Path, tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    newest = run / "checkpoints" / "step-000006"
    for arguments in (["generate"], ["evaluate"], ["export", "--remote-code"]):
        words = [run, tmp_path / "new"] if "export" in arguments else [run]
        code, _, errors = cli(*arguments, *words)
        assert (code, len(errors)) == (2, 1)
        assert errors[0] == (
            f"attnkit: error: model {run}: the run is not finished: go on with `attnkit pretrain --config "
            f"{run / 'config.yaml'} --resume`, or give its newest checkpoint, {newest}"
        )
    assert cli("generate", newest, "--max_new_tokens", "2")[0] == 0
    assert cli("export", "--remote-code", newest, tmp_path / "new")[0] == 0
    assert (tmp_path / "new" / "tokenizer.json").is_file()
    shutil.rmtree(run / "checkpoints")
    assert cli("generate", run)[2][0].endswith("--resume`")


def test_a_run_goes_on_where_it_stopped(finished: Path, tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-000006")
    common = ("pretrain", "--config", finished / "config.yaml", "--training.output_dir", run)
    code, _, errors = cli(*common)
    assert code == 2
    assert "already holds a run" in errors[0]
    assert not (run / "model").exists()
    code, _, errors = cli(*common, "--resume")
    assert (code, errors) == (0, [])
    resumed, whole = (AutoModelForCausalLM.from_pretrained(folder / "model").state_dict() for folder in (run, finished))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    code, _, errors = cli(*common, "--resume", "--model.scorer", "dot", "--data.seed", "5")
    assert code == 2
    assert len(errors) == 1
    assert "is of another run: data.seed was 0 and is 5; model.scorer was 'gaussian' and is 'dot'" in errors[0]
    saved = (run / "config.yaml").read_text()
    whole_lines = saved.find("#", len(saved) // 2)
    for cut, said in ((whole_lines, "it ends before imports"), (0, "the file is empty")):
        (run / "config.yaml").write_text(saved[:cut])
        code, _, errors = cli(*common, "--resume")
        assert (code, len(errors)) == (2, 1)
        assert f"{run / 'config.yaml'} is damaged (" in errors[0]
        assert said in errors[0]
        assert errors[0].endswith("write it again with the same command and --print_config")
    (run / "config.yaml").write_text(saved)
    assert cli(*common, "--overwrite", "--training.max_steps", "3")[0] == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 3


def test_pretraining_goes_on_from_a_saved_model(finished: Path, config: Path, tmp_path: Path, cli: Cli) -> None:
    arguments = ("pretrain", "--config", config, "--training.output_dir", tmp_path / "run", "--training.max_steps", "3")
    without_model = tmp_path / "without_model.yaml"
    without_model.write_text(config.read_text().replace("model: {", "# model: {"))
    arguments = ("pretrain", "--config", without_model, *arguments[3:], "--model.path", finished / "model")
    code, _, errors = cli(*arguments, "--model.hidden_dropout", "0.1")
    assert (code, errors) == (0, [])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").config.hidden_dropout == 0.1


def test_a_masked_model(config: Path, tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    arguments = ("--config", config, "--training.output_dir", run)
    code, said, errors = cli("pretrain", *arguments, "--model.architecture=encoder", "--objective.name=masked")
    assert (code, errors) == (0, [])
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["held_out"]["bits_per_byte"], summary["sample"]) == (None, None)
    assert AutoModelForMaskedLM.from_pretrained(run / "model").config.architecture == "encoder"
    code, said, _ = cli("evaluate", run)
    assert said[1].startswith(f"loss        {summary['held_out']['loss']:.3f} nats/token, perplexity")


def test_a_tokenizer_of_its_own(text: Path, config: Path, tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "tokenizer"
    arguments = ("tokenizer", "--data.source", text, "--tokenizer.vocab_size", "280", "--output_dir", folder)
    code, said, errors = cli(*arguments)
    assert (code, errors) == (0, [])
    assert "280 entries" in said[1]
    code, _, errors = cli(*arguments)
    assert code == 2
    assert "holds a tokenizer: replace it by --overwrite" in errors[0]
    assert cli(*arguments, "--overwrite")[0] == 0
    run = tmp_path / "run"
    code, _, errors = cli(
        "pretrain",
        "--config",
        config,
        "--tokenizer.path",
        folder,
        "--training.output_dir",
        run,
        "--training.max_steps=1",
    )
    assert (code, errors) == (0, [])
    assert AutoModelForCausalLM.from_pretrained(run / "model").config.vocab_size == 280


@pytest.fixture
def forget_scorer() -> Iterator[Callable[[], None]]:
    """Forget the user's scorer, as a new process does."""

    def forget() -> None:
        scorers.pop("of_ones_own", None)
        sys.modules.pop("scorer_of_ones_own", None)
        sys.modules.pop("renamed_scorer", None)

    yield forget
    forget()


def test_a_scorer_of_ones_own_works_by_name_in_every_verb(
    config: Path, tmp_path: Path, cli: Cli, forget_scorer: Callable[[], None]
) -> None:
    part = tmp_path / "scorer_of_ones_own.py"
    part.write_text(
        "from attnkit import Scorer, scorers\n\n\n"
        "@scorers.register('of_ones_own')\n"
        "class OfOnesOwn(Scorer):\n"
        "    '''score(q, k) = q · k'''\n"
    )
    labelled = tmp_path / "labelled.csv"
    labelled.write_text(
        "text,label\n" + "".join(f"the {name} {number},{name}\n" for number in range(20) for name in "ab")
    )
    own = tmp_path / "own.yaml"
    own.write_text("imports: [scorer_of_ones_own.py]\nmodel: {scorer: of_ones_own}\n")
    run = tmp_path / "run"
    arguments = ("--config", config, "--config", own, "--training.output_dir", run, "--training.max_steps", "2")
    code, _, errors = cli("pretrain", *arguments)
    assert (code, errors) == (0, [])

    def in_a_new_process(*arguments: str | Path) -> tuple[int, list[str]]:
        forget_scorer()
        code, _, errors = cli(*arguments)
        return code, errors

    tune = ("finetune", "--data.source", labelled, "--data.sequence_length", "8", "--training.max_steps", "1")
    for number, path in enumerate((run, run / "model", run / "checkpoints" / "last")):
        tuned = tmp_path / f"tuned{number}"
        assert in_a_new_process("generate", path, "--max_new_tokens", "3") == (0, [])
        assert in_a_new_process("evaluate", path) == (0, [])
        assert in_a_new_process("scale", "count", path) == (0, [])
        assert in_a_new_process("export", path, tmp_path / f"code{number}", "--remote-code") == (0, [])
        assert in_a_new_process(*tune, "--model.path", path, "--training.output_dir", tuned) == (0, [])
        assert load(FinetuneRun, ["--config", str(tuned / "config.yaml")]).imports == [str(part)]
        assert in_a_new_process("scale", "count", tuned / "model") == (0, [])
    assert in_a_new_process("scale", "count", own) == (0, [])
    moved = part.rename(tmp_path / "elsewhere.py")
    verbs = [(verb, run) for verb in ("generate", "evaluate")] + [("export", "--remote-code", run, tmp_path / "new")]
    verbs += [("scale", "count", run), (*tune, "--model.path", run, "--training.output_dir", tmp_path / "new")]
    for arguments in verbs:
        code, errors = in_a_new_process(*arguments)
        assert (code, len(errors)) == (2, 1)
        assert re.fullmatch(
            rf"attnkit: error: {run}/config\.yaml:\d+: imports: {part}: no such file: "
            "put it back, or give its new place as --imports FILE",
            errors[0],
        )
    (tmp_path / "new_place").mkdir()
    for name in ("renamed_scorer.py", part.name):
        moved = moved.rename(tmp_path / "new_place" / name)
        assert in_a_new_process("evaluate", run, "--imports", moved) == (0, [])
        assert in_a_new_process("evaluate", tmp_path / "tuned0", "--imports", moved) == (0, [])
        new = ("--data.source", labelled, "--output", tmp_path / f"{name}.jsonl")
        assert in_a_new_process("predict", tmp_path / "tuned0", *new, "--imports", moved) == (0, [])
    arguments = (*tune, "--model.path", run, "--imports", moved, "--training.output_dir", tmp_path / "new")
    assert in_a_new_process(*arguments) == (0, [])


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "tokenizer"])
def test_print_config_prints_what_config_takes_back(verb: str, tmp_path: Path, cli: Cli) -> None:
    code, said, _ = cli(verb, "--print_config", "--data.seed", "3")
    path = tmp_path / "printed.yaml"
    path.write_text("\n".join(said))
    assert code == 0
    assert "  seed: 3" in said
    assert cli(verb, "--config", path, "--print_config")[1] == said


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "pretrain").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_pretraining_configs_are_valid(path: Path) -> None:
    assert load(PretrainRun, ["--config", str(path)]).training.output_dir.startswith("runs/")


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "finetune").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_fine_tuning_configs_are_valid(path: Path) -> None:
    assert load(FinetuneRun, ["--config", str(path)]).training.output_dir.startswith("runs/")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_before_the_first_step_ends_a_run_with_exit_code_0(
    config: Path, cli: Cli, tmp_path: Path, name: str
) -> None:
    own = tmp_path / f"stops_{name.lower()}.py"
    own.write_text(f"import os, signal\n\nos.kill(os.getpid(), signal.{name})\n")
    before = signal.getsignal(signal.SIGTERM)
    folder = tmp_path / "run"
    code, said, complained = cli(
        "pretrain", "--config", str(config), "--imports", str(own), "--training.output_dir", str(folder)
    )
    assert (code, complained) == (0, [])
    assert said[-1].startswith(f"stopped by {name} outside of training")
    assert not folder.exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_resume_names_each_damaged_file(config: Path, finished: Path, tmp_path: Path, cli: Cli) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))
    command = ("pretrain", "--config", config, "--training.output_dir", folder, "--training.max_steps", 7, "--resume")
    files = [*(folder / "checkpoints" / "step-000006").iterdir(), *(folder / "tokenizer").iterdir()]
    files += [folder / "log.jsonl", folder / "config.yaml"]
    assert len(files) >= 12
    for path in files:
        whole = path.read_bytes()
        changes = {"truncated": whole[: len(whole) // 2], "flipped": bytes([whole[0] ^ 1]) + whole[1:], "deleted": None}
        if path.name in ("log.jsonl", "COMPLETE"):
            del changes["deleted"]  # a run may begin a new log; without the mark a checkpoint was never finished
        if path.name == "log.jsonl":
            del changes["truncated"]  # as a crash leaves it
        for change, content in changes.items():
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            before = {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()}
            code, said, errors = cli(*command)
            assert (code, said, len(errors)) == (2, [], 1), (path, change)
            assert path.name in errors[0], change
            assert before == {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()}
            path.write_bytes(whole)
    (folder / "model" / "config.json").unlink()  # what a run makes at its end is made again
    (folder / "summary.json").write_text("{")
    assert cli(*command)[0] == 0
    assert json.loads((folder / "summary.json").read_text())["steps"] == 7


def test_a_run_says_at_its_start_what_it_will_do(config: Path, tmp_path: Path, cli: Cli) -> None:
    run = ["--training.output_dir", tmp_path / "run", "--training.max_steps", "1", "--training.warmup_steps", "0"]
    _, said, _ = cli("pretrain", "--config", config, *run, "--tracking.progress", "true")
    plan = (
        r"AttnKitForCausalLM on sdpa, [\d,]+ parameters; steps 0 to 1, each of 4 rows out of \d+; "
        r"1 process on \w+; into "
    )
    assert re.fullmatch(plan + re.escape(str(tmp_path / "run")), said[0])
