"""Tensors that processes share out among them, and the whole that is saved.

A checkpoint knows no processes: tensors are gathered before they are written, and shared out again as each process of
the run that reads them needs them. The state of an optimizer is kept by the names of its parameters.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import transformers  # which reads what it has of models when it is first asked for it
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import swap_tensors
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


def outcome_of(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """What a run gives back: the model, or where each process will have a part of its weights only, a copy that takes
    no memory for them, for `fill`."""
    if accelerator.distributed_type != DistributedType.FSDP and dividing_layers(accelerator) == 1:
        return model
    memo: dict[int, Any] = {}  # of what is tied there is one
    for tensor in model.state_dict(keep_vars=True).values():
        memo[id(tensor)] = like(tensor, tensor.detach().to("meta"))
    return deepcopy(model, memo)


def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model without weights those of a state, of the dtype that they have; those that are tied stay so."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights:
            swap_tensors(tensor, like(tensor, weights[name]))


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """A value as what the tensor in its place is: a parameter that learns or not, or a buffer."""
    return nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """All of each tensor, for those processes that `keep` it: others have no more than one at a time.

    Every process has to ask. What was shared out is then in the memory of the CPU, as it may be too much for a device.
    """
    found = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor.detach())
        if keep:
            found[name] = gathered.cpu() if isinstance(tensor, DTensor) else gathered
    return found


def share_out(tensor: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, or the part of it that this process has of `own`."""
    if not isinstance(own, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements)


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state by name, as this process has it; tensors that are tied appear once, under the first of their
    names."""
    state: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        place: Any = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if isinstance(tensor, DTensor) or tensor.is_meta or tensor.numel() == 0:
            place = id(tensor)  # a part that is empty has no place in memory
        if place not in seen:
            seen.add(place)
            state[name] = tensor.detach()
    return state


def whole_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The model's state by name, whole, as `gather` has it."""
    return {name: tensor.contiguous() for name, tensor in gather(own_weights(model), keep=keep).items()}


def whole_optimizer(optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """Its state, by name of parameter, whole as `gather` has it, and its groups."""
    plain = optimizer.state_dict()
    names = [name for group in plain["param_groups"] for name in group["param_names"]]
    state = {}
    for index, values in plain["state"].items():
        tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
        state[names[index]] = values | gather(tensors, keep=keep)
    return {"state": state if keep else {}, "param_groups": plain["param_groups"]}


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
