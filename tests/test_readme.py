"""What the README shows runs as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

import attnkit

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


@pytest.mark.parametrize("words", commands("attnkit"), ids=lambda words: words[1])
def test_attnkit_commands_are_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, files and values are checked as far as that goes without training for minutes."""
    from attnkit.cli import VERBS

    verb = VERBS[words[1]]
    if not verb.words:
        from importlib import import_module

        from attnkit.config.load import load

        monkeypatch.chdir(ROOT)
        run_class = getattr(import_module(verb.run[0]), verb.run[1])
        assert load(run_class, words[2:]) is not None


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands("make"):
        assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE), words


def test_every_part_is_named() -> None:
    for family in ("scorers", "normalizers", "patterns", "positions", "objectives", "tasks"):
        row = next(line for line in README.splitlines() if line.startswith(f"| `{family}` |"))
        assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(getattr(attnkit, family)), family
