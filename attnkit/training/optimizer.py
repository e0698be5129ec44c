"""AdamW, with weight decay on matrices only."""

import torch
from torch import nn

from attnkit.training.settings import TrainingConfig

FUSED_ON = ("cpu", "cuda", "hpu", "mps", "xpu")  # devices for which torch has the fused kernel


def build_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov 2019) over the parameters of `model` that want a gradient, fused where torch can.

    Parameters of two and more dimensions decay; biases, norms and other vectors do not. The groups keep the names of
    their parameters, so that a checkpoint of another model is noticed. Raises `ValueError` when nothing is trainable.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError("the model has no parameter that requires a gradient")
    matrices = [(name, parameter) for name, parameter in named if parameter.ndim >= 2]
    vectors = [(name, parameter) for name, parameter in named if parameter.ndim < 2]
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, training.weight_decay), (vectors, 0.0))
        if members
    ]
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=all(p.device.type in FUSED_ON and p.is_floating_point() for _, p in named),
    )
