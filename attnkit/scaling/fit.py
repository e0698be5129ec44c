"""Fit a scaling law to runs (Hoffmann 2022, section 3.3): Huber loss on log L, many starts, bootstrap intervals.

log L̂ = log Σ exp(log A - α·log N, log B - β·log D, log E)
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t

from attnkit.errors import UsageError, check_count, check_number
from attnkit.files.text import parse_number
from attnkit.scaling.laws import CONSTANTS as NAMES
from attnkit.scaling.laws import Law

HUBER = 1e-3  # residuals of log L beyond it count linearly
CONSTANTS = 5
FEWEST_RUNS = CONSTANTS + 1
COLLINEAR = 0.999  # correlation of log N and log D
FEWEST_SIZES = 3  # distinct N, and distinct D: with fewer an exponent and its factor are one
BOOTSTRAPS = 200
OUTLIER = 0.05  # the chance that any run is named where all follow the law, if their noise is normal
MEDIAN_EFFICIENCY = 0.37  # the median deviation knows the noise as well as the standard deviation of 37% of the runs
MOST_OUTLIERS = 0.25  # of the runs: what more of them do is not an exception
STARTS = tuple(itertools.product((0.0, 8.0, 16.0), (0.0, 8.0, 16.0), (-1.0, 0.7), (0.2, 0.8), (0.2, 0.8)))
BOUNDS = [(-20.0, 40.0), (-20.0, 40.0), (-10.0, 5.0), (1e-3, 3.0), (1e-3, 3.0)]  # log A, log B, log E, α, β
NEAR_BOUND = 1e-2
VAGUE = 20
FEW_ITERATIONS, PROMISING = 60, 8
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained model."""

    name: str
    parameters: float
    tokens: float
    loss: float  # nats per token


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """A law, how sure its constants are, and the runs that do not follow it."""

    law: Law
    """Fitted to the runs that are no outliers."""
    intervals: dict[str, tuple[float, float]]
    """95% of the bootstrap, for each constant and for the share of compute that goes to parameters ("exponent")."""
    outliers: list[str]
    residuals: dict[str, float]
    """log L - log L̂ of each run, outliers too."""
    samples: list[Law]

    @property
    def at_bounds(self) -> list[str]:
        """Constants whose value lies at the edge of what is searched."""
        found = (math.log(self.law.A), math.log(self.law.B), math.log(self.law.E), self.law.alpha, self.law.beta)
        edges = zip(("A", "B", "E", "alpha", "beta"), found, BOUNDS, strict=True)
        return [name for name, value, bounds in edges if min(abs(value - bound) for bound in bounds) < NEAR_BOUND]

    @property
    def undetermined(self) -> list[str]:
        """Constants that the runs do not determine: their interval spans a factor of 20, or their value lies at the
        edge of what is searched."""
        wide = [name for name, (low, high) in self.intervals.items() if high > VAGUE * low]
        return [name for name in constants(self.law) if name in wide or name in self.at_bounds]

    def predict(self, parameters: float, tokens: float) -> tuple[float, float, float]:
        """The loss, and the 95% interval of the bootstrap."""
        losses = [law.loss(parameters, tokens) for law in self.samples]
        low, high = np.quantile(losses, [0.025, 0.975])
        return self.law.loss(parameters, tokens), float(low), float(high)


def fit_scaling_law(
    runs: Iterable[Run] | Sequence[str | Path] | str | Path, *, bootstraps: int = BOOTSTRAPS, seed: int = 0
) -> LawFit:
    """Fit L(N, D) to runs, or to the paths of finished runs and of CSV files with columns parameters, tokens, loss.

    Raises `UsageError` for fewer than six runs, or fewer than three distinct numbers of parameters or of tokens: they
    do not determine five constants.
    """
    listed: list[Run] = []
    for run in [runs] if isinstance(runs, str | Path) else runs:
        if not isinstance(run, Run | str | Path):
            raise UsageError(f"runs must be attnkit.scaling.Run or paths, not {run!r}")
        listed.extend([run] if isinstance(run, Run) else read_runs(run))
    check(listed)
    check_count("bootstraps", bootstraps)
    logs = np.log(np.array([[run.parameters, run.tokens, run.loss] for run in listed]))
    best, follows = search_without_outliers(logs)
    kept = logs[follows]
    generator = np.random.default_rng(seed)
    samples: list[Law] = []
    while len(samples) < bootstraps:
        chosen = generator.integers(len(kept), size=len(kept))
        if is_varied(kept[chosen]):
            samples.append(as_law(search(kept[chosen], [tuple(best)])))
    residuals = logs[:, 2] - predict(best, logs)[0]
    sizes = np.exp(kept[:, :2])
    law = replace(as_law(best), smallest=float(sizes[:, 0].min()), most_flops=float(6 * sizes.prod(axis=1).max()))
    fit = LawFit(
        law=law,
        intervals={name: interval([constants(it)[name] for it in samples]) for name in constants(law)},
        outliers=[run.name for run, follow in zip(listed, follows, strict=True) if not follow],
        residuals={run.name: float(residual) for run, residual in zip(listed, residuals, strict=True)},
        samples=samples,
    )
    return replace(fit, law=replace(law, undetermined=tuple(fit.undetermined)))


def search_without_outliers(logs: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The constants of the law, and which runs follow it.

    One run at a time is left out: that without which the others lie nearest to a law. It is an outlier if it is then
    too far from their law for the most distant of so many runs (a deleted residual over what is unsure of it, with
    Bonferroni's bound). Were all judged by the law of all, a bad run would draw the law to itself, and those at its
    side would be named for it.
    """
    best, follows = search(logs, STARTS), np.full(len(logs), True)
    for _ in range(int(MOST_OUTLIERS * len(logs))):
        trials = []
        for index in np.flatnonzero(follows):
            rest = follows & (np.arange(len(logs)) != index)
            if rest.sum() >= FEWEST_RUNS and is_varied(logs[rest]):
                found = search(logs[rest], [tuple(best)])
                trials.append((objective(found, logs[rest])[0], index, found, rest))
        if not trials:
            break
        _, worst, found, rest = min(trials, key=lambda trial: trial[0])
        residuals = logs[:, 2] - predict(found, logs)[0]
        freedom = MEDIAN_EFFICIENCY * (rest.sum() - CONSTANTS)
        threshold = float(t.ppf(1 - OUTLIER / 2 / (rest.sum() + 1), freedom))
        unsure = math.sqrt(1 + leverage(found, logs[worst], logs[rest]))
        if abs(residuals[worst]) <= max(threshold * unsure * spread(residuals[rest]), HUBER):
            break
        best, follows = search(logs[rest], STARTS), rest
    return best, follows


def spread(residuals: Array) -> float:
    """The standard deviation of normal residuals with this median deviation.

    Beyond its threshold the Huber loss is an absolute one, whose least value is reached by passing through as many runs
    as there are constants: their residuals say nothing of the noise.
    """
    return 1.4826 * float(np.median(np.sort(np.abs(residuals))[CONSTANTS:]))


def leverage(constants: Array, run: Array, others: Array) -> float:
    """The variance of the law of others at a run, in units of the noise's: j·(JᵀJ)⁻¹·jᵀ, J the slopes of log L̂."""

    def slopes(logs: Array) -> Array:
        a, b, e = predict(constants, logs)[1]
        return np.stack([a, b, e, -a * logs[:, 0], -b * logs[:, 1]], axis=1)

    known, here = slopes(others), slopes(run[None])[0]
    return float(here @ np.linalg.pinv(known.T @ known) @ here)


def is_varied(logs: Array) -> bool:
    """Whether there are as many sizes and numbers of tokens as exponents need."""
    return all(len(set(logs[:, column])) >= FEWEST_SIZES for column in (0, 1))


def check(runs: list[Run]) -> None:
    """Refuse what determines no law."""
    for run in runs:
        for name in ("parameters", "tokens", "loss"):
            if not 0 < vars(run)[name] < math.inf:
                raise UsageError(f"{run.name}: {name} must be more than 0 and finite, not {vars(run)[name]:g}")
    if len(runs) < FEWEST_RUNS:
        raise UsageError(f"{len(runs)} runs do not determine five constants: give at least {FEWEST_RUNS}")
    for name, sizes in (("parameters", {run.parameters for run in runs}), ("tokens", {run.tokens for run in runs})):
        if len(sizes) < FEWEST_SIZES:
            raise UsageError(
                f"{len(sizes)} distinct numbers of {name} do not determine an exponent: give {FEWEST_SIZES}"
            )
    sizes, tokens, losses = np.log(np.array([[run.parameters, run.tokens, run.loss] for run in runs])).T
    if abs(float(np.corrcoef(np.stack([sizes, tokens]))[0, 1])) > COLLINEAR:
        raise UsageError("parameters and tokens grow together in these runs, which does not tell them apart: vary one")
    if np.ptp(losses) == 0:
        raise UsageError("all runs have the same loss, which determines no law")


def predict(constants: Array, logs: Array) -> tuple[Array, Array]:
    """log L̂ of each run, and the part of each term in it, [3, runs]."""
    a, b, e, alpha, beta = constants
    terms = np.stack([a - alpha * logs[:, 0], b - beta * logs[:, 1], np.full(len(logs), e)])
    most = terms.max(axis=0)
    parts = np.exp(terms - most)
    whole = parts.sum(axis=0)
    return most + np.log(whole), parts / whole


def objective(constants: Array, logs: Array) -> tuple[float, Array]:
    """The Huber loss of the residuals in units of its threshold, and its gradient."""
    predicted, parts = predict(constants, logs)
    residuals = (predicted - logs[:, 2]) / HUBER
    inside = np.abs(residuals) <= 1
    value = np.where(inside, residuals**2 / 2, np.abs(residuals) - 0.5).sum()
    shares = parts * np.clip(residuals, -1, 1) / HUBER
    sums = shares.sum(axis=1)
    slopes = [-(shares[0] * logs[:, 0]).sum(), -(shares[1] * logs[:, 1]).sum()]
    return float(value), np.array([*sums, *slopes])


def search(logs: Array, starts: Sequence[tuple[float, ...]]) -> Array:
    """The constants of the lowest objective among L-BFGS searches; only the promising ones are finished."""

    def descend(start: Array, iterations: int) -> tuple[float, Array]:
        options = {"maxiter": iterations, "ftol": 1e-13, "gtol": 1e-9}
        end = minimize(objective, start, args=(logs,), jac=True, method="L-BFGS-B", bounds=BOUNDS, options=options)
        return float(end.fun), np.asarray(end.x)

    first = sorted((descend(np.array(start), FEW_ITERATIONS) for start in starts), key=lambda end: end[0])
    return min((descend(end, 1000) for _, end in first[:PROMISING]), key=lambda end: end[0])[1]


def as_law(found: Array) -> Law:
    """The constants as a law."""
    a, b, e, alpha, beta = (float(value) for value in found)
    E, A, B = math.exp(e), math.exp(a), math.exp(b)  # noqa: N806 -- their names
    return Law(name="fit", E=E, A=A, B=B, alpha=alpha, beta=beta, source="a fit to runs")


def constants(law: Law) -> dict[str, float]:
    """What is told of a law."""
    values = {name: float(vars(law)[name]) for name in NAMES}
    return values | {"exponent": law.beta / (law.alpha + law.beta)}


def interval(values: list[float]) -> tuple[float, float]:
    """The middle 95%."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def read_runs(given: str | Path) -> list[Run]:
    """The run of a folder (its `summary.json`), those of the folders in it, or the rows of a CSV file."""
    path = Path(given).expanduser()
    if not str(given):
        raise UsageError("a run without a name: give a finished run, a folder of them, or a CSV file")
    if path.suffix == ".csv" and path.is_file():
        return read_csv(path)
    summaries = sorted({*path.glob("summary.json"), *path.glob("*/summary.json")})
    if not summaries:
        begun = [place for place in (path, *path.glob("*")) if (place / "checkpoints").is_dir()]
        remedy = f": {begun[0]} was stopped: go on with --resume" if begun else ""
        raise UsageError(f"{path}: is no finished run, no folder of them and no CSV file{remedy}")
    return [read_summary(summary) for summary in summaries]


def read_summary(path: Path) -> Run:
    """A finished run of `attnkit pretrain`."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        return Run(
            name=path.parent.name,
            parameters=float(summary["parameters"]),
            tokens=float(summary["tokens_seen"]),
            loss=float(summary["held_out"]["loss"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no summary of a pretraining run") from error


def checked(reader: "csv.DictReader[str]", path: Path) -> Iterator[dict[str, str]]:
    """The rows, each of as many cells as there are columns."""
    try:
        for row in reader:
            if None in row:
                raise UsageError(f"{path}, line {reader.line_num}: has more cells than there are columns")
            yield row
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}: give a table of numbers") from error


def read_csv(path: Path) -> list[Run]:
    """Rows with columns parameters, tokens and loss, and perhaps name."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}: save the file as UTF-8") from error
    with io.StringIO(text, newline="") as lines:
        reader = csv.DictReader(lines)
        names = list(reader.fieldnames or ())
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"{path}: has {names.count(name)} columns {name!r}: keep one")
        missing = {"parameters", "tokens", "loss"} - set(names)
        if missing:
            raise UsageError(f"{path}: has no column {' and no column '.join(sorted(missing))}")
        runs = []
        for number, row in enumerate(checked(reader, path), 2):
            try:
                values = {name: parse_number(row[name] or "") for name in ("parameters", "tokens", "loss")}
            except (ValueError, TypeError) as error:
                raise UsageError(f"{path}, line {number}: parameters, tokens and loss must be numbers") from error
            for name, value in values.items():
                check_number(f"{path}, line {number}: {name}", value)
            runs.append(Run(name=row.get("name") or f"line {number}", **values))
    if not runs:
        raise UsageError(f"{path}: has no rows: give at least {FEWEST_RUNS}")
    return runs


def draw_fit(fit: LawFit, runs: Sequence[Run], path: Path) -> None:
    """Loss over compute, and isoFLOP curves: loss over parameters at some numbers of FLOPs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    flops = np.array([6 * run.parameters * run.tokens for run in runs])
    left.scatter(flops, [run.loss for run in runs], label="runs")
    span = np.geomspace(flops.min(), 100 * flops.max(), 60)
    law = fit.law
    best = [(law.best_parameters(it), law.best_tokens(it)) for it in span]
    low, high = zip(*[fit.predict(*sizes)[1:] for sizes in best], strict=True)
    left.plot(span, [law.loss(*sizes) for sizes in best], label="best use of compute")
    left.fill_between(span, low, high, alpha=0.2, label="95% of the bootstrap")
    losses = [run.loss for run in runs]
    shown = (0.5 * min(losses), 1.2 * max(losses))  # where the runs are: intervals may leave the picture
    left.set(xscale="log", xlabel="FLOPs", ylabel="loss (nats/token)", ylim=shown)
    left.legend()
    right.scatter([run.parameters for run in runs], [run.loss for run in runs])
    for amount in np.geomspace(flops.min(), flops.max(), 4):
        known = [run.parameters for run in runs] + [law.best_parameters(amount)]
        sizes = np.geomspace(min(known) / 2, max(known) * 2, 60)
        right.plot(sizes, [law.loss(size, amount / 6 / size) for size in sizes], label=f"{amount:.1e} FLOPs")
    right.set(xscale="log", xlabel="parameters", ylabel="loss (nats/token)", ylim=shown)
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)
