"""What is installed: the dependencies agree with the code and with the tested set, and the wheel works on its own."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import attnkit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {extra: [Requirement(line) for line in lines] for extra, lines in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) and pin.url is None for pin in pins)
    return {canonicalize_name(pin.name): Version(str(pin.specifier)[2:]) for pin in pins}


@pytest.mark.parametrize(
    "requirement", [*DEPENDENCIES, *EXTRAS["metrics"], *EXTRAS["peft"], *EXTRAS["dev"]], ids=lambda it: it.name
)
def test_the_tested_set_lies_in_the_ranges(requirement: Requirement) -> None:
    if requirement.name == "attnkit":
        assert requirement.extras <= EXTRAS.keys()
    else:
        assert requirement.specifier.contains(constraints()[canonicalize_name(requirement.name)])


def test_every_import_is_a_dependency_and_every_dependency_is_imported() -> None:
    imported = (
        {
            name.split(".")[0]
            for path in (ROOT / "attnkit").rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        - sys.stdlib_module_names
        - {"attnkit"}
    )
    distributions = packages_distributions()
    needed = {canonicalize_name(distributions[module][0]) for module in imported}
    declared = {canonicalize_name(requirement.name) for requirement in DEPENDENCIES}
    optional = {canonicalize_name(it.name) for extra in ("tracking", "peft", "lion", "metrics") for it in EXTRAS[extra]}
    assert needed <= declared | optional
    assert declared <= needed


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"attnkit", f"attnkit-{attnkit.__version__}.dist-info"}

    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    binaries = tmp_path / "environment" / "bin"

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "environment")
    run(binaries / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert run(binaries / "attnkit", "--version").split()[-1] == attnkit.__version__

    (tmp_path / "tiny.yaml").write_text(TINY_RUN, encoding="utf-8")
    run(binaries / "attnkit", "pretrain", "--config", "tiny.yaml")
    report = json.loads(run(binaries / "python", "-c", RELOAD).splitlines()[-1])
    assert report["type"] == "AttnKitForCausalLM"
    assert Path(report["file"]).is_relative_to(tmp_path)
    assert report["new_tokens"] == 4


TINY_RUN = """
model: {scorer: cosine, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 64}
tokenizer: {vocab_size: 512}
data: {source: python-docs, sequence_length: 64}
training: {output_dir: run, max_steps: 2, per_device_batch_size: 2, warmup_steps: 1, eval_steps: 2, save_steps: 2}
"""

RELOAD = """
import json, attnkit
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained("run/model"), AutoTokenizer.from_pretrained("run/model")
inputs = tokenizer("A list", return_tensors="pt", add_special_tokens=False)
tokens = model.generate(**inputs, min_new_tokens=4, max_new_tokens=4, do_sample=False)
new_tokens = tokens.shape[1] - inputs["input_ids"].shape[1]
print(json.dumps({"type": type(model).__name__, "file": attnkit.__file__, "new_tokens": new_tokens}))
"""
