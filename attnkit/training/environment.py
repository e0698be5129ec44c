"""On what a run was made: versions, devices, and the state of the code, for whoever wants to make it again."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from attnkit.files.disk import replacing
from attnkit.training.run_folder import ENVIRONMENT, writing

PACKAGES = ("attnkit", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")


def describe(accelerator: Accelerator) -> dict[str, Any]:
    """The environment of a run."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name() if accelerator.device.type == "cuda" else accelerator.device.type,
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "mixed_precision": accelerator.mixed_precision,
        "distributed": accelerator.distributed_type.value,
        "git": git_state(Path.cwd()),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository that a folder is in, and the files that differ from it; None outside of one."""

    def ask(*words: str) -> str | None:
        try:
            said = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=30)
        except (OSError, subprocess.SubprocessError):  # no git, or no repository
            return None
        return said.stdout

    commit, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain")
    if commit is None or changes is None:
        return None
    return {"commit": commit.strip(), "changed": [line[3:] for line in changes.splitlines()]}


def save_environment(accelerator: Accelerator, output_dir: str | Path) -> None:
    """Write `environment.json` into the folder of a run. Raises `UsageError` if the disk refuses."""
    path = Path(output_dir) / ENVIRONMENT
    with writing(path), replacing(path) as unfinished:
        unfinished.write_text(json.dumps(describe(accelerator), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def peak_memory(accelerator: Accelerator) -> int:
    """The most bytes that this process has held so far: on its GPU, or in all where it has none."""
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(accelerator.device)
    import resource  # not there on Windows, which has no use for it with a GPU

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
