"""Prepared rows: the rows of a run without them, refused where they are not, whole or not there at all."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import Cli
from transformers import AutoModelForCausalLM

from attnkit.data import prepared as prepared_module
from attnkit.errors import UsageError


@pytest.fixture(scope="module")
def own_text(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that tests of this file may change."""
    return Path(shutil.copy(text, tmp_path_factory.mktemp("own") / "text.txt"))


@pytest.fixture(scope="module")
def common(config: Path, own_text: Path) -> list[str | Path]:
    return ["--config", config, "--data.source", own_text]


@pytest.fixture(scope="module")
def rows(common: list, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from attnkit.cli import main

    folder = tmp_path_factory.mktemp("prepared") / "rows"
    assert main(["prepare", *map(str, common), "--data.prepared", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(rows: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rows, tmp_path / "rows"))


def test_a_run_on_prepared_rows_is_the_run_without(common: list, rows: Path, tmp_path: Path, cli: Cli) -> None:
    for name, flags in {"made": [], "prepared": ["--data.prepared", rows]}.items():
        code, _, errors = cli("pretrain", *common, *flags, "--training.output_dir", tmp_path / name)
        assert (code, errors) == (0, [])
    made, prepared = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("made", "prepared"))
    assert made["text"] == prepared["text"]
    assert made["held_out"] == prepared["held_out"]
    weights = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "model").state_dict() for name in ("made", "prepared")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    code, said, _ = cli("evaluate", tmp_path / "prepared")
    assert code == 0
    assert f"{prepared['held_out']['loss']:.3f} nats/token" in said[1]


PROGRAM = """
import sys
from attnkit.cli import main

code = main()
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""

OWN_PART = """
from attnkit import AttnKitForCausalLM, Scorer, scorers


@scorers.register("own")
class Own(Scorer):
    Model: type[AttnKitForCausalLM]
"""


@pytest.mark.parametrize("own", [False, True])
def test_text_is_prepared_without_models(own: bool, common: list, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_PART, encoding="utf-8")
    (tmp_path / "attnkit").write_text(PROGRAM, encoding="utf-8")
    flags = ["--imports", json.dumps([str(tmp_path / "own.py")]), "--model.scorer", "own"] if own else []
    flags += ["--data.prepared", str(tmp_path / "rows")]
    command = [sys.executable, tmp_path / "attnkit", "prepare", *common, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heavy = {"transformers.modeling_utils", "attnkit.models.auto", "attnkit.attention.backends"}
    assert set(done.stderr.split()) & heavy == (heavy if own else set())


def test_what_was_prepared_is_kept(common: list, rows: Path, cli: Cli) -> None:
    before = {path: path.stat().st_mtime_ns for path in rows.rglob("*")}
    code, said, _ = cli("prepare", *common, "--data.prepared", rows)
    assert code == 0
    assert any(re.match(rf"kept +{rows} as it is: it holds just these rows", line) for line in said)
    assert {path: path.stat().st_mtime_ns for path in rows.rglob("*")} == before
    # What the rows do not depend on may differ: another objective that reads the same rows, a mask between documents.
    code, _, errors = cli("prepare", *common, "--data.prepared", rows, "--data.document_mask", "true")
    assert (code, errors) == (0, [])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data.sequence_length", "16"], "tokens of a row was 24 and is 16"),
        (["--data.packing", "best_fit"], "data.packing was 'concatenate' and is 'best_fit'; kind of rows was"),
        (["--data.seed", "3"], "data.seed was 0 and is 3"),
        (["--data.held_out_fraction", "0.3"], "data.held_out_fraction was 0.2 and is 0.3"),
        (["--tokenizer.path", "{other}"], "the tokenizer is another one"),
        (["--tokenizer.vocab_size", "280"], "tokenizer.vocab_size was 290 and is 280"),
    ],
)
def test_rows_of_other_settings_are_refused(
    flags: list[str], said: str, common: list, rows: Path, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    shutil.copytree(finished / "tokenizer", tmp_path / "other")
    tokenizer = json.loads((tmp_path / "other" / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].pop()
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    flags = [flag.format(other=tmp_path / "other") for flag in flags]
    for verb in ("pretrain", "prepare"):
        output = ["--training.output_dir", tmp_path / "run"]
        code, _, errors = cli(verb, *common, "--data.prepared", rows, *output, *flags)
        assert (code, len(errors)) == (2, 1)
        assert re.search(rf"data.prepared: .*{rows}.*\(.*{said}.*\)", errors[0])
    assert not (tmp_path / "run").exists()


def test_files_that_changed_since_are_noticed(
    common: list, copied: Path, own_text: Path, tmp_path: Path, cli: Cli
) -> None:
    content = own_text.read_bytes()
    arguments = ("prepare", *common, "--data.prepared", copied)
    try:
        own_text.write_bytes(content)  # another time, the same text
        assert cli(*arguments)[0] == 0
        own_text.write_bytes(content + b"\n\nOne more text.\n")
        code, _, errors = cli(*arguments)
        assert (code, len(errors)) == (2, 1)
        assert f"{own_text} has changed" in errors[0]
    finally:
        own_text.write_bytes(content)


DAMAGE = {
    r"train-0-00000.arrow is missing; delete it and run": lambda folder: (folder / "train-0-00000.arrow").unlink(),
    r"train-0-00000.arrow has \d+ bytes instead of \d+": lambda folder: (folder / "train-0-00000.arrow").write_bytes(
        b"x"
    ),
    r"manifest.json is damaged .*; delete it and run": lambda folder: (folder / "manifest.json").write_text("{"),
    r"has no manifest.json, so it is no prepared folder": lambda folder: (folder / "manifest.json").unlink(),
    r"has format 0, not 2": lambda folder: (folder / "manifest.json").write_text('{"format": 0}'),
}


@pytest.mark.parametrize("match", DAMAGE)
def test_damage_is_named(match: str, common: list, copied: Path, cli: Cli) -> None:
    DAMAGE[match](copied)
    code, _, errors = cli("prepare", *common, "--data.prepared", copied)
    assert (code, len(errors)) == (2, 1)
    assert re.search(match, errors[0])


def test_one_bit_of_any_file_is_noticed(common: list, copied: Path, cli: Cli, tmp_path: Path) -> None:
    files = [path for path in copied.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        whole = path.read_bytes()
        for place in (len(whole) // 3, len(whole) - 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            for verb in ("pretrain", "prepare"):
                output = ["--training.output_dir", tmp_path / "run"]
                code, _, errors = cli(verb, *common, "--data.prepared", copied, *output)
                assert (code, len(errors)) == (2, 1)
                assert re.search(rf"data.prepared: {path} is damaged.*; delete it and run", errors[0])
        path.write_bytes(whole)
    assert not (tmp_path / "run").exists()


def test_rows_outlive_their_text(
    common: list, rows: Path, own_text: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = own_text.rename(own_text.with_suffix(".away"))
    monkeypatch.chdir(own_text.parent)
    try:
        flags = ["--data.source", own_text.name, "--training.output_dir", tmp_path / "run"]
        assert cli("pretrain", *common, "--data.prepared", rows, *flags)[0] == 0
    finally:
        hidden.rename(own_text)


def test_a_folder_is_needed_and_is_not_a_file(common: list, own_text: Path, cli: Cli, tmp_path: Path) -> None:
    assert "data.prepared: name the folder that is to hold the rows" in cli("prepare", *common)[2][0]
    assert "is a file; choose a folder" in cli("prepare", *common, "--data.prepared", own_text)[2][0]
    code, _, errors = cli(
        "pretrain", *common, "--data.prepared", tmp_path / "none", "--training.output_dir", tmp_path / "run"
    )
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"none is not there; run attnkit prepare with these settings", errors[0])


def test_a_preparation_that_was_ended_leaves_no_folder(
    common: list, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rows"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prepared_module, "tokenizer_hash", full)
        code, _, errors = cli("prepare", *common, "--data.prepared", folder)
    assert code == 2
    assert re.search(r"cannot write .*rows: .*No space left on device; free space", errors[0])
    assert not folder.exists()
    assert cli("prepare", *common, "--data.prepared", folder)[0] == 0  # what was left is put away
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_rows_may_lie_in_many_shards(
    common: list, rows: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_module, "SHARD_BYTES", 1)
    monkeypatch.setattr("attnkit.data.rows.PORTION", 1000)
    assert cli("prepare", *common, "--data.prepared", tmp_path / "many")[0] == 0
    whole, many = (prepared_module.read_manifest(folder) for folder in (rows, tmp_path / "many"))
    assert len(many.shards) > 5 > len(whole.shards)
    for group, dataset in prepared_module.read_shards(tmp_path / "many", many).items():
        assert dataset["input_ids"][:] == prepared_module.read_shards(rows, whole)[group]["input_ids"][:]


def test_a_manifest_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 2, "files": [], "shards": [{}]}')
    with pytest.raises(UsageError, match=r"manifest.json is damaged \(its checksum is another one"):
        prepared_module.read_manifest(tmp_path)
