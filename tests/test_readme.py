"""What the README shows runs as it stands there."""

import random
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel, pipeline

import attnkit
from attnkit.cli import VERBS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The command lines of the README that start with a program, continued lines joined, comments dropped."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == program]


def test_it_is_short_and_starts_with_a_command() -> None:
    assert len(README.splitlines()) <= 150
    assert README.splitlines().index("```sh") < 25


def test_the_scorer_of_ones_own_works_by_name_and_keeps_the_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, check = (block for block in blocks("python") if "Centred" in block)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_scorers.py").write_text(source)
    section = next(block for block in blocks("yaml") if "imports" in block)
    (tmp_path / "run.yaml").write_text(section)
    try:
        from attnkit.config.load import load
        from attnkit.config.runs import PretrainRun

        run = load(PretrainRun, ["--config", "run.yaml"])
        assert run.model.scorer == "centred"
        assert run.model.scorer_options == yaml.safe_load(section)["model"]["scorer_options"]
        exec(check, {"Centred": attnkit.scorers["centred"]})
    finally:
        attnkit.scorers.pop("centred", None)


def test_a_saved_run_loads_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer

    tokenizer = train_tokenizer(["The function returns the value of the key."] * 3, TokenizerConfig(vocab_size=270))
    config = attnkit.AttnKitConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, scorer="gaussian"
    )
    folder = tmp_path / "runs/demo/pretrain/model"
    attnkit.AttnKitForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(next(block for block in blocks("python") if "from_pretrained" in block), {})
    assert capsys.readouterr().out.startswith("The function returns")


SMALL_TRAINING = (
    "--training.max_steps=2 --training.warmup_steps=1 --training.save_steps=1 --training.per_device_batch_size=4"
)
SMALL = {
    "pretrain": f"{SMALL_TRAINING} --tracking.progress=false --tokenizer.vocab_size=290 "
    "--model.hidden_size=24 --model.num_hidden_layers=1 --model.num_attention_heads=2 --model.num_key_value_heads=null "
    "--model.head_dim=null --model.intermediate_size=null",
    "finetune": f"{SMALL_TRAINING} --tracking.progress=false",
    "generate": "--max_new_tokens=3",
    "scale": "",
}


def made_small(words: list[str]) -> list[str]:
    """A command of the README with less to do; what it names itself stays, but for texts of the demo."""
    _, verb, *rest = words
    flags = SMALL.get(verb, "").split()
    if verb in ("pretrain", "finetune") and "--data.source" not in rest and "--resume" not in rest:
        flags += ["--data.source", "my.csv" if verb == "finetune" else "texts/*.txt"]
        flags += ["--data.text_column=review", "--task.label_column=stars"] if verb == "finetune" else []
    return [verb, *rest, *flags]


def test_attnkit_commands_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on models and texts of a few words, in a folder where the files are that the README speaks of."""
    draw = random.Random(0)
    words = "the cat sees a small red house and runs away".split()  # noqa: SIM905
    sentences = [" ".join(draw.choices(words, k=8)) for _ in range(200)]
    (tmp_path / "texts").mkdir()
    for name in ("texts/one.txt", "texts/two.txt", "other.txt"):
        (tmp_path / name).write_text("\n\n".join(draw.sample(sentences, 100)))
    rows = [f"{sentence} {number},{number % 2}\n" for number, sentence in enumerate(sentences[:40])]
    (tmp_path / "my.csv").write_text("review,stars\n" + "".join(rows))
    (tmp_path / "new.csv").write_text("review\n" + "\n".join(sentences[:3]) + "\n")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=31, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )
    theirs.save_pretrained(tmp_path / "checkpoints" / "gpt2")
    monkeypatch.chdir(tmp_path)
    shown = commands("attnkit")
    assert {words[1] for words in shown} >= set(VERBS) - {"tokenizer", "prepare"}
    for command in shown:
        assert main(made_small(command)) == 0, f"{command}: {capsys.readouterr().err}"
    assert main(["evaluate", "runs/stars"]) == 0
    capsys.readouterr()
    (tmp_path / "all.csv").write_text("review,stars\nthe cat,0\na house,1\nruns away,1\n")
    assert main(["evaluate", "runs/stars", "--data.source", "all.csv"]) == 0
    assert re.search(r"^all  .*\n(.*\n)*examples +3$", capsys.readouterr().out, flags=re.MULTILINE)
    assert pipeline("text-classification", "runs/labels/model")("the cat")[0]["label"] in ("0", "1")
    held = {path.name for path in (tmp_path / "runs" / "stars").iterdir()}
    assert held <= set(re.findall(r"`([\w.]+)/?`", README))


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands("make"):
        assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE), words


def test_every_part_is_named() -> None:
    for family in ("scorers", "normalizers", "patterns", "positions", "objectives", "tasks"):
        row = next(line for line in README.splitlines() if line.startswith(f"| `{family}` |"))
        assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(getattr(attnkit, family)), family
