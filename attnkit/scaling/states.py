"""Bytes of weights, gradients and optimizer states: what a step starts from or ends with."""

import math
from dataclasses import dataclass

from attnkit.models.kinds import matrices_of_body
from attnkit.scaling.choices import Optimizer, Precision
from attnkit.scaling.parameters import count_parameters
from attnkit.scaling.subject import Subject

# Bytes per parameter of weights, gradients and master weights, and of one number of an optimizer state.
BYTES = {
    "fp32": (4, 4, 0, 4),
    "autocast": (4, 4, 0, 4),
    "bf16": (2, 2, 0, 2),
    "mixed": (2, 2, 4, 4),
    "mixed_fp32_gradients": (2, 4, 4, 4),
}
STATES = {"adamw": 2, "lion": 1, "sgd": 0, "sgd_momentum": 1, "none": 0}  # numbers per parameter
EIGHT_BIT_BLOCK = 256  # numbers that share one fp32 scale (Dettmers 2022)


@dataclass(frozen=True, kw_only=True)
class Static:
    """Bytes of the whole model."""

    weights: int
    gradients: int
    optimizer: int


def static_bytes(subject: Subject, *, precision: Precision, optimizer: Optimizer, training: bool) -> Static:
    """Weights, gradients, and the optimizer's states with the master weights."""
    weight, gradient, master, number = BYTES[precision]
    parameters = count_parameters(subject.config, head=subject.head)
    if not training:
        return Static(weights=weight * parameters, gradients=0, optimizer=0)
    if optimizer == "adamw_8bit":
        states = 2 * parameters + 2 * 4 * math.ceil(parameters / EIGHT_BIT_BLOCK)
    elif optimizer in STATES:
        states = STATES[optimizer] * number * parameters
    else:
        states = number * numbers_by_shape(subject, optimizer)
    return Static(weights=weight * parameters, gradients=gradient * parameters, optimizer=states + master * parameters)


def numbers_by_shape(subject: Subject, optimizer: Optimizer) -> int:
    """The numbers that an optimizer keeps whose state depends on the shapes of parameters.

    "muon" keeps one moment of hidden matrices (Jordan 2024), the matrices of the body that are no embedding, and those
    of AdamW of all else; "adafactor" a row and a column of each matrix (Shazeer 2018, section 3).
    """
    model = subject.build_without_memory()
    if optimizer == "adafactor":
        return sum(
            it.numel() // it.shape[-1] + it.numel() // it.shape[-2] if it.ndim > 1 else it.numel()
            for it in model.parameters()
        )
    parameters = sum(it.numel() for it in model.parameters())
    hidden = {id(parameter): parameter.numel() for parameter in matrices_of_body(model)}
    return 2 * parameters - sum(hidden.values())
