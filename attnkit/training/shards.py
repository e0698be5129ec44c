"""Tensors that processes share out among them, and the whole that is saved.

A checkpoint knows no processes: tensors are gathered before they are written, and shared out again as each process of
the run that reads them needs them. The state of an optimizer is kept by the names of its parameters.
"""

from typing import Any

import torch
import transformers  # which reads what it has of models when it is first asked for it
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.distributed import DistributedConfig

from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.parallel import tensor_obstacle
from attnkit.training.launch import dividing_layers


def check_divisible(model: nn.Module, num_processes: int) -> None:
    """Raise `UsageError` for a model of which processes cannot divide each layer among them."""
    if num_processes == 1:
        return
    obstacle = None
    if isinstance(model, transformers.PreTrainedModel) and isinstance(model.config, AttnKitConfig):
        obstacle = tensor_obstacle(model.config, num_processes)
    elif not isinstance(model, transformers.PreTrainedModel) or not model.tp_plan:
        obstacle = "it has no plan for that"
    if obstacle is not None:
        raise UsageError(
            f"the launcher divides the layers of {type(model).__name__} among {num_processes} processes: {obstacle}; "
            "launch with configs/accelerate/fsdp2_full.yaml or ddp.yaml"
        )


def divide_layers(model: nn.Module, num_processes: int) -> None:
    """Leave of each layer the part of this process, by transformers' plan (tensor parallelism). All have equal weights
    before."""
    if num_processes > 1 and isinstance(model, transformers.PreTrainedModel):
        for name in model.all_tied_weights_keys:  # divided one by one, and tied again
            place, _, key = name.rpartition(".")
            tied = model.get_parameter(name)
            setattr(model.get_submodule(place), key, nn.Parameter(tied.detach(), requires_grad=tied.requires_grad))
        config, _, meshes = model.prepare_distribute_model(DistributedConfig(tp_size=num_processes))
        model.maybe_distribute_model(model, config, meshes)
        model.tie_weights()


def is_shared_out(accelerator: Accelerator) -> bool:
    """Whether each process has a part of the weights only."""
    return accelerator.distributed_type == DistributedType.FSDP or dividing_layers(accelerator) > 1


def fill(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a model weights of the dtype that they have; those that are tied stay so."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights:
            tensor.data = weights[name]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_out(tensor: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, or the part of it that this process has of `own`."""
    if not isinstance(own, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state by name; tensors that are tied appear once, under the first of their names."""
    state: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        place: Any = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if isinstance(tensor, DTensor) or tensor.numel() == 0:
            place = id(tensor)  # a part that is empty has no place in memory
        if place not in seen:
            seen.add(place)
            state[name] = whole(tensor.detach()).contiguous()
    return state


def whole_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state, by name of parameter, and its groups."""
    plain = optimizer.state_dict()
    names = [name for group in plain["param_groups"] for name in group["param_names"]]
    state = {
        names[index]: {key: whole(value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for index, values in plain["state"].items()
    }
    return {"state": state, "param_groups": plain["param_groups"]}


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> bool:
    """Go back to a saved state, with the settings of the groups as they are now.

    Returns whether that was possible: it is not where other parameters were trained, or by another kind of optimizer.
    """
    groups = optimizer.state_dict()["param_groups"]
    if settings_of(groups) != settings_of(saved["param_groups"]):
        return False
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = [name for group in groups for name in group["param_names"]]
    state = {}
    for index, (name, parameter) in enumerate(zip(names, parameters, strict=True)):
        values = saved["state"].get(name, {})
        # A shard has the shape of the whole to whoever asks it.
        state[index] = {
            key: share_out(value, parameter)
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim
            else value
            for key, value in values.items()
        }
    optimizer.load_state_dict({"state": {k: v for k, v in state.items() if v}, "param_groups": groups})
    return True


def settings_of(groups: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What must be alike for a state to fit: the parameters by name, and the names of the settings of each. How they
    are grouped need not, as processes that divide layers do not divide all of them."""
    return {name: sorted(group) for group in groups for name in group["param_names"]}
