"""Several machines: two network namespaces of this one, which share nothing but its disk and a cable."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import yaml

from attnkit.cli import main
from attnkit.training.checkpoint import newest_complete, step_of
from attnkit.training.tracking import read_log

ROOT = Path(__file__).parents[2]
ADDRESSES = ("10.213.0.1", "10.213.0.2")
TIMEOUT = 5  # seconds that a process waits for one that says nothing
PATIENCE = 240  # seconds, for a machine with more to do


class Machines:
    """Two namespaces, and what is launched in them."""

    def __init__(self, folder: Path) -> None:
        self.names = [f"attnkit-{os.getpid()}-{rank}" for rank in (0, 1)]
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def ip(self, *words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    def connect(self) -> None:
        for name in self.names:
            self.ip("netns", "add", name)
        ends = [["cable", "netns", name] for name in self.names]
        self.ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for name, address in zip(self.names, ADDRESSES, strict=True):
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            self.ip("-n", name, "link", "set", "lo", "up")
            self.plug(name, "up")

    def plug(self, name: str, state: str) -> None:
        self.ip("-n", name, "link", "set", "cable", state)

    def launch(self, *words: str) -> list[subprocess.Popen[str]]:
        """The command of `two_machines.yaml` on both."""
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "GLOO_SOCKET_IFNAME": "cable",
            "OMP_NUM_THREADS": "1",
        }
        launcher = [sys.executable, "-m", "accelerate.commands.launch"]
        launcher += ["--config_file", str(ROOT / "configs" / "accelerate" / "two_machines.yaml")]
        script = [str(ROOT / "train" / "pretrain.py"), "--config", str(self.folder / "run.yaml"), *words]
        pair = []
        for rank, name in enumerate(self.names):
            place = ["--machine_rank", str(rank), "--main_process_ip", ADDRESSES[0]]
            command = ["ip", "netns", "exec", name, *launcher, *place, *script]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            pair.append(subprocess.Popen(command, env=environment, **pipes))
        self.started += pair
        return pair

    def close(self) -> None:
        for launcher in self.started:
            if launcher.poll() is None:
                for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
                    process.kill()
            launcher.communicate()
        for name in self.names:
            self.ip("netns", "delete", name, check=False)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    with ExitStack() as stack:
        stack.callback(machines.close)
        try:
            machines.connect()
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"network namespaces cannot be made here, which takes iproute2 and root: {said}")
        yield machines


def write_run(folder: Path) -> None:
    lines = [f"{number} times {number % 7} is {number * (number % 7)}, says the small house" for number in range(300)]
    (folder / "text.txt").write_text("\n\n".join(lines))
    run = {
        "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "position": "learned"},
        "tokenizer": {"vocab_size": 290},
        "data": {"source": str(folder / "text.txt"), "sequence_length": 24, "held_out_fraction": 0.2},
        "training": {
            "output_dir": str(folder / "two"),
            "max_steps": 10**6,
            "per_device_batch_size": 4,
            "schedule": "constant",
            "eval_steps": 10**6,
            "save_steps": 5,
            "log_steps": 5,
            "timeout": TIMEOUT * 10,
        },
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))


def read_until_step(launcher: subprocess.Popen[str], step: int) -> None:
    """Read what a machine says until it has made so many steps."""
    assert launcher.stdout is not None
    said = []
    for line in launcher.stdout:
        said.append(line)
        if (found := re.match(r"step (\d+)/", line)) and int(found[1]) >= step:
            return
    raise AssertionError("".join(said))


def ending(launcher: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = launcher.communicate(timeout=PATIENCE)
    return launcher.returncode, said


@pytest.mark.slow
def test_two_machines_train_lose_each_other_and_go_on(machines: Machines, tmp_path: Path) -> None:
    write_run(tmp_path)
    first, second = machines.launch()
    read_until_step(first, 20)
    [worker] = psutil.Process(second.pid).children()
    worker.kill()
    code, said = ending(first)
    assert code != 0
    assert "attnkit: error: process 0 of 2: another process is gone (" in said
    assert "start all processes again with --resume" in said

    first, second = machines.launch("--resume", "--training.timeout", str(TIMEOUT))
    killed_at = step_of(newest_complete(tmp_path / "two" / "checkpoints") or tmp_path)
    read_until_step(first, killed_at + 10)
    machines.plug(machines.names[1], "down")  # nobody is told: only waiting shows it
    code, said = ending(first)
    assert code != 0
    assert "attnkit: error: process 0 of 2: another process is gone (" in said

    machines.plug(machines.names[1], "up")
    last = step_of(newest_complete(tmp_path / "two" / "checkpoints") or tmp_path) + 5
    assert last > killed_at + 5
    pair = machines.launch("--resume", "--training.max_steps", str(last))
    assert [ending(launcher)[0] for launcher in pair] == [0, 0]
    # Twice cut short, it is the run that one process makes of the same batches.
    words = ["--training.output_dir", str(tmp_path / "one"), "--training.gradient_accumulation_steps", "2"]
    words += ["--training.max_steps", str(last), "--training.save_steps", "1000000"]
    assert main(["pretrain", "--config", str(tmp_path / "run.yaml"), *words]) == 0
    two, one = ([r for r in read_log(tmp_path / run / "log.jsonl") if r["kind"] == "train"] for run in ("two", "one"))
    assert [record["step"] for record in two] == [record["step"] for record in one] == list(range(5, last + 1, 5))
    assert [record["tokens_seen"] for record in two] == [record["tokens_seen"] for record in one]
    assert [record["loss"] for record in two] == pytest.approx([record["loss"] for record in one], rel=1e-3)
