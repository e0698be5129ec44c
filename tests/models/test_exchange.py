"""`attnkit import` and `attnkit export`."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.cli import main

SIZES: dict[str, Any] = {"vocab_size": 31, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
IDS = torch.arange(3, 10)[None]


@torch.no_grad()
def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert isinstance(ours, AttnKitForCausalLM)
    assert (ours(IDS).logits - theirs(IDS).logits).abs().max() < 1e-5
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "back"), "--format", "gpt2"]) == 0
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(back(IDS).logits, theirs(IDS).logits)
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "code"), "--remote-code"]) == 0
    assert (tmp_path / "code" / "configuration_attnkit.py").is_file()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("AttnKitForCausalLM with ")
    assert said[1].startswith("GPT2LMHeadModel in ")


@torch.no_grad()
def test_a_scorer_is_replaced_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | {"n_layer": 2})).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    words = ["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]
    assert main([*words, "--scorer", "gaussian", "--scorer_options", "{width: per_dimension}", "--layers", "[1]"]) == 0
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    first, second = (ours.config.scorer_of_layer(index) for index in range(2))
    assert (first[0], second[0], second[1]["width"]) == ("scaled_dot", "gaussian", "per_dimension")
    assert ours(IDS).logits.isfinite().all()
    carried, dropped, new, difference = capsys.readouterr().out.splitlines()[1:]
    assert carried.startswith("carried over: ")
    assert (dropped, new) == ("dropped: nothing", "new: model.decoder.layers.*.attention.scorer.weight")
    assert difference.startswith(
        "new scores of random states from the old ones, in units of their spread, by layer: 1: "
    )
    exact = ["import", str(tmp_path / "theirs"), str(tmp_path / "exact"), "--scorer", "multiplicative"]
    assert main(exact) == 0
    exact = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exact").eval()
    assert (exact(IDS).logits - theirs(IDS).logits).abs().max() < 1e-5


def test_the_page_of_models_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).save_pretrained("checkpoints/gpt2")
    commands, code = (re.findall(rf"^```{kind}\n(.*?)^```", page, flags=re.M | re.S) for kind in ("sh", "python"))
    for line in commands[0].splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0
    names: dict[str, Any] = {}
    exec(code[0], names)
    assert type(names["back"]) is transformers.GPT2LMHeadModel
    assert names["change"].new == ["model.decoder.layers.0.attention.scorer.weight"]


@torch.no_grad()
def test_two_streams_go_both_ways(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "back"), "--format", "xlnet"]) == 0
    back = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(back(IDS).logits, theirs(IDS).logits)
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "code"), "--remote-code"]) == 0
    assert "AutoModelForPreTraining.from_pretrained(folder" in (tmp_path / "code" / "README.md").read_text("utf-8")


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "model")
    config = AttnKitConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=31, scorer="cosine")
    AttnKitForCausalLM(config).save_pretrained(folder)
    new, used, foreign = str(tmp_path / "new"), str(tmp_path), str(tmp_path / "foreign")
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).save_pretrained(foreign)
    for arguments, message in (
        (["import", str(tmp_path / "none"), new], "none has no config.json: give the folder of a checkpoint"),
        (["import", folder, new], "is a model of attnkit already: load it as it is"),
        (["export", folder, new], "format: give either --format or --remote-code"),
        (["export", folder, new, "--format", "brt"], "format: unknown name 'brt': did you mean 'bert'"),
        (["export", folder, new, "--format", "gpt2"], "format 'gpt2' cannot say"),
        (["export", folder, used, "--remote-code"], "is in use: give a folder that does not exist"),
        (["export", folder, "--remote-code"], "export needs target: attnkit export RUN_OR_MODEL TARGET"),
        (["import", folder], "import needs target: attnkit import SOURCE TARGET"),
        (["import", folder, new, "--layers", "[0]"], "layers: needs a scorer"),
        (["import", foreign, new, "--scorer", "gausian"], "unknown scorer 'gausian': did you mean 'gaussian'"),
        (["import", foreign, new, "--scorer", "cosine", "--layers", "[1]"], "layers [1] do not exist: the model has 1"),
    ):
        assert main(arguments) == 2
        line = capsys.readouterr().err
        assert line.startswith("attnkit: error: ")
        assert line.count("\n") == 1
        assert message in line
    assert not Path(new).exists()
