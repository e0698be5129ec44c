"""What a configuration costs, before any of it is spent: pure functions of a config."""

from attnkit.asked import only_help_is_wanted

__all__ = [
    "CATALOGUE",
    "HEADS",
    "LAWS",
    "Device",
    "FlopCount",
    "Law",
    "LawFit",
    "Layout",
    "MemoryEstimate",
    "ParameterCount",
    "Plan",
    "Run",
    "TimeEstimate",
    "Workload",
    "count_flops",
    "count_generation_flops",
    "count_parameters",
    "estimate_memory",
    "estimate_time",
    "fewest_devices",
    "find_device",
    "fit_scaling_law",
    "parameters_by_component",
    "plan",
    "repeated_loss",
    "trace_memory",
]

# What is counted needs torch, for which a person who asks for help should not wait.
if not only_help_is_wanted():
    from attnkit.scaling.fit import LawFit, Run, fit_scaling_law
    from attnkit.scaling.flops import FlopCount, count_flops, count_generation_flops
    from attnkit.scaling.hardware import CATALOGUE, Device, TimeEstimate, estimate_time, find_device
    from attnkit.scaling.laws import LAWS, Law, repeated_loss
    from attnkit.scaling.memory import Layout, MemoryEstimate, Workload, estimate_memory, fewest_devices, trace_memory
    from attnkit.scaling.parameters import ParameterCount, count_parameters, parameters_by_component
    from attnkit.scaling.planner import plan
    from attnkit.scaling.plans import Plan
    from attnkit.scaling.subject import HEADS
