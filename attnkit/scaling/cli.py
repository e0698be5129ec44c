"""`attnkit scale`: the jobs of this package by name, each with its own flags."""

from collections.abc import Callable, Sequence
from importlib import import_module

from attnkit.errors import UsageError, nearest
from attnkit.scaling import flags

DESCRIPTION = "what a configuration costs, before any of it is spent"


def answer(arguments: Sequence[str]) -> str:
    """What `attnkit scale ARGUMENTS` has to say. Raises `UsageError` for what it cannot be told."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return overview()
    name, *rest = arguments
    if name not in JOBS:
        raise UsageError(f"unknown job {name!r} of scale: {nearest(name, JOBS)}")
    fill, (module, function), summary = JOBS[name]
    parser = flags.Parser(
        prog=f"attnkit scale {name}",
        description=summary,
        add_help=False,
        allow_abbrev=False,
        formatter_class=flags.Help,
    )
    fill(parser)
    if "-h" in rest or "--help" in rest:
        return parser.format_help().rstrip("\n")
    if any("\n" in word for word in rest):
        raise UsageError("a word holds a line break: take it out")
    given = parser.parse_args(rest)
    form = flags.take_format(given)
    try:
        return str(vars(import_module(module))[function](given).written(form))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}: give another file") from error


def overview() -> str:
    """The help of the verb."""
    jobs = "\n".join(f"  {name:<12}{summary}" for name, (_, _, summary) in JOBS.items())
    return f"usage: attnkit scale JOB [--help] ...\n\nWhat a configuration costs, before any of it is spent.\n\n{jobs}"


BUDGETS, CONFIGS = "attnkit.scaling.jobs_of_budgets", "attnkit.scaling.jobs_of_configs"

# What fills in a job's flags, the module and the function that does it, and what it is.
JOBS: dict[str, tuple[Callable[[flags.Parser], None], tuple[str, str], str]] = {
    "table": (flags.fill_table, (BUDGETS, "do_table"), "the ten models of the size table, recomputed"),
    "count": (flags.fill_count, (CONFIGS, "do_count"), "parameters per component"),
    "flops": (flags.fill_flops, (CONFIGS, "do_flops"), "FLOPs per component, by convention"),
    "memory": (flags.fill_memory, (CONFIGS, "do_memory"), "memory per device, and the fewest devices"),
    "time": (flags.fill_time, (BUDGETS, "do_time"), "time, utilization, cost and energy of some FLOPs"),
    "plan": (flags.fill_plan, (BUDGETS, "do_plan"), "the best model for a budget, with the run that trains it"),
    "fit": (flags.fill_fit, (BUDGETS, "do_fit"), "a scaling law of one's own runs"),
    "transfer": (
        flags.fill_transfer,
        (CONFIGS, "do_transfer"),
        "factors for a learning rate tuned on a smaller model",
    ),
    "calibrate": (
        flags.fill_calibrate,
        (CONFIGS, "do_calibrate"),
        "measure a short run here and predict a longer one",
    ),
    "audit": (flags.fill_audit, (CONFIGS, "do_audit"), "what other tools would answer, and why"),
}
