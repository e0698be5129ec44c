"""What a configuration costs, before any of it is spent: pure functions of a config."""

from attnkit.scaling.flops import FlopCount, count_flops, count_generation_flops
from attnkit.scaling.parameters import ParameterCount, count_parameters, parameters_by_component
from attnkit.scaling.subject import HEADS

__all__ = [
    "HEADS",
    "FlopCount",
    "ParameterCount",
    "count_flops",
    "count_generation_flops",
    "count_parameters",
    "parameters_by_component",
]
