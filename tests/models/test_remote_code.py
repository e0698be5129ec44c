"""A saved model with its code loads, with equal logits, where attnkit is not installed."""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
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
        model.save_pretrained(folder + "/again")
        transformers.AutoModelForTokenClassification.from_pretrained(folder + "/again", trust_remote_code=True)
        assert "trust_remote_code=True" in open(folder + "/again/README.md").read()
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


SCORER = """
@attnkit.scorers.register("written")
class Written(attnkit.Scorer):
    'score(q, k) = q · (k - mean(k)) / √d'

    def map_key(self, key, positions):
        return key - key.mean(-1, keepdim=True)
"""
LOADED = {
    "plain": "import attnkit" + SCORER,
    "as": "import attnkit as ak" + SCORER.replace("attnkit.", "ak."),
    "names": "from attnkit.attention import (  # both\n    Scorer,\n    scorers,\n)" + SCORER.replace("attnkit.", ""),
    "two": "import torch as th, os.path, attnkit" + SCORER.replace("key - key", "th.abs(key) - key"),
    "first": "import attnkit; import torch" + SCORER.replace("key - key", "torch.abs(key) - key"),
    "second": "import torch; import attnkit" + SCORER.replace("key - key", "torch.abs(key) - key"),
    "in_if": "if True: import torch, attnkit" + SCORER,
    "in_try": "try:\n\timport attnkit, no_such_module\nexcept ImportError:\n\timport attnkit" + SCORER,
    "umlaut": "'é'; import attnkit; 'é'; from attnkit.errors import UsageError" + SCORER,
    "of_attnkit": "import attnkit\nfrom attnkit.attention.scorers.base import Scorer" + SCORER,
    "testing": "import attnkit\nfrom attnkit.testing import check_scorer" + SCORER,
    "script": "import attnkit"
    + SCORER
    + 'if __name__ == "__main__":\n    from attnkit.testing import check_scorer\n    check_scorer(Written)\n',
}
REFUSED = {
    "module": ("import attnkit.attention", r"written.py:1: import attnkit.attention: is not exported as a module"),
    "module_as": ("import attnkit\nimport attnkit.attention as aa", r":2: import attnkit.attention as aa: is not exp"),
    "module_from": ("import attnkit\nfrom attnkit.models import checks", ":2: .*import the names needed, with from"),
    "name": ("import attnkit\nfrom attnkit import AttnKitConfig", ":2: .*: AttnKitConfig is not exported: take only"),
    "star": ("import attnkit\nfrom attnkit import *", r":2: .*: \* is not exported: take only Attention, "),
    "of_testing": (
        "import attnkit\nfrom attnkit.testing import check_scorer\ncheck_scorer",
        ':2: .*: attnkit.testing is not exported: use it under if __name__ == "__main__":',
    ),
    "of_training": ("import attnkit\nfrom attnkit.training.average import WeightAverage", ":2: .* not exported"),
    "attribute": ("import attnkit as attnkit\nattnkit.AttnKitConfig", ":2: attnkit.AttnKitConfig is not exported: use"),
    "helper": (
        "import attnkit\nfrom helper_here import f",
        ":2: .*helper_here import f: is not installed.*into this file",
    ),
    "helper_later": ("import attnkit\ndef f():\n    import helper_here", ":3: import helper_here: is not installed"),
    "helper_two": ("import torch, helper_here; import attnkit", ":1: import torch, helper_here: is not installed"),
    "relative": ("import attnkit\nfrom .helper_here import f", r":2: from .helper_here import f: is not installed"),
    "file": ("import attnkit\nprint(__file__)", ":2: __file__ is another place"),
    "dynamic": ("import attnkit, importlib\nimportlib.import_module('json')", ":2: .*import_module imports what"),
    "continued": ("if True: \\\n    import torch, attnkit", "written.py:3: .*put each on a line of its own"),
}


@pytest.fixture
def own_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_scorer.py").write_text(OWN_SCORER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(scorers, "of_ones_own", None)
    dict.pop(scorers, "of_ones_own")
    monkeypatch.delitem(sys.modules, "own_scorer", raising=False)
    __import__("own_scorer")


def load_without_attnkit(jobs: dict[str, str], tmp_path: Path) -> None:
    """Load folders, each with its Auto class, in a process that has all site-packages but attnkit's."""
    # -S leaves out the .pth file that makes an editable one importable.
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "attnkit" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "HF_HOME": str(tmp_path / "cache"),
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-S", "-c", LOADER, json.dumps(jobs)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
    # A process knows one class for each Auto class, and two have the same.
    *others, last = ((folder, Path(folder).name) for folder in expected)
    for jobs in (dict(others), dict([last])):
        load_without_attnkit(jobs, tmp_path)
    for folder, logits in expected.items():
        # Some processors round by where weights lie in memory.
        assert torch.allclose(logits, torch.load(f"{folder}/outputs.pt"), atol=1e-6), folder


def test_a_part_without_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = type("Nowhere", (scorers["dot"],), {"__module__": "nowhere"})
    monkeypatch.setitem(scorers, "nowhere", nowhere)
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer="nowhere"))
    with pytest.raises(UsageError, match="Nowhere is written in no file"):
        save_with_code(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture
def model_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AttnKitForCausalLM]:
    """A function that makes a model with the scorer "written" of a file below the test's folder."""
    monkeypatch.setitem(scorers, "written", None)
    monkeypatch.syspath_prepend(tmp_path)

    def make(file: str) -> AttnKitForCausalLM:
        dict.pop(scorers, "written", None)
        name = file.removesuffix(".py").replace("/", ".")
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delitem(sys.modules, name.partition(".")[0], raising=False)
        importlib.import_module(name)
        return AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer="written")).eval()

    return make


def test_files_of_ones_own_load_where_attnkit_is_not_installed(
    tmp_path: Path, model_of: Callable[[str], AttnKitForCausalLM]
) -> None:
    expected = {}
    for case, source in LOADED.items():
        (tmp_path / f"own_{case}.py").write_text(source, encoding="utf-8")
        model = model_of(f"own_{case}.py")
        folder = tmp_path / "saved" / case
        save_with_code(model, folder)
        inputs = {"input_ids": torch.randint(3, 20, (2, 6))}
        torch.save(inputs, folder / "inputs.pt")
        with torch.no_grad():
            expected[str(folder)] = model(**inputs)[0]
    load_without_attnkit(dict.fromkeys(expected, "AutoModelForCausalLM"), tmp_path)
    for folder_of, logits in expected.items():
        assert torch.equal(logits, torch.load(f"{folder_of}/outputs.pt")), folder_of


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_load_is_refused(
    case: str, tmp_path: Path, model_of: Callable[[str], AttnKitForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, said = REFUSED[case]
    package = tmp_path / f"own_{case}"
    package.mkdir()
    monkeypatch.syspath_prepend(package)
    monkeypatch.delitem(sys.modules, "helper_here", raising=False)
    (package / "helper_here.py").write_text("f = abs\n", encoding="utf-8")
    (package / "written.py").write_text(source + "\n" + SCORER, encoding="utf-8")
    model = model_of(f"own_{case}/written.py")
    with pytest.raises(UsageError, match=said):
        save_with_code(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("name", "encoding", "said"),
    [
        ("my-scorers.py", "utf-8", r"my-scorers.py: its name is no Python identifier: rename the file"),
        ("own_latin.py", "latin-1", r"own_latin.py: cannot be read .*export needs it as Python in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_taken_over_is_refused(
    name: str, encoding: str, said: str, tmp_path: Path, model_of: Callable[[str], AttnKitForCausalLM]
) -> None:
    source = f"# -*- coding: {encoding} -*-\n# é\nimport attnkit\n" + SCORER.replace("√", "the root of ")
    (tmp_path / name).write_text(source, encoding=encoding)
    model = model_of(name)
    with pytest.raises(UsageError, match=said):
        save_with_code(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("own_scorer")
def test_two_files_of_one_name_are_refused(tmp_path: Path, model_of: Callable[[str], AttnKitForCausalLM]) -> None:
    (tmp_path / "own_place").mkdir()
    (tmp_path / "own_place" / "own_scorer.py").write_text("import attnkit" + SCORER, encoding="utf-8")
    model_of("own_place/own_scorer.py")
    model = AttnKitForCausalLM(
        AttnKitConfig(**SIZES | {"num_hidden_layers": 2}, layer_scorers=["of_ones_own", "written"])
    )
    with pytest.raises(UsageError, match=r"own_scorer.py: has the name of .*own_scorer.py, .*: rename one of them"):
        save_with_code(model, tmp_path / "model")
