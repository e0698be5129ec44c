"""`attnkit scale`: the jobs of this package by name, each with its own flags."""

from collections.abc import Sequence
from typing import Any

from attnkit.errors import UsageError, nearest
from attnkit.scaling import jobs_of_budgets as budgets
from attnkit.scaling import jobs_of_configs as configs
from attnkit.scaling.flags import Parser, add_subject

DESCRIPTION = "what a configuration costs, before any of it is spent"


def answer(arguments: Sequence[str]) -> str:
    """What `attnkit scale ARGUMENTS` has to say. Raises `UsageError` for what it cannot be told."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return overview()
    name, *rest = arguments
    if name not in JOBS:
        raise UsageError(f"unknown job {name!r} of scale: {nearest(name, JOBS)}")
    fill, do, summary = JOBS[name]
    parser = Parser(prog=f"attnkit scale {name}", description=summary, add_help=False, allow_abbrev=False)
    fill(parser)
    if "-h" in rest or "--help" in rest:
        return parser.format_help().rstrip("\n")
    return str(do(parser.parse_args(rest)))


def overview() -> str:
    """The help of the verb."""
    jobs = "\n".join(f"  {name:<12}{summary}" for name, (_, _, summary) in JOBS.items())
    return f"usage: attnkit scale JOB [--help] ...\n\nWhat a configuration costs, before any of it is spent.\n\n{jobs}"


JOBS: dict[str, tuple[Any, Any, str]] = {
    "table": (budgets.fill_table, budgets.do_table, "the ten models of the size table, recomputed"),
    "count": (add_subject, configs.do_count, "parameters per component"),
    "flops": (configs.fill_flops, configs.do_flops, "FLOPs per component, by convention"),
    "memory": (configs.fill_memory, configs.do_memory, "memory per device, and the fewest devices"),
    "time": (budgets.fill_time, budgets.do_time, "time, utilization, cost and energy of some FLOPs"),
    "plan": (budgets.fill_plan, budgets.do_plan, "the best model for a budget, with the run that trains it"),
    "fit": (budgets.fill_fit, budgets.do_fit, "a scaling law of one's own runs"),
    "transfer": (configs.fill_transfer, configs.do_transfer, "factors for a learning rate tuned on a smaller model"),
    "calibrate": (configs.fill_calibrate, configs.do_calibrate, "measure a short run here and predict a longer one"),
    "audit": (configs.fill_audit, configs.do_audit, "what other tools would answer, and why"),
}
