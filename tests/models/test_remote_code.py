"""A saved model with its code loads, with equal logits, where attnkit is not installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForPermutationLM
from attnkit.attention import scorers
from attnkit.errors import UsageError
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.remote_code import ENTRIES, save_with_code

LOADER = """
import importlib.util, json, sys
import torch, transformers
assert importlib.util.find_spec("attnkit") is None, "attnkit is installed here"
for folder, auto_class in json.loads(sys.argv[1]).items():
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
    inputs = torch.load(folder + "/inputs.pt")
    with torch.no_grad():
        torch.save(model(**inputs)[0], folder + "/outputs.pt")
    if auto_class == "AutoModelForCausalLM":
        model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=False)
"""
OWN_SCORER = '''
"""A scorer of one's own."""

import attnkit
import torch
from attnkit import Scorer
from torch import nn
from transformers import initialization as init


@attnkit.scorers.register("of_ones_own")
class OfOnesOwn(Scorer):
    """score(q, k) = w · (q ⊙ k)"""

    def __init__(self, **shape):
        super().__init__(**shape)
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self):
        init.normal_(self.weight)

    def map_query(self, query, positions):
        return query * self.weight[:, None]
'''
SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 16}
PARTS: dict[str, dict[str, Any]] = {
    "AutoModelForCausalLM": {"scorer": "of_ones_own", "position": "t5", "pattern": "sliding_window"},
    "AutoModelForMaskedLM": {"architecture": "encoder", "scorer": "additive", "position": "transformer_xl"},
    "AutoModelForSeq2SeqLM": {"architecture": "encoder-decoder", "scorer": "gaussian", "cross_scorer": "cosine"},
    "AutoModelForPreTraining": {"architecture": "encoder", "pooler": True, "normalizer": "sparsemax"},
    "AutoModelForMultipleChoice": {"scorer": "multiplicative", "position": "learned", "norm": "rmsnorm"},
}


@pytest.fixture
def own_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_scorer.py").write_text(OWN_SCORER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(scorers, "of_ones_own", None)
    dict.pop(scorers, "of_ones_own")
    monkeypatch.delitem(sys.modules, "own_scorer", raising=False)
    __import__("own_scorer")


def test_every_auto_class_is_an_entry() -> None:
    assert {auto_class.__name__: model_class for auto_class, model_class in AUTO_CLASSES.items()} == ENTRIES


@pytest.mark.usefixtures("own_scorer")
def test_loads_where_attnkit_is_not_installed(tmp_path: Path) -> None:
    expected = {}
    heads = [(name, model_class, PARTS.get(name, {})) for name, model_class in ENTRIES.items()]
    permuted = {"architecture": "encoder", "two_stream": True, "position": "transformer_xl"}
    for name, model_class, parts in [*heads, ("AutoModelForPreTraining", AttnKitForPermutationLM, permuted)]:
        folder = tmp_path / model_class.__name__ / name
        model = model_class(AttnKitConfig(**SIZES, **parts)).eval()
        save_with_code(model, folder)
        shape = (2, 3, 6) if name == "AutoModelForMultipleChoice" else (2, 6)
        inputs = {"input_ids": torch.randint(3, 20, shape)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(3, 20, (2, 4))
        torch.save(inputs, folder / "inputs.pt")
        with torch.no_grad():
            expected[str(folder)] = model(**inputs)[0]
    jobs = {folder: Path(folder).name for folder in expected}
    # All site-packages but attnkit's; -S leaves out the .pth file that makes an editable one importable.
    site = tmp_path / "site"
    site.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "attnkit" not in entry.name:
            (site / entry.name).symlink_to(entry)
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "HF_HOME": str(tmp_path / "cache"),
        "PYTHONSAFEPATH": "1",
    }
    *others, last = jobs.items()  # a process knows one class for each Auto class, and two have the same
    for part in (dict(others), dict([last])):
        command = [sys.executable, "-S", "-c", LOADER, json.dumps(part)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for folder, logits in expected.items():
        assert torch.equal(logits, torch.load(f"{folder}/outputs.pt")), folder


def test_a_part_without_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = type("Nowhere", (scorers["dot"],), {"__module__": "nowhere"})
    monkeypatch.setitem(scorers, "nowhere", nowhere)
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer="nowhere"))
    with pytest.raises(UsageError, match="Nowhere is written in no file"):
        save_with_code(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
