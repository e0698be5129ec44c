"""A run whose weights processes share out among them; started by the tests of launching.

    accelerate launch --config_file configs/accelerate/two_processes_cpu.yaml sharded.py FOLDER
    accelerate launch --config_file configs/accelerate/tensor_parallel.yaml … sharded.py FOLDER

By FSDP2, of all processes or within groups of them, or where the launcher asks for it by dividing each layer.
Accelerate shards on GPUs only and says nothing on a CPU, so its state is told here what the launcher tells it there.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from samples import held_out, own_model, run, settings, text_rows
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from attnkit.models.loss import TokenLoss
from attnkit.training.checkpoint import load_weights
from attnkit.training.launch import dividing_layers, make_accelerator, num_readers
from attnkit.training.loop import TrainResult

MODEL = {"scorer": "gaussian", "num_hidden_layers": 2}


def shard(accelerator: Accelerator) -> None:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
    if (together := accelerator.parallelism_config) is not None:
        accelerator.state.device_mesh = together.get_device_mesh("cpu")


def refuse(*_: Any) -> Any:
    raise AssertionError("the logits of all tokens were computed")


def main() -> None:
    folder = Path(sys.argv[1])
    accelerator = make_accelerator()
    divides = dividing_layers(accelerator) > 1
    if not divides:
        shard(accelerator)
        # Weights that are gathered for a call and not before it spare the logits as well.
        TokenLoss.of_logits = refuse

    def train(name: str, **changes: Any) -> TrainResult:
        model = own_model(**MODEL, tie_word_embeddings=name != "untied")
        changes = {
            "per_device_batch_size": 4 // num_readers(accelerator),
            "schedule": "constant",
            "ema_decay": 0.9,
            "eval_steps": 2,
            **changes,
        }
        training = settings(folder / name, **changes)
        evaluate = held_out(text_rows(3), accelerator)
        result = run(model, text_rows(12), training, accelerator=accelerator, evaluate=evaluate)
        shared = [isinstance(parameter, DTensor) for parameter in model.parameters()]
        assert any(shared) if divides else all(shared)
        assert all(it.is_meta != accelerator.is_main_process for it in result.model.state_dict().values())
        if accelerator.is_main_process:  # what is given back needs no other process
            result.model.save_pretrained(folder / name / "model")
        accelerator.wait_for_everyone()
        load_weights(result.model, result.last_checkpoint, averaged=True)
        delivered = AutoModelForCausalLM.from_pretrained(folder / name / "model")
        for own, saved in zip(result.model.parameters(), delivered.parameters(), strict=True):
            assert torch.equal(own, saved)
        return result

    train("whole", max_steps=4)
    train("untied", max_steps=1)
    train("parts", max_steps=2)
    train("parts", max_steps=4, resume=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
