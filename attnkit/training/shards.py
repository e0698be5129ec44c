"""Tensors that processes share out among them, and the whole that is saved.

A checkpoint knows no processes: tensors are gathered before they are written, and shared out again as each process of
the run that reads them needs them. The state of an optimizer is kept by the names of its parameters.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


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
    if [group_key(group) for group in groups] != [group_key(group) for group in saved["param_groups"]]:
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


def group_key(group: dict[str, Any]) -> tuple[Any, ...]:
    """What must be alike for a state to fit a group: its parameters, and the names of its settings."""
    return (tuple(group["param_names"]), tuple(sorted(group)))
