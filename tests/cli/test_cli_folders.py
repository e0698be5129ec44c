"""Nothing is written over that we did not make, and no two processes write into one folder."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli

from attnkit.errors import UsageError
from attnkit.files.disk import STAGING, claim, filling, is_free
from attnkit.scaling.cli import answer
from attnkit.training.run_folder import RUN_FILES, RUN_FOLDERS

FOREIGN = {
    "log.jsonl": "a log",
    "checkpoints/mine.ckpt": "weights",
    "model/config.json": "{}",
    "tokenizer.json": "{}",
    "tokenizer/tokenizer.json": "{}",
    "manifest.json": "{}",
    "grid.json": "{}",
    "out.jsonl": "{}",
    "out.png": "a picture, one would think",
}
VERBS = {
    "tokenizer": ("--config", "{tokenizer}", "--output_dir", "{folder}"),
    "pretrain": ("--config", "{config}", "--training.output_dir", "{folder}"),
    "finetune": ("--model.path", "{run}", "--data.source", "{rows}", "--training.output_dir", "{folder}"),
    "prepare": ("--config", "{config}", "--data.prepared", "{folder}"),
    "import": ("{run}/model", "{folder}"),
    "export": ("{run}", "{folder}", "--remote-code"),
    "scale": ("table", "--png", "{folder}/out.png"),
}
OVERWRITE = {"pretrain": [["--overwrite"]], "tokenizer": [["--overwrite", "true"]]}
OVERWRITE["finetune"] = [["--overwrite"], ["--overwrite", "--grid.seeds", "[0]"]]


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_not_ours_stays(verb: str, config: Path, finished: Path, text: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"the cat {n},{'ab'[n % 2]}\n" for n in range(8)))
    (tmp_path / "tokenizer.yaml").write_text(f"tokenizer: {{vocab_size: 290}}\ndata: {{source: {text}}}\n")
    folder = tmp_path / "folder"
    places = {"config": config, "run": finished, "folder": folder, "tokenizer": tmp_path / "tokenizer.yaml"}
    words = [word.format(**places, rows=tmp_path / "rows.csv") for word in VERBS[verb]]
    for name, content in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for flags in [[], *OVERWRITE.get(verb, [])]:
        code, _, errors = cli(verb, *words, *flags)
        assert (code, len(errors)) == (2, 1), flags
        assert str(folder) in errors[0]
        found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert found == FOREIGN, flags


@pytest.mark.parametrize("flags", [[], ["--resume"], ["--overwrite"]], ids=" ".join)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_in_the_place_of_a_folder_is_refused_first(
    name: str, flags: list[str], finished: Path, tmp_path: Path, cli: Cli
) -> None:
    """And a folder in that of a file, in a folder that is ours in all else."""
    run = tmp_path / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns(name))
    if name in RUN_FOLDERS:
        (run / name).write_text("mine")
    else:
        (run / name).mkdir()
        (run / name / "notes.txt").write_text("mine")
    before = {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
    # That no text is there would be found next.
    command = ("pretrain", "--data.source", tmp_path / "none.txt", "--training.output_dir", run)
    code, said, errors = cli(*command, *flags)
    assert (code, said, len(errors)) == (2, [], 1)
    assert f"{run / name} is {'no' if name in RUN_FOLDERS else 'a'} folder; remove what is there" in errors[0]
    assert {path: path.is_file() and path.read_bytes() for path in run.rglob("*")} == before


@pytest.mark.slow
def test_what_is_ours_is_written_over_where_that_is_asked_for(text: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "tokenizer.yaml").write_text(f"tokenizer: {{vocab_size: 290}}\ndata: {{source: {text}}}\n")
    command = ("tokenizer", "--config", tmp_path / "tokenizer.yaml", "--output_dir", tmp_path / "made")
    assert [cli(*command)[0], cli(*command)[0], cli(*command, "--overwrite", "true")[0]] == [0, 2, 0]
    for _ in range(2):  # a picture that is there
        assert answer(["table", "--png", str(tmp_path / "it.png")])


def test_one_run_writes_into_a_folder_at_a_time(config: Path, tmp_path: Path, cli: Cli) -> None:
    run, rows = tmp_path / "run", tmp_path / "rows"
    with claim(run, setting="other"), claim(rows, setting="other"):
        (run / "notes.txt").write_text("of the other")
        for command in (
            ("pretrain", "--config", config, "--training.output_dir", run),
            ("pretrain", "--config", config, "--training.output_dir", run, "--resume"),
            ("prepare", "--config", config, "--data.prepared", rows),
        ):
            code, said, errors = cli(*command)
            assert (code, said, len(errors)) == (2, [], 1)
            assert f"is being written by process {os.getpid()}, perhaps one that" in errors[0]
        code, _, errors = cli("pretrain", "--data.source", "none.txt", "--training.output_dir", run)
        assert code == 2
        assert "is being written by" in errors[0]  # before any text is looked for
        assert [path.name for path in run.iterdir()] == ["notes.txt"]
        with (
            pytest.raises(
                UsageError,
                match=r"key: .*run is being written by process \d+.* wait for its end or end it",
            ),
            claim(run, setting="key"),
        ):
            pass
    assert cli("pretrain", "--config", config, "--training.output_dir", run)[0] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--training.seed", 5], "training.seed was 0 and is 5"),
        (["--training.group_by_length", "true"], "that training.group_by_length sorts together was None and is 4"),
        (["--training.max_steps", 3], "training.max_steps: 3 is less than the step of"),
        (["--training.optimizer", "adafactor"], "or with another optimizer"),
        (["--training.frozen_layers", 1], "it trained other parameters"),
        (["--data.sequence_length", 16], "data.sequence_length was 24 and is 16"),
        (["--model.hidden_size", 32], "model.hidden_size was 16 and is 32"),
    ],
)
def test_a_refusal_to_go_on_leaves_the_folder_of_pretraining_as_it_was(
    flags: list[str], said: str, config: Path, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, _, errors = cli("pretrain", "--config", config, "--training.output_dir", run, "--resume", *flags)
    assert (code, len(errors)) == (2, 1)
    assert said in errors[0]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_whose_beginning_is_refused_leaves_no_folder(
    config: Path, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    start = finished / "checkpoints" / "step-000003"
    flags = ["--training.from_checkpoint", start, "--training.seed", 5]
    code, _, [error] = cli("pretrain", "--config", config, "--training.output_dir", tmp_path / "new", *flags)
    assert (code, "training.seed was 0 and is 5" in error) == (2, True)
    assert not (tmp_path / "new").exists()
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    flags = ["--training.from_checkpoint", run / "checkpoints" / "step-000003", "--overwrite"]
    code, _, [error] = cli("pretrain", "--config", config, "--training.output_dir", run, *flags)
    assert (code, f"training.overwrite: {run} holds training.from_checkpoint" in error) == (2, True)
    assert (run / "summary.json").is_file()


@pytest.mark.parametrize(
    ("verb", "size"), [("export", 3000), ("prepare", 3000), ("tokenizer", 3000), ("pretrain", 500)]
)
def test_a_full_disk_is_one_line(
    verb: str, size: int, config: Path, finished: Path, text: Path, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "tokenizer.yaml").write_text(f"tokenizer: {{vocab_size: 290}}\ndata: {{source: {text}}}\n")
    places = {"config": config, "run": finished, "folder": tmp_path / "new", "tokenizer": tmp_path / "tokenizer.yaml"}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # bytes of a file
    try:
        code, _, errors = cli(verb, *(word.format(**places) for word in VERBS[verb]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, len(errors)) == (2, 1)
    setting = {"export": "target", "prepare": "folder", "tokenizer": "output_dir"}.get(verb, "training.output_dir")
    assert re.search(rf"cannot write .*new: .*File too large.*; free space or choose another {setting}$", errors[0])
    assert "unfinished" not in errors[0]
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []


@pytest.mark.parametrize("size", [500, "config.yaml", "checkpoints/step-000006/optimizer.pt"])
def test_a_full_disk_leaves_what_a_run_had_when_it_goes_on(
    size: int | str, config: Path, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    """Whether its config is the first that does not fit, or one of the files after it."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    kept = ("summary.json", "log.jsonl", "model", "checkpoints")
    files = [path for name in kept for path in (run / name, *(run / name).rglob("*")) if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    names = {path.name for path in run.iterdir()}
    command = ("pretrain", "--config", config, "--training.output_dir", run, "--resume", "--training.max_steps", 9)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = size if isinstance(size, int) else (run / size).stat().st_size - (size != "config.yaml") * 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (most + 200, limits[1]))
    try:
        code, _, errors = cli(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, len(errors)) == (2, 1)
    assert "cannot write" in errors[0]
    log = run / "log.jsonl"
    assert log.read_bytes().startswith(before.pop(log))
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in run.iterdir()} == names
    assert cli(*command)[0] == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 9


def fail_midway(folder: Path) -> None:
    with filling(folder, setting="key") as staging:
        (staging / "old").write_text("after")
        raise RuntimeError("midway")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_is_filled_whole_or_stays_as_it_was(is_new: bool, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    if not is_new:
        folder.mkdir()
        (folder / "old").write_text("before")
    with pytest.raises(RuntimeError, match="midway"):
        fail_midway(folder)
    assert folder.exists() is not is_new
    (folder / STAGING).mkdir(parents=True)  # as a process leaves it that is killed
    assert is_free(folder) is is_new
    with filling(folder, setting="key") as staging:
        (staging / "old").write_text("after")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("old", "after")]


@pytest.mark.parametrize("moves", range(4))
def test_a_folder_is_free_that_was_being_filled(moves: int, tmp_path: Path) -> None:
    """Killed after some of its files were there, the last of which is that which says that all are."""
    folder, script = tmp_path / "it", tmp_path / "fill.py"
    script.write_text(f"""
import os, signal
from pathlib import Path
from attnkit.files.disk import filling

replace, left = Path.replace, [{moves}]

def counted(path, target):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return replace(path, target)

with filling(Path({str(folder)!r}), setting="key", last="config.json") as staging:
    for name in ("config.json", "b", "a"):
        (staging / name).write_text("new")
    Path.replace = counted
""")
    assert (subprocess.run([sys.executable, str(script)]).returncode == -9) is (moves < 3)
    assert (folder / "config.json").exists() is (moves == 3)
    assert is_free(folder) is (moves < 3)
    if moves < 3:
        with filling(folder, setting="key", last="config.json") as staging:
            (staging / "config.json").write_text("newer")
        assert not is_free(folder)
        assert not list(folder.glob(".*"))
