"""Processes: the Accelerator of a run, the check that all of them are there, and what they say to each other."""

import gc
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    ParallelismConfig,
    broadcast_object_list,
    parse_flag_from_env,
    reduce,
)

from attnkit.errors import UsageError, first_line
from attnkit.training.run_folder import nearest_existing, writing
from attnkit.training.tracking import check_trackers

T = TypeVar("T")

INTERFACE = (
    "on several machines let GLOO_SOCKET_IFNAME, with GPUs NCCL_SOCKET_IFNAME, name the network interface between "
    "them, as `ip address` lists it"
)
GO_ON = "its own messages, or those of its machine, say why; start all processes again with --resume"

TOGETHER = "ACCELERATE_USE_PARALLELISM_CONFIG"  # what Accelerate's launcher sets where a file has these settings

ON_CPU = "ACCELERATE_USE_CPU=true accelerate launch --config_file configs/accelerate/two_processes_cpu.yaml"
ON_GPU = "accelerate launch --config_file configs/accelerate/ddp.yaml"


def make_accelerator(
    *,
    num_processes: int | None = None,
    mixed_precision: str | None = None,
    trackers: Sequence[str] = (),
    output_dir: str | Path | None = None,
    timeout: int = 3600,
) -> Accelerator:
    """Join the processes of this launch and return their Accelerator.

    `num_processes`, `mixed_precision` and `timeout` are those of `training`, `trackers` and `output_dir` say which
    Accelerate trackers will log and where. Raises `UsageError` if the run has fewer or more processes than it was asked
    for or they do not reach each other, for a precision that the device lacks, and for a tracker that is unknown or not
    installed, which Accelerate would pass over in silence.
    """
    check_trackers(trackers)
    precision = mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "fp16" and not torch.accelerator.is_available():
        raise UsageError("training.mixed_precision: fp16 needs a GPU: set it to bf16 or no")
    together = asked_together()
    with reporting_network("the processes do not reach each other", remedy=INTERFACE), on_any_device(together):
        accelerator = Accelerator(
            # Without this, processes on a machine without GPU each believe to be alone, unless ACCELERATE_USE_CPU is
            # set.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=mixed_precision,
            # A plugin, because the environment of `accelerate launch` overrides the plain argument.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            log_with=list(trackers) or None,
            project_dir=None if output_dir is None else str(output_dir),
            kwargs_handlers=[
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
                InitProcessGroupKwargs(timeout=timedelta(seconds=timeout)),
            ],
        )
    accelerator.state.parallelism_config = together
    check_num_processes(accelerator, num_processes)
    check_sharding(accelerator)
    return accelerator


def asked_together() -> ParallelismConfig | None:
    """How the launcher asks processes to share out the work beside reading rows of their own; None for not at all.

    Raises `UsageError` for what would not be done: DeepSpeed steps within its own backward pass, before the loop knows
    whether to, and gradients are not averaged between groups of processes that divide layers or sequences among them.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise UsageError(
            "the launcher asks for DeepSpeed, which is for transformers' Trainer: launch attnkit's own loop with "
            "configs/accelerate/fsdp2_full.yaml, which is ZeRO-3, or fsdp2_gradients.yaml, which is ZeRO-2"
        )
    if os.environ.get(TOGETHER, "false").lower() != "true":
        return None
    together, num_processes = ParallelismConfig(), int(os.environ.get("WORLD_SIZE", "1"))
    if together.non_data_parallel_size > 1 and together.tp_size != num_processes:
        raise UsageError(
            "the launcher asks for context or sequence parallelism, or for several groups of tensor parallel "
            f"processes: set parallelism_config_tp_size to the number of processes, here {num_processes}, and all "
            "other sizes to 1, or launch with configs/accelerate/fsdp2_full.yaml"
        )
    return together


@contextmanager
def on_any_device(together: ParallelismConfig | None) -> Iterator[None]:
    """Keep from Accelerate, which takes them on GPUs only, settings that a run follows on a CPU as well."""
    hidden = together is not None and (
        parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    )
    if hidden:
        os.environ[TOGETHER] = "false"
    try:
        yield
    finally:
        if hidden:
            os.environ[TOGETHER] = "true"


@contextmanager
def reporting_network(what: str = "another process is gone", *, remedy: str = GO_ON) -> Iterator[None]:
    """Turn what torch makes of a lost process, or of a network that does not lead to it, into a `UsageError`."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises plain errors, which name its source files.
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error).lower():
            raise
        said = re.sub(r"^\[\S*\] ", "", first_line(error)).split(". ")[0]
        rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        raise UsageError(f"process {rank} of {world_size}: {what} ({said}); {remedy}") from error


def check_shared_folder(accelerator: Accelerator, folder: str | Path) -> None:
    """Raise `UsageError` unless a folder, which need not be there yet, is the same to all processes; change nothing."""
    if accelerator.num_processes == 1:
        return
    around = nearest_existing(folder)

    def make_probe() -> str:
        with writing(around):
            return tempfile.NamedTemporaryFile(prefix=".attnkit-", dir=around, delete=False).name

    probe = Path(on_main(accelerator, make_probe))
    [seen] = sum_over_processes(accelerator, [(around / probe.name).exists()])
    on_main(accelerator, probe.unlink)
    if seen < accelerator.num_processes:
        raise UsageError(
            f"training.output_dir: {folder} is another folder to {accelerator.num_processes - int(seen)} of "
            f"{accelerator.num_processes} processes: give one on a disk that all machines share"
        )


def check_sharding(accelerator: Accelerator) -> None:
    """Raise `UsageError` where the launcher asks for a kind of sharing out that the run would not have.

    Without GPUs Accelerate leaves FSDP away and says nothing.
    """
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"
    if asked and accelerator.distributed_type != DistributedType.FSDP:
        raise UsageError(
            "the launcher asks for sharded weights (FSDP), which need GPUs and several processes: launch with another "
            "file of configs/accelerate"
        )


def check_num_processes(accelerator: Accelerator, num_processes: int | None = None) -> None:
    """Raise `UsageError` unless the run has the processes that `training.num_processes` or the launcher asks for.

    `accelerate launch --cpu --num_processes 2` starts a single process and says nothing, and processes that do not find
    each other would each train alone and write the same files.
    """
    started = accelerator.num_processes
    world_size = int(os.environ.get("WORLD_SIZE", started))
    # What `accelerate launch` leaves behind when it was asked for several processes and started one.
    only_one = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and started == 1
    wanted: int | str = "N"
    if num_processes is not None and num_processes != started:
        asked, wanted = f"training.num_processes is {num_processes}", num_processes
    elif world_size != started:
        asked, wanted = f"the launcher was asked for {world_size}", world_size
    elif num_processes is None and "WORLD_SIZE" not in os.environ and only_one:
        asked = "the launcher was asked for more (set training.num_processes to 1 if one is right)"
    else:
        return
    launch = f"{ON_GPU if torch.accelerator.is_available() else ON_CPU} --num_processes {wanted} SCRIPT"
    remedy = f"launch it with {launch}" if wanted != 1 else "start it without a launcher"
    other = f", or set training.num_processes to {started}" if num_processes is not None else ""
    raise UsageError(f"this run has {started} process{'es' * (started > 1)} but {asked}; {remedy}{other}")


def dividing_layers(accelerator: Accelerator) -> int:
    """The number of processes that divide each layer among them: all by tensor parallelism, or one has it whole."""
    together = accelerator.parallelism_config
    return 1 if together is None else together.tp_size


def num_readers(accelerator: Accelerator) -> int:
    """The number of processes that read rows of their own: those that divide layers among them read the same."""
    return accelerator.num_processes // dividing_layers(accelerator)


def sum_over_readers(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Add up what each process has of its own rows, rows that several read counted once."""
    together = dividing_layers(accelerator)
    return [value / together for value in sum_over_processes(accelerator, values)]


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Add up each value over all processes, in double precision."""
    if accelerator.num_processes == 1:
        return list(values)
    total = reduce(torch.tensor(values, dtype=torch.float64, device=accelerator.device), reduction="sum")
    return total.tolist()


def on_main(accelerator: Accelerator, job: Callable[[], T]) -> T:
    """Do a job on the main process and return its result on every process.

    A `UsageError` of the job is raised on every process, so that none waits for one that has given up.
    """
    result, mistake = None, None
    if accelerator.is_main_process:
        try:
            result = job()
        except UsageError as error:
            mistake = error
    result, lines = broadcast_object_list([result, None if mistake is None else mistake.args])
    if mistake is not None:
        raise mistake
    if lines is not None:
        raise UsageError(*lines)
    return result


def forget(accelerator: Accelerator) -> None:
    """Let an accelerator give up the model and the optimizer of a run that is over.

    It would also have all objects of the process searched for cycles, which takes half a second with these libraries in
    memory, as long as a small run may take: nothing in a run is in a cycle.
    """
    gc.freeze()
    accelerator.free_memory()
    gc.unfreeze()
