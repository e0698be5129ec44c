"""Checkpoints of transformers that are not whole, or not of one model: one line, and nothing is left at the target."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import build
from safetensors.torch import load_file, save_file

from attnkit import AttnKitConfig, AttnKitForCausalLM, from_hf
from attnkit.cli import main
from attnkit.errors import UsageError
from attnkit.models.foreign import FORMATS

LAYERS = {"marian": "decoder_layers", "t5": "num_decoder_layers", "gpt2": "n_layer", "xlnet": "n_layer"}
WEIGHTS = "model.safetensors"
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of every format, its first class with a head."""
    folder = tmp_path_factory.mktemp("saved")
    for model_type, form in FORMATS.items():
        build(list(form.heads)[1]).save_pretrained(folder / model_type)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Folder:
    def copy(model_type: str) -> Path:
        return Path(shutil.copytree(saved / model_type, tmp_path / "checkpoint"))

    return copy


def reword(folder: Path, **fields: Any) -> None:
    """Other fields in config.json; None takes one away."""
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {key: value for key, value in config.items() if value is not None or key not in fields}
    (folder / "config.json").write_text(json.dumps(kept))


def rewrite(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> None:
    """Other tensors; None takes one away."""
    tensors = {key: change(key, tensor) for key, tensor in load_file(folder / WEIGHTS).items()}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def refuse(folder: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From Python and from the command line, the same."""
    target = folder.parent / "target"
    with pytest.raises(UsageError, match=said) as raised:
        from_hf(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)
    capsys.readouterr()
    assert main(["import", str(folder), str(target)]) == 2
    assert capsys.readouterr().err == f"attnkit: error: {raised.value}\n"
    assert not target.exists()


def one_of_a_layer(folder: Path) -> str:
    """A weight that no other name stands for."""
    return next(
        key for key in sorted(load_file(folder / WEIGHTS)) if re.search(r"\.1\..*weight$|\.1\.rel_attn\.q$", key)
    )


@pytest.mark.parametrize("model_type", FORMATS)
def test_every_weight_has_to_be_there(model_type: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder(model_type)
    key = one_of_a_layer(given)
    rewrite(given, lambda name, tensor: None if name == key else tensor)
    refuse(given, rf"no weights for {re.escape(key)}: config.json and weights have to be those of one whole", capsys)


@pytest.mark.parametrize("model_type", FORMATS)
def test_layers_are_as_many_as_config_says(model_type: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given, name = folder(model_type), LAYERS.get(model_type, "num_hidden_layers")
    layers = json.loads((given / "config.json").read_text())[name]
    reword(given, **{name: layers + 1})
    refuse(given, r"no weights for .* more: config.json and weights", capsys)
    reword(given, **{name: layers - 1})
    refuse(given, r"no place for .* more: config.json and weights", capsys)


@pytest.mark.parametrize("model_type", FORMATS)
def test_shapes_and_numbers_are_looked_at(model_type: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder(model_type)
    key = one_of_a_layer(given)
    shape = list(load_file(given / WEIGHTS)[key].shape)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        rewrite(given, lambda name, tensor, wrong=wrong: torch.full_like(tensor, wrong) if name == key else tensor)
        refuse(given, rf"NaN or infinity in {re.escape(key)}: ", capsys)
    for dtype in (torch.long, torch.bool, torch.complex64):
        rewrite(given, lambda name, tensor, dtype=dtype: tensor.to(dtype) if name == key else tensor)
        refuse(
            given,
            rf"{'complex' if dtype.is_complex else 'whole'} numbers, which no weights are, in {re.escape(key)}: ",
            capsys,
        )
    rewrite(given, lambda name, tensor: tensor[:-1].real.clone() if name == key else tensor)
    refuse(given, rf"{re.escape(key)} is \[{shape[0] - 1}.*\], not \[{shape[0]}", capsys)


@pytest.mark.parametrize("model_type", FORMATS)
def test_the_class_has_to_be_of_the_model_type(
    model_type: str, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    given = folder(model_type)
    other = next(name for name in FORMATS if name != model_type)
    class_name = next(iter(FORMATS[other].heads))
    reword(given, architectures=[class_name])
    said = f"config.json: model_type '{model_type}' and architectures '{class_name}', of '{other}', disagree"
    refuse(given, said, capsys)


@pytest.mark.parametrize("model_type", FORMATS)
def test_more_layers_than_a_machine_holds_are_counted_without_them(
    model_type: str, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    given, name = folder(model_type), LAYERS.get(model_type, "num_hidden_layers")
    reword(given, **{name: 10**9})
    refuse(given, r"describes weights of .* GiB, and this machine has", capsys)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "vast": (
        lambda it: reword(it, vocab_size=10**12),
        r"describes weights of .* GiB, and this machine has",
    ),
    "no weights": (lambda it: (it / WEIGHTS).unlink(), "cannot be loaded: OSError: .*no file named model.safetensors"),
    "cut off": (lambda it: (it / WEIGHTS).write_bytes((it / WEIGHTS).read_bytes()[:900]), "cannot be loaded: "),
    "vocabulary": (lambda it: reword(it, vocab_size=54), r"wte.weight is \[53, 30\], not \[54, 30\]"),
    "positions": (lambda it: reword(it, n_positions=50), r"wpe.weight is \[40, 30\], not \[50, 30\]"),
    "unknown type": (lambda it: reword(it, model_type="gtp2"), r"no import of 'gtp2': did you mean 'gpt2'\?"),
    "no type": (lambda it: reword(it, model_type=None), "config.json: names no model_type: give the config.json"),
    "no class": (lambda it: reword(it, architectures=None), r"names no class in 'architectures': write \[the class"),
    "a config": (
        lambda it: reword(it, architectures=["GPT2Config"]),
        r"no import of GPT2Config of 'gpt2': did you mean 'GPT2",
    ),
    "a list": (lambda it: (it / "config.json").write_text("[1]"), "config.json: holds list and no mapping"),
    "nothing": (lambda it: (it / "config.json").write_text(""), "config.json:1: not JSON"),
    "half": (lambda it: (it / "config.json").write_text('{"model_type": "gpt2"'), "config.json:1: not JSON"),
    "a word": (lambda it: reword(it, n_layer="two"), "n_layer"),
    "heads": (lambda it: reword(it, n_head=7), "cannot be loaded: "),
    "activation": (lambda it: reword(it, activation_function="gelo"), "cannot be loaded: KeyError: .*gelo"),
    "padding": (
        lambda it: reword(it, pad_token_id=99),
        "pad_token_id must be at least 0 and less than vocab_size 53, not 99",
    ),
    "generation": (lambda it: (it / "generation_config.json").write_text("{"), "generation_config.json:1: not JSON"),
    "no config": (lambda it: (it / "config.json").unlink(), "has no config.json: give the folder of a checkpoint"),
    "no folder": (shutil.rmtree, "has no config.json: give the folder of a checkpoint"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(name: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder("gpt2")
    damage, said = DAMAGE[name]
    damage(given)
    refuse(given, said, capsys)


def test_what_is_no_folder_of_another_library(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder("gpt2")
    refuse(given / "config.json", "config.json is a file: give the folder that it is in", capsys)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 31}
    own = AttnKitForCausalLM(AttnKitConfig(**sizes))
    own.save_pretrained(given.parent / "own")
    refuse(given.parent / "own", "is a model of attnkit already: load it as it is", capsys)
    with pytest.raises(UsageError, match="is a model of attnkit already"):
        from_hf(own)


def test_weights_of_another_head_are_left_out_and_named(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    given = folder("gpt2")
    reword(given, architectures=["GPT2Model"], tie_word_embeddings=False)
    tensors = load_file(given / WEIGHTS)
    save_file(tensors | {"lm_head.weight": torch.zeros(53, 30)}, given / WEIGHTS, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, logger="attnkit"):
        from_hf(given)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("attnkit")] == [
        f"{given}: GPT2Model has no lm_head.weight: left out"
    ]


def test_a_new_head_has_no_weights_to_import(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder("bert")
    reword(given, architectures=["BertForSequenceClassification"])
    refuse(
        given, r"no weights for bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias and 1 more", capsys
    )


def test_a_config_of_transformers_is_not_exported(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder("gpt2")
    assert main(["export", str(given), str(given.parent / "target"), "--remote-code"]) == 2
    said = "config.json says model_type 'gpt2', which is none of attnkit: transformers loads it as it is, and `attnkit"
    assert said in capsys.readouterr().err
