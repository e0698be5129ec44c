"""Optimizers by name, and the groups of parameters that all of them get. All but Lion are torch's."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from attnkit.errors import UsageError
from attnkit.models.kinds import matrices_of_body, vectors
from attnkit.scaling.transfer import Transfer, transfer
from attnkit.training.layers import rate_factors
from attnkit.training.settings import TrainingConfig
from attnkit.training.shards import whole

Group = dict[str, Any]
FUSED_ON = ("cpu", "cuda", "hpu", "mps", "xpu")  # devices for which torch has the fused kernel


def parameter_groups(model: nn.Module, training: TrainingConfig) -> list[Group]:
    """The parameters of `model` that want a gradient, in groups of one `kind` each:

    | kind | which | decays |
    |---|---|---|
    | hidden | matrices inside the body that are no embedding | yes |
    | matrix | all else of two and more dimensions: embeddings, heads, stacks of matrices | yes |
    | vector | biases, norms and other vectors, also one per head in one tensor | no |

    The groups keep the names of their parameters, so that a checkpoint of another model is noticed. A group learns at
    `rate_factor` times the rate of the schedule, less near the input with `training.layer_decay`, and its decay too has
    a factor with `training.transfer`; there is a group for each kind and pair of factors, and one more where processes
    share out some of its parameters, as one kernel takes no others with these. Raises `ValueError` when nothing is
    trainable.
    """
    hidden, single = {id(parameter) for parameter in matrices_of_body(model)}, vectors(model)
    of_layer = rate_factors(model, training.layer_decay)
    of_rule = {} if training.transfer is None else chosen_transfer(model.config, training).factors(model)
    named: dict[tuple[str, float, float, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = "vector" if id(parameter) in single else "hidden" if id(parameter) in hidden else "matrix"
            rate, decay = of_rule.get(id(parameter), (1.0, 1.0))
            is_shared = isinstance(parameter, DTensor)
            named.setdefault((kind, of_layer[name] * rate, decay, is_shared), []).append((name, parameter))
    if not named:
        raise ValueError("the model has no parameter that requires a gradient")
    decays = {"hidden": training.weight_decay, "matrix": training.weight_decay, "vector": 0.0}
    return [
        {"params": members, "kind": kind, "weight_decay": decays[kind] * decay, "rate_factor": rate}
        for (kind, rate, decay, _), members in sorted(
            named.items(), key=lambda item: (list(decays).index(item[0][0]), *item[0][1:])
        )
    ]


def chosen_transfer(config: Any, training: TrainingConfig) -> Transfer:
    """The factors of `training.transfer` for the model of a config. Raises `UsageError` where its rule covers none."""
    assert training.transfer is not None
    try:
        return transfer(
            config,
            rule=training.transfer,
            base_hidden_size=training.base_hidden_size,
            base_num_hidden_layers=training.base_num_hidden_layers,
        )
    except UsageError as error:
        raise UsageError(f"training.transfer: {error}") from error


def adamw(groups: Sequence[Group], training: TrainingConfig) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov 2019), fused where torch can."""
    parameters = [parameter for group in groups for _, parameter in group["params"]]
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=all(p.device.type in FUSED_ON and p.is_floating_point() for p in parameters),
    )


def muon(groups: Sequence[Group], training: TrainingConfig) -> Optimizer:
    """Hidden matrices by orthogonalized momentum (Jordan 2024), the rest by AdamW.

    The updates of both have the size of AdamW's (Liu 2025, arXiv 2502.16982, section 2.2), hence one learning rate.
    """
    hidden = [group for group in groups if group["kind"] == "hidden"]
    rest = [group for group in groups if group["kind"] != "hidden"]
    members: list[Optimizer] = []
    if hidden:
        members.append(
            torch.optim.Muon(
                hidden, lr=training.learning_rate, momentum=training.momentum, adjust_lr_fn="match_rms_adamw"
            )
        )
    if rest:
        members.append(adamw(rest, training))
    return Joint(members)


def adafactor(groups: Sequence[Group], training: TrainingConfig) -> Optimizer:
    """Second moments of matrices as the product of a row and a column, and no first moments (Shazeer 2018).

    As there, steps are relative to the size of the parameter, and the rate is at most 1/√step.
    """
    return torch.optim.Adafactor(groups, lr=training.learning_rate)


def lion(groups: Sequence[Group], training: TrainingConfig) -> Optimizer:
    """The sign of a mean of gradients as the update, with the decays of its paper, 0.9 and 0.99 (Chen 2023).

    Every weight moves by the learning rate, which so is three to ten times lower than AdamW's.
    """
    from lion_pytorch import Lion  # an extra

    return Lion(groups, lr=training.learning_rate)


OPTIMIZERS: dict[str, Callable[[Sequence[Group], TrainingConfig], Optimizer]] = {
    "adamw": adamw,
    "muon": muon,
    "adafactor": adafactor,
    "lion": lion,
}


class Joint(Optimizer):
    """Several optimizers that step as one: their groups, in their order, and one state."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self.members = [(member, len(member.param_groups)) for member in members]
        super().__init__([group for member in members for group in member.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        start = 0
        for member, num_groups in self.members:
            # Shared anew each time, because a state that is loaded replaces both.
            member.param_groups = self.param_groups[start : start + num_groups]
            member.state = self.state
            member.step()
            start += num_groups
        return loss


def build_optimizer(model: nn.Module, training: TrainingConfig) -> Optimizer:
    """The optimizer `training.optimizer` of a model's parameters. Raises `ValueError` when nothing is trainable."""
    return OPTIMIZERS[training.optimizer](parameter_groups(model, training), training)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Let the next step be made at the rate of the schedule, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]


def clip_gradients(parameters: Iterable[nn.Parameter], *, limit: float | None) -> float:
    """Return the norm of all gradients together, which are scaled down to `limit` where it is more than that.

    Below the limit nothing is multiplied, as torch's `clip_grad_norm_` does with 1: that would read and write all
    gradients once more. Those that processes share out may be so in several ways, and each way has a norm of its own.
    """
    ways: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            way = gradient.device_mesh if isinstance(gradient, DTensor) else None
            ways.setdefault(way, []).append(parameter)
    norms = [whole(get_total_norm([p.grad for p in members if p.grad is not None])) for members in ways.values()]
    total = torch.stack(norms).norm() if len(norms) > 1 else norms[0]
    norm = total.item()
    if limit is not None and limit < norm < math.inf:
        for way, members in ways.items():
            clip_grads_with_norm_(members, limit, total if way is None else DTensor.from_local(total, way))
    return norm
