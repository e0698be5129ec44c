"""What a configuration costs, before any of it is spent: pure functions of a config."""

from attnkit.scaling.parameters import ParameterCount, count_parameters, parameters_by_component
from attnkit.scaling.subject import HEADS

__all__ = [
    "HEADS",
    "ParameterCount",
    "count_parameters",
    "parameters_by_component",
]
