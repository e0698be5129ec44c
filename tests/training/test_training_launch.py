"""Launching: the shipped files start what they say, and a run of two processes is the run of one."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from safetensors.torch import load_file
from samples import GRADIENTS, causal_model, gradients, held_out, own_model, run, settings, streamed, text_rows
from sharded import MODEL
from torch import nn
from transformers import AutoModelForCausalLM

from attnkit.errors import UsageError
from attnkit.training.launch import (
    asked_together,
    check_num_processes,
    check_sharding,
    make_accelerator,
    reporting_network,
)
from attnkit.training.shards import check_divisible
from attnkit.training.tracking import read_log

CONFIGS = Path(__file__).parents[2] / "configs" / "accelerate"
SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes, started by the shipped file, have done all of `two_processes.py`."""
    folder = tmp_path_factory.mktemp("two")
    launch(SCRIPT, folder)
    return folder


def launch(script: Path, folder: Path, *options: str, file: str = "two_processes_cpu.yaml") -> None:
    """Start two processes with a shipped file."""
    # Without the one, so that the launcher decides how many threads each process has; without the other, so that the
    # processes must find each other as they would where somebody forgets it.
    unset = ("OMP_NUM_THREADS", "ACCELERATE_USE_CPU")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"ACCELERATE_USE_CPU": "true"} if options else {}
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(CONFIGS / file), *options, str(script), str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def seen(two: Path) -> list[dict[str, Any]]:
    return [json.loads((two / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


def test_the_shipped_file_starts_two_processes(seen: list[dict[str, Any]]) -> None:
    assert [process["num_processes"] for process in seen] == [2, 2]
    assert {process["device"] for process in seen} == {"cpu:0"}
    cores = os.cpu_count() or 2
    assert all(process["threads"] <= max(1, cores // 2) for process in seen)


@pytest.mark.parametrize("size", [4, 2, 1])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of_two_processes_is_that_of_one(
    two: Path, tmp_path: Path, accelerator: Accelerator, name: str, size: int
) -> None:
    make_model, collate, tolerance = GRADIENTS[name]
    training = settings(tmp_path, max_steps=1, adam_beta1=0.0, max_grad_norm=None, per_device_batch_size=8)
    one = run(make_model(), text_rows(12), training, accelerator=accelerator, collate=collate)
    other = two / f"gradient-{name}-{size}"
    for expected, actual in zip(
        gradients(one.last_checkpoint), gradients(other / "checkpoints" / "step-000001"), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)  # gradients here are below 1
    [record], [expected_record] = read_log(other / "log.jsonl"), read_log(tmp_path / "log.jsonl")
    for figure in ("loss", "grad_norm", "tokens_seen"):
        assert record[figure] == pytest.approx(expected_record[figure], rel=1e-6)


def test_dropout_and_all_else_is_that_of_one_process(two: Path, tmp_path: Path, accelerator: Accelerator) -> None:
    training = settings(tmp_path, per_device_batch_size=2, gradient_accumulation_steps=2, save_steps=100)
    one = run(causal_model(dropout=0.3), text_rows(9), training, accelerator=accelerator)
    logged = [record for record in read_log(two / "uninterrupted" / "log.jsonl") if record["kind"] == "train"]
    assert [record["loss"] for record in logged] == pytest.approx([loss for _, loss in one.losses], rel=1e-4)
    rates = [record["learning_rate"] for record in read_log(tmp_path / "log.jsonl")]
    assert [record["learning_rate"] for record in logged] == rates
    assert logged[-1]["tokens_seen"] == one.tokens_seen


def test_evaluation_counts_each_row_once(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["evaluations"] == seen[1]["evaluations"]
    for evaluation in seen[0]["evaluations"]:
        rows = text_rows(evaluation["num_rows"])
        assert evaluation["items"] == [row["input_ids"][0] for row in rows]
    for num_rows in (1, 7, 8):
        losses = [found["loss"] for found in seen[0]["evaluations"] if found["num_rows"] == num_rows]
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_a_signal_to_one_process_stops_both_and_resume_is_exact(two: Path, seen: list[dict[str, Any]]) -> None:
    assert [process["stopped"] for process in seen] == [[True, 7], [True, 7]]
    resumed, expected = (
        load_file(two / name / "checkpoints" / "step-000020" / "model.safetensors")
        for name in ("resumed", "uninterrupted")
    )
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    logs = [read_log(two / name / "log.jsonl") for name in ("resumed", "uninterrupted")]
    assert len(logs[0]) == len(logs[1])
    assert [(r["kind"], r["step"], r["loss"]) for r in logs[0]] == [(r["kind"], r["step"], r["loss"]) for r in logs[1]]


def test_fewer_rows_than_a_global_batch_hang_nobody(seen: list[dict[str, Any]]) -> None:
    assert [process["few"] for process in seen] == [3, 3]


def test_a_stream_of_uneven_files_is_that_of_one_process(two: Path, tmp_path: Path, accelerator: Accelerator) -> None:
    rows, model, objective = streamed(tmp_path / "text")
    run(model, rows, settings(tmp_path / "stream"), accelerator=accelerator, collate=objective)
    logs = [read_log(folder / "stream" / "log.jsonl") for folder in (two, tmp_path)]
    assert [len(log) for log in logs] == [20, 20]  # seven times through the text
    for record, expected in zip(*logs, strict=True):
        assert "epoch" not in record  # as the stream has no length
        assert record["tokens_seen"] == expected["tokens_seen"]
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_one_process_goes_on_with_the_stream_of_two(two: Path, tmp_path: Path, accelerator: Accelerator) -> None:
    shutil.copytree(two / "stream", tmp_path / "stream")
    for step in (14, 20):
        shutil.rmtree(tmp_path / "stream" / "checkpoints" / f"step-{step:06d}")
    rows, model, objective = streamed(tmp_path / "text")
    run(model, rows, settings(tmp_path / "stream", resume=True), accelerator=accelerator, collate=objective)
    logs = [read_log(folder / "stream" / "log.jsonl") for folder in (two, tmp_path)]
    assert [record["tokens_seen"] for record in logs[0]] == [record["tokens_seen"] for record in logs[1]]
    assert [record["loss"] for record in logs[0]] == pytest.approx([record["loss"] for record in logs[1]], rel=1e-5)


def test_no_two_batches_draw_the_same_random_numbers(seen: list[dict[str, Any]]) -> None:
    drawn = seen[0]["drawn"] + seen[1]["drawn"]
    assert len(set(drawn)) == len(drawn) == 8


def test_every_process_learns_of_a_mistake(two: Path, seen: list[dict[str, Any]]) -> None:
    assert seen[0]["errors"] == seen[1]["errors"]
    errors = seen[0]["errors"]
    assert "2 parameters take no part in the loss: pooler.weight, pooler.bias; remove them" in errors["unused"]
    assert "training.seed was 0 and is 1; set it back or start a new run" in errors["refused"].replace("them", "it")
    assert not (two / "refused" / "begun").exists()
    assert errors["nan"].startswith("step 1: the loss is nan")
    assert errors["processes"].startswith("this run has 2 processes but training.num_processes is 3; launch it with")
    assert errors["processes"].endswith(" --num_processes 3 SCRIPT, or set training.num_processes to 2")
    assert "is a file; choose a folder" in errors["folder"]
    assert errors["main"] == "only the main process saw this"
    assert "shared-0/run is another folder to 1 of 2 processes: give one on a disk" in errors["not shared"]
    assert errors["shared"] == "no error"
    assert {process["result"] for process in seen} == {"said by the main process"}


@pytest.mark.parametrize("arguments", [["--cpu"], ["--config_file", "MULTI_CPU"]], ids=["cpu", "multi-cpu"])
def test_a_launcher_that_starts_one_process_for_two_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator, arguments: list[str]
) -> None:
    file = tmp_path / "multi_cpu.yaml"
    shipped = yaml.safe_load((CONFIGS / "two_processes_cpu.yaml").read_text())
    file.write_text(yaml.safe_dump({**shipped, "distributed_type": "MULTI_CPU"}))
    arguments = [str(file) if argument == "MULTI_CPU" else argument for argument in arguments]
    # Accelerate's own code says which single process it would start for this command line, and in which environment.
    parsed = launch_command_parser().parse_args([*arguments, "--num_processes", "2", "script.py"])
    parsed, *_ = _validate_launch_command(parsed)
    command, environment = prepare_simple_launcher_cmd_env(parsed)
    assert command[1:] == ["script.py"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"1 process but the launcher was asked for more .* --config_file configs/acc"):
        check_num_processes(accelerator)
    check_num_processes(accelerator, 1)


@pytest.mark.parametrize(
    ("environment", "asked", "message"),
    [
        ({"WORLD_SIZE": "2"}, None, "this run has 1 process but the launcher was asked for 2"),
        ({}, 2, r"training\.num_processes is 2; launch it with .* --num_processes 2 SCRIPT, or set"),
        (
            {},
            4,
            r"launch it with .*accelerate launch --config_file configs/accelerate/\w+\.yaml --num_processes 4 SCRIPT",
        ),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "localhost"}, 1, None),
        ({"MASTER_ADDR": "localhost"}, None, None),
        ({}, None, None),
    ],
)
def test_missing_processes_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
    accelerator: Accelerator,
    environment: dict[str, str],
    asked: int | None,
    message: str | None,
) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if message is None:
        check_num_processes(accelerator, asked)
    else:
        with pytest.raises(UsageError, match=message):
            check_num_processes(accelerator, asked)


def test_accumulation_set_for_the_launcher_does_not_divide_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    AcceleratorState._reset_state(reset_partial_state=True)
    assert make_accelerator().gradient_accumulation_steps == 1


def test_an_accelerator_that_divides_the_gradient_is_refused(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4))
    with pytest.raises(ValueError, match="make_accelerator"):
        run(causal_model(), text_rows(4), settings(tmp_path), accelerator=accelerator)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_says_how_to_launch_it(path: Path) -> None:
    text = path.read_text()
    script = "my_trainer.py" if "refuses this file" in text.replace("\n# ", " ") else "train/pretrain.py"
    options = " --machine_rank 0 --main_process_ip 10.0.0.1" if path.stem == "two_machines" else ""
    assert f"accelerate launch --config_file configs/accelerate/{path.name}{options} {script}" in text
    assert yaml.safe_load(text)["compute_environment"] == "LOCAL_MACHINE"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_every_file(path: Path) -> None:
    """Loaded and checked as `accelerate launch` does it; what cannot run here says so."""
    parsed = launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    shipped = yaml.safe_load(path.read_text())
    config = load_config_from_file(str(path))
    assert config.num_processes == shipped["num_processes"]
    assert ("Needs GPUs" in path.read_text()) == (shipped["num_processes"] > 1 and not shipped["use_cpu"])
    parsed, *_ = _validate_launch_command(parsed)
    assert parsed.num_machines == shipped["num_machines"]
    if shipped["distributed_type"] == "DEEPSPEED":
        assert (parsed.use_deepspeed, parsed.zero_stage) == (True, int(path.stem[-1]))
        assert "cannot run on a CPU" in path.read_text()
    if shipped.get("parallelism_config", {}).get("parallelism_config_tp_size", 1) > 1:
        assert (parsed.use_parallelism_config, parsed.parallelism_config_tp_size) == (True, 8)
    if shipped["distributed_type"] == "FSDP":
        assert (parsed.use_fsdp, parsed.fsdp_version, parsed.fsdp_transformer_layer_cls_to_wrap) == (True, 2, "Block")
        shards = shipped.get("parallelism_config", {"parallelism_config_dp_shard_size": shipped["num_processes"]})
        sizes = [size for name, size in shards.items() if "_size" in name]
        assert math.prod(sizes) == shipped["num_processes"]


def test_sharding_that_would_be_left_away_is_refused(monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UsageError, match=r"sharded weights .FSDP., which need GPUs"):
        check_sharding(accelerator)


def test_deepspeed_is_refused_before_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match=r"DeepSpeed, which is for transformers' Trainer: .*fsdp2_full.yaml, which is"):
        make_accelerator()


@pytest.mark.parametrize(("kind", "processes"), [("TP", 16), ("CP", 8), ("SP", 8)])
def test_groups_whose_gradients_nobody_averages_are_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, processes: int
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv(f"PARALLELISM_CONFIG_{kind}_SIZE", "8")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(UsageError, match=rf"parallelism_config_tp_size.*here {processes}.*fsdp2_full\.yaml"):
        asked_together()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: own_model(position="alibi"), "position 'alibi' has a term per head"),
        (lambda: own_model(num_attention_heads=1), "num_key_value_heads 1 is no multiple of 2 processes"),
        (lambda: nn.Linear(2, 2), "it has no plan for that"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(model: Any, said: str) -> None:
    with pytest.raises(UsageError, match=rf"divides the layers of .* among 2 processes: {said}.*; launch with"):
        check_divisible(model(), 2)


def test_a_network_that_leads_nowhere_is_one_line() -> None:
    """What gloo and torch say of it, and what is no such error."""
    said = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR. This is typical"
    for error in (RuntimeError(said), torch.distributed.DistNetworkError("timed out connecting: SO_ERROR")):
        with (
            pytest.raises(
                UsageError, match=r"^process 0 of 1: another process is gone \(timed out connecting: SO_ERROR\)"
            ),
            reporting_network(),
        ):
            raise error
    with pytest.raises(RuntimeError, match="out of memory"), reporting_network():
        raise RuntimeError("out of memory")


def test_accelerate_takes_the_file_for_one_process() -> None:
    config = load_config_from_file(str(CONFIGS / "one_process.yaml"))
    assert (config.num_processes, config.distributed_type.value) == (1, "NO")


ON_CPU = ["--mixed_precision=no", "--main_process_port=0"]
HYBRID = [
    "--num_processes=4",
    "--parallelism_config_dp_replicate_size=2",
    "--parallelism_config_dp_shard_size=2",
    "--parallelism_config_tp_size=1",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("two_processes_cpu.yaml", []),
        ("tensor_parallel.yaml", [*ON_CPU, *HYBRID]),
        ("tensor_parallel.yaml", [*ON_CPU, "--num_processes=2", "--parallelism_config_tp_size=2"]),
    ],
    ids=["fsdp2", "hybrid", "tp"],
)
def test_sharded_weights_train_save_and_go_on_as_whole_ones(
    file: str, options: list[str], tmp_path: Path, accelerator: Accelerator
) -> None:
    launch(SCRIPT.with_name("sharded.py"), tmp_path, *options, file=file)
    changes = {"per_device_batch_size": 4, "schedule": "constant", "ema_decay": 0.9, "eval_steps": 2}
    one = run(
        own_model(**MODEL),
        text_rows(12),
        settings(tmp_path / "one", max_steps=4, **changes),
        accelerator=accelerator,
        evaluate=held_out(text_rows(3), accelerator),
    )
    mine, theirs = (read_log(tmp_path / run / "log.jsonl") for run in ("one", "parts"))
    assert [record["loss"] for record in theirs] == pytest.approx([record["loss"] for record in mine], abs=1e-5)
    delivered = AutoModelForCausalLM.from_pretrained(tmp_path / "parts" / "model")  # whole, and of its own class
    for ours, parameter in zip(one.model.parameters(), delivered.parameters(), strict=True):
        torch.testing.assert_close(parameter, ours, rtol=1e-4, atol=1e-5)
    config = json.loads((tmp_path / "parts" / "checkpoints" / "step-000004" / "config.json").read_text())
    assert config["architectures"] == ["AttnKitForCausalLM"]
    for name in ("model.safetensors", "average.safetensors"):
        expected = load_file(one.last_checkpoint / name)
        whole, parts = (load_file(tmp_path / run / "checkpoints" / "step-000004" / name) for run in ("whole", "parts"))
        assert whole.keys() == expected.keys()  # tied weights once
        for key, tensor in expected.items():
            torch.testing.assert_close(whole[key], tensor, rtol=1e-4, atol=1e-5)
            assert torch.equal(parts[key], whole[key])
    # A checkpoint knows no processes: one goes on where two stopped.
    training = settings(tmp_path / "parts", max_steps=5, resume=True, **changes)
    assert run(own_model(**MODEL), text_rows(12), training, accelerator=accelerator).steps == 5
