"""AdamW, with weight decay on matrices only."""

from typing import Any

import torch
from torch import nn

from attnkit.training.settings import TrainingConfig


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
    settings: dict[str, Any] = {
        "lr": training.learning_rate,
        "betas": (training.adam_beta1, training.adam_beta2),
        "eps": training.adam_epsilon,
    }
    try:
        return torch.optim.AdamW(groups, fused=True, **settings)
    except RuntimeError:  # torch has no fused kernel for this device or number type
        return torch.optim.AdamW(groups, fused=False, **settings)
