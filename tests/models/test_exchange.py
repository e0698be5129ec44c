"""`attnkit import` and `attnkit export`."""

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
    new, used = str(tmp_path / "new"), str(tmp_path)
    for arguments, message in (
        (["import", str(tmp_path / "none"), new], "none has no config.json: give the folder of a checkpoint"),
        (["import", folder, new], "is a model of attnkit already: load it as it is"),
        (["export", folder, new], "format: give either --format or --remote-code"),
        (["export", folder, new, "--format", "brt"], "format: unknown name 'brt': did you mean 'bert'"),
        (["export", folder, new, "--format", "gpt2"], "format 'gpt2' cannot say"),
        (["export", folder, used, "--remote-code"], "is in use: give a folder that does not exist"),
        (["export", folder, "--remote-code"], "export needs target: attnkit export RUN_OR_MODEL TARGET"),
        (["import", folder], "import needs target: attnkit import SOURCE TARGET"),
    ):
        assert main(arguments) == 2
        line = capsys.readouterr().err
        assert line.startswith("attnkit: error: ")
        assert line.count("\n") == 1
        assert message in line
    assert not Path(new).exists()
