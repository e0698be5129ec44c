"""What is shipped and shown for launching: each command is one that Accelerate and attnkit take."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser

from attnkit.config.load import load
from attnkit.config.runs import PretrainRun

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "configs" / "launch"
PAGE = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")
SKYPILOT_KEYS = {"name", "num_nodes", "resources", "workdir", "volumes", "setup", "run"}  # of its task files


def commands_of_page() -> list[list[str]]:
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
    return [words for line in lines.replace("\\\n", " ").splitlines() if (words := shlex.split(line))]


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> PretrainRun:
    """Read a command as those it is for do, and return the run that it would start."""
    monkeypatch.chdir(ROOT)
    words = [*words]
    while "=" in words[0]:
        del words[0]  # of the environment
    if words[:2] == ["attnkit", "pretrain"]:
        return load(PretrainRun, words[2:])
    assert words[:2] == ["accelerate", "launch"]
    parsed = launch_command_parser().parse_args(words[2:])
    assert Path(parsed.config_file).is_file()
    assert parsed.training_script == "train/pretrain.py"
    run = load(PretrainRun, parsed.training_script_args)
    planned = parsed.num_processes or yaml.safe_load(Path(parsed.config_file).read_text())["num_processes"]
    assert run.training.num_processes == planned
    return run


def said_by(script: str, folder: Path, *, stand_ins: dict[str, str], **environment: str) -> list[str]:
    """The words of the one `accelerate` that a script would start, with programs in place of those of a cluster."""
    for name, program in {"accelerate": 'printf "%s\\n" accelerate "$@"', "pip": "true", **stand_ins}.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{program}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment}
    ended = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("words", commands_of_page(), ids=lambda words: " ".join(words)[:60])
def test_the_page_shows_commands_that_are_taken(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check_command(words, monkeypatch)


def test_the_page_names_every_file() -> None:
    for path in (*TEMPLATES.iterdir(), *(ROOT / "configs" / "accelerate").iterdir()):
        assert path.stem in PAGE


def test_slurm_starts_a_launcher_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TEMPLATES / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)", path.read_text(), flags=re.MULTILINE))
    assert (options["nodes"], options["ntasks-per-node"], options["gpus-per-node"]) == ("2", "1", "8")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    words = said_by(
        f"source {shlex.quote(str(path))} configs/pretrain/demo.yaml --training.output_dir runs/slurm",
        tmp_path,
        stand_ins={"srun": 'shift; SLURM_NODEID=1 "$@"', "scontrol": 'printf "%s\\n" node-a node-b'},
        SLURM_NNODES="2",
        SLURM_JOB_NODELIST="node-[a-b]",
    )
    run = check_command(words, monkeypatch)
    assert (run.training.output_dir, run.training.resume, run.training.num_processes) == ("runs/slurm", True, 16)
    parsed = launch_command_parser().parse_args(words[2:])
    assert (parsed.num_machines, parsed.machine_rank, parsed.main_process_ip) == (2, 1, "node-a")


def test_skypilot_starts_a_launcher_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = yaml.safe_load((TEMPLATES / "skypilot.yaml").read_text())
    assert set(task) == SKYPILOT_KEYS
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:8")
    words = said_by(
        f"set -e\n{task['setup']}\n{task['run']}",
        tmp_path,
        stand_ins={},
        SKYPILOT_NUM_NODES="2",
        SKYPILOT_NUM_GPUS_PER_NODE="8",
        SKYPILOT_NODE_RANK="1",
        SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.2",
    )
    run = check_command(words, monkeypatch)
    [volume] = task["volumes"]
    assert run.training.output_dir.startswith(f"{volume}/")
    assert (run.training.resume, run.training.num_processes) == (True, 16)
    parsed = launch_command_parser().parse_args(words[2:])
    assert (parsed.num_machines, parsed.machine_rank, parsed.main_process_ip) == (2, 1, "10.0.0.1")
