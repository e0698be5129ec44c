"""Laws, fits and plans: published figures, planted constants, and a plan that trains."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import floats, integers, none, sampled_from

from attnkit.cli import main
from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import make_config
from attnkit.scaling import (
    LAWS,
    Run,
    count_flops,
    count_parameters,
    estimate_memory,
    fit_scaling_law,
    plan,
    repeated_loss,
)
from attnkit.scaling.budget import read_budget
from attnkit.scaling.fit import BOUNDS, read_runs
from attnkit.scaling.laws import (
    LIMITS,
    Law,
    Repeated,
    find_law,
    kaplan_loss,
    kaplan_loss_of_compute,
)
from attnkit.scaling.layouts import choose_layout
from attnkit.scaling.memory import Workload
from attnkit.scaling.units import read_bytes

TINY = {"vocab_size": 400, "seq_len": 32, "precision": "fp32"}


@pytest.mark.parametrize(("law", "ratio"), [("epoch", 18.4), ("hoffmann", 59.0), ("hoffmann_rounded", 92.6)])
def test_tokens_per_parameter_at_the_compute_of_chinchilla(law: str, ratio: float) -> None:
    assert LAWS[law].best_tokens(5.76e23) / LAWS[law].best_parameters(5.76e23) == pytest.approx(ratio, rel=3e-3)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_the_best_division_is_a_minimum_and_has_inverses(law: Law) -> None:
    size, tokens = law.best_parameters(1e21), law.best_tokens(1e21)
    loss = law.loss(size, tokens)
    assert 6 * size * tokens == pytest.approx(1e21)
    assert all(law.loss(size * factor, tokens / factor) > loss for factor in (0.9, 1.1))
    assert law.flops_for(loss) == pytest.approx(1e21, rel=1e-6)
    assert law.tokens_for(loss, parameters=size) == pytest.approx(tokens)
    assert law.parameters_for(loss, tokens=tokens) == pytest.approx(size)
    assert law.best_of_tokens(tokens) == pytest.approx(size)


def test_kaplan() -> None:
    assert kaplan_loss(8.8e13, math.inf) == pytest.approx(1.0)
    assert kaplan_loss(1e30, 5.4e13) == pytest.approx(1.0, abs=0.01)
    assert kaplan_loss_of_compute(1e21) > kaplan_loss_of_compute(1e22)


def test_repeated_text_is_worth_less_than_new_text_and_more_than_none() -> None:
    law, unique = LAWS["epoch"], 1e9
    size = law.best_of_tokens(unique)

    def loss(epochs: float) -> float:
        return repeated_loss(law, parameters=size, tokens=epochs * unique, unique_tokens=unique)

    assert loss(1) == pytest.approx(law.loss(size, unique))
    assert law.loss(size, 4 * unique) < loss(4) < loss(2) < loss(1)
    assert loss(4) == pytest.approx(law.loss(size, 4 * unique), rel=0.01)  # four passes are nearly as good
    assert loss(1000) == pytest.approx(loss(2000), rel=1e-6)


def planted(law: Law, *, noise: float, seed: int = 3, sizes: int = 6) -> list[Run]:
    generator = np.random.default_rng(seed)
    grid = [(n, d) for n in np.geomspace(1e7, 1e10, sizes) for d in np.geomspace(1e9, 1e12, sizes)]
    return [
        Run(name=f"run-{index}", parameters=n, tokens=d, loss=law.loss(n, d) * math.exp(generator.normal(0, noise)))
        for index, (n, d) in enumerate(grid)
    ]


def test_a_fit_recovers_planted_constants_and_names_the_outlier() -> None:
    law = LAWS["epoch"]
    runs = planted(law, noise=1e-3)
    runs[7] = Run(name="broken", parameters=runs[7].parameters, tokens=runs[7].tokens, loss=1.1 * runs[7].loss)
    fit = fit_scaling_law(runs, bootstraps=30)
    for name in ("E", "A", "B", "alpha", "beta"):
        low, high = fit.intervals[name]
        assert low <= vars(law)[name] <= high, name
    assert fit.undetermined == []
    assert "broken" in fit.outliers
    assert len(fit.outliers) <= 2
    loss, low, high = fit.predict(1e11, 1e13)
    assert low <= law.loss(1e11, 1e13) <= high
    assert low <= loss <= high


def test_the_shipped_sweep_tells_what_it_does_not_determine() -> None:
    runs = read_runs(Path(__file__).parents[2] / "docs" / "scaling-sweep.csv")
    fit = fit_scaling_law(runs, bootstraps=20)
    assert "E" in fit.undetermined
    assert fit.at_bounds == ["E"]
    assert fit.outliers == []
    assert max(abs(residual) for residual in fit.residuals.values()) < 0.06


def test_a_bad_run_is_named_and_no_other_and_leaves_the_law_to_the_others() -> None:
    runs = read_runs(Path(__file__).parents[2] / "docs" / "scaling-sweep.csv")
    others = [run for run in runs if run.name != "w32-s60"]
    bad = [replace(run, loss=9.9) if run.name == "w32-s60" else run for run in runs]
    fit = fit_scaling_law(bad, bootstraps=1)
    assert fit.outliers == ["w32-s60"]
    assert fit.residuals["w32-s60"] > 0.5
    alone = fit_scaling_law(others, bootstraps=1).law
    assert fit.law.loss(1e5, 3e5) == pytest.approx(alone.loss(1e5, 3e5), rel=1e-3)


def test_ordinary_noise_names_few_runs() -> None:
    sweeps = [planted(LAWS["epoch"], noise=0.01, seed=seed, sizes=4) for seed in range(8)]
    named = [fit_scaling_law(runs, bootstraps=1).outliers for runs in sweeps]
    assert sum(map(bool, named)) <= 1  # a chance of 5% each; by the spread of all residuals more than half name some


def test_the_command_prints_residuals_bounds_and_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parents[2] / "docs" / "scaling-sweep.csv")
    assert main(["scale", "fit", path, "--parameters", "1e6", "--tokens", "1e7"]) == 0
    said = capsys.readouterr().out
    assert "at its bound" in said
    assert "w16-s540" in said
    assert "times the FLOPs of the largest run" in said


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        (planted(LAWS["epoch"], noise=0)[:3], "3 runs do not determine five constants: give at least 6"),
        (planted(LAWS["epoch"], noise=0)[:6], "1 distinct numbers of parameters do not determine an exponent: give 3"),
        (
            [Run(name="it", parameters=1.0, tokens=1.0, loss=-1.0)],
            "it: loss must be more than 0 and finite, not -1",
        ),
        (
            [Run(name="it", parameters=1.0, tokens=1.0, loss=math.nan)],
            "it: loss must be more than 0 and finite, not nan",
        ),
    ],
    ids=["three", "one-size", "negative", "nan"],
)
def test_what_determines_no_law_is_refused(runs: list[Run], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        fit_scaling_law(runs)


def test_runs_are_read_from_folders_and_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    summary = {"parameters": 5, "tokens_seen": 7, "held_out": {"loss": 2.5}}
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    table = tmp_path / "runs.csv"
    table.write_text("name,parameters,tokens,loss\nb,1e3,2e3,3\n", encoding="utf-8")
    assert read_runs(tmp_path) == read_runs(tmp_path / "a") == [Run(name="a", parameters=5, tokens=7, loss=2.5)]
    assert read_runs(table) == [Run(name="b", parameters=1000, tokens=2000, loss=3)]
    table.write_text("parameters,tokens\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no column loss"):
        read_runs(table)
    for other in ("x", "1_000", "١٢", ""):
        table.write_text(f"parameters,tokens,loss\n1,{other},3\n", encoding="utf-8")
        with pytest.raises(UsageError, match="line 2: parameters, tokens and loss must be numbers"):
            read_runs(table)
    table.write_text("parameters,tokens,loss,loss\n1,2,3,4\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has 2 columns 'loss': keep one"):
        read_runs(table)
    table.write_text("parameters,tokens,loss\n1,2,3,4\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"runs.csv, line 2: has more cells than there are columns"):
        read_runs(table)
    table.write_text("parameters,tokens,loss\n1,2," + "3" * 200_000, encoding="utf-8")
    with pytest.raises(UsageError, match=r"runs.csv, line \d: field larger than field limit"):
        read_runs(table)
    table.write_text("parameters,tokens,loss\n1,2,nan\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"runs.csv, line 2: loss must be more than 0 and finite, not nan"):
        read_runs(table)
    table.write_text("parameters,tokens,loss\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"runs.csv: has no rows: give at least 6"):
        fit_scaling_law(str(table))
    with pytest.raises(UsageError, match="a run without a name"):
        read_runs("")
    with pytest.raises(UsageError, match=r"runs must be attnkit.scaling.Run or paths, not 1"):
        fit_scaling_law([1])
    (tmp_path / "cut" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="cut was stopped: go on with --resume"):
        read_runs(tmp_path / "cut")
    table.write_bytes(b"parameters,tokens,loss\n\xff,1,2\n")
    with pytest.raises(UsageError, match="not UTF-8 at byte 23: save the file as UTF-8"):
        read_runs(table)
    with pytest.raises(UsageError, match="is no finished run"):
        read_runs(tmp_path / "nowhere")


def test_gradients_that_accumulate_are_part_of_a_plan() -> None:
    found = plan(parameters=2e6, tokens=4e9, memory_per_device="120MiB", vocab_size=1000, seq_len=64, precision="fp32")
    assert found.accumulation > 1
    assert found.memory.at_peak["gradients"] == found.memory.gradients
    assert found.memory.total <= 120 * 2**20
    again = estimate_memory(
        found.config, seq_len=64, batch_size=found.chosen.rows, backend="sdpa", recompute=found.chosen.recompute,
        layout=found.layout, accumulates=True,
    )  # fmt: skip
    assert again.peak == found.memory.peak


def test_precisions_of_other_trainers_are_said() -> None:
    given = {"parameters": 2e5, "tokens": 4e6, "vocab_size": 400, "seq_len": 32}
    assert "for a trainer of your own" in "\n".join(plan(**given, precision="mixed").reasons)
    assert "for a trainer of your own" not in "\n".join(plan(**given).reasons)


def test_runs_that_tell_nothing_apart_are_refused() -> None:
    sizes = [1e4 * 2**index for index in range(8)]
    together = [Run(name=f"{it:g}", parameters=it, tokens=100 * it, loss=2 + 9 * it**-0.2) for it in sizes]
    with pytest.raises(UsageError, match="parameters and tokens grow together in these runs"):
        fit_scaling_law(together)
    equal = [Run(name=str(it), parameters=it, tokens=1e6 + it % 3, loss=3) for it in range(1, 9)]
    with pytest.raises(UsageError, match="all runs have the same loss"):
        fit_scaling_law(equal)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"E": 1e308}, r"law.json: E must be at least 0 and at most 150"),
        ({"B": 1e300}, r"law.json: B must be at least 1e-09"),
        ({"alpha": 0}, r"law.json: alpha must be at least 0.001"),
        ({"name": ["a"]}, r"law.json: is no file of"),
    ],
)
def test_a_damaged_law_is_refused(changes: dict, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "law.json"
    values = {"name": "fit", "source": "runs", "smallest": 1, "most_flops": 1e12, "undetermined": []}
    values |= {key: vars(LAWS["epoch"])[key] for key in ("E", "A", "B", "alpha", "beta")}
    file.write_text(json.dumps(values | changes), encoding="utf-8")
    with pytest.raises(UsageError, match=problem):
        find_law(str(file))
    file.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(UsageError, match=r"law.json: is no file of"):
        find_law(str(file))


def test_a_fitted_law_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, sweep = tmp_path / "law.json", Path(__file__).parents[2] / "docs" / "scaling-sweep.csv"
    assert main(["scale", "fit", str(sweep), "--output", str(file)]) == 0
    assert f"--law {file}" in capsys.readouterr().out
    law = find_law(str(file))
    assert law.loss(4e5, 5e5) == pytest.approx(fit_scaling_law(sweep).law.loss(4e5, 5e5))
    found = plan(parameters=2e5, law=str(file), **TINY)
    assert found.loss == law.loss(found.parameters, found.tokens)
    assert not found.is_extrapolated
    said = "\n".join(plan(parameters=2e5, tokens=1e9, law=str(file), **TINY).reasons)
    assert "its runs do not determine E, A, B, alpha of law 'fit'" in said
    assert "times the FLOPs of the largest run" in said
    file.write_text('{"name": "fit", "E": 1}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"law.json: is no file of `attnkit scale fit --output`"):
        find_law(str(file))
    with pytest.raises(UsageError, match=r"No such file or directory: give the file of a fit"):
        find_law(str(tmp_path / "none.json"))


def test_a_plan_spends_its_budget() -> None:
    found = plan(budget="8xH100 24h", vocab_size=4096, seq_len=256)
    flops = 8 * 989.4e12 * 0.4 * 24 * 3600
    assert found.exact_flops == pytest.approx(flops, rel=0.01)
    assert found.exact_flops <= flops
    per_step = count_flops(found.config, batch_size=1, seq_len=found.seq_len).total
    assert found.exact_flops == pytest.approx(per_step * found.tokens / found.seq_len)
    assert found.parameters == count_parameters(found.config)
    assert found.parameters == pytest.approx(LAWS["epoch"].best_parameters(found.flops), rel=0.1)
    assert found.memory.total <= 80 * 2**30
    assert found.hours == pytest.approx(24, rel=0.01)
    best = found.front[2].loss
    assert all(point.loss > best for point in found.front if point is not found.front[2])


QUANTITIES = {
    "parameters": 2e5,
    "tokens": 4e6,
    "flops": 8e12,
    "budget": "0.0005 P100-hours",
    "memory_per_device": 2e9,
    "target_loss": 16.0,
}


@pytest.mark.parametrize("names", list(combinations(QUANTITIES, 2)), ids=" and ".join)
def test_a_plan_keeps_any_two_that_it_is_given(names: tuple[str, str]) -> None:
    given = {name: QUANTITIES[name] for name in names}
    if {"flops", "budget"} == set(given):
        with pytest.raises(UsageError, match="give flops or a budget, not both: a budget is a number of FLOPs"):
            plan(**given, **TINY)
        return
    found = plan(**given, **TINY)
    assert found.learning_rate > 0
    assert found.reasons
    assert len(found.front) == 5
    spent = 10.6e12 * 0.4 * 0.0005 * 3600  # in fp32
    budget = given.pop("budget", None)
    # Fewer FLOPs than there are reach a loss that is asked for.
    assert budget is None or found.flops <= spent
    assert budget is None or "target_loss" in given or found.flops == pytest.approx(spent, rel=0.1)
    assert found.memory.total <= given.pop("memory_per_device", math.inf)
    if "target_loss" in given:
        assert found.loss <= given["target_loss"]
        assert found.loss == pytest.approx(given.pop("target_loss"), rel=0.05)
        assert found.flops <= given.pop("flops", math.inf)
    assert found.flops <= given.get("flops", math.inf)
    for name, value in given.items():
        assert vars(found)[name] == pytest.approx(value, rel=0.1), name


@settings(max_examples=25, deadline=None)
@given(
    hours=floats(0.02, 0.5),
    devices=integers(1, 4),
    share=none() | floats(0.3, 3),
    pinned=sampled_from(["parameters", "tokens"]),
)
def test_no_plan_costs_more_than_its_budget(hours: float, devices: int, share: float | None, pinned: str) -> None:
    seconds, law = hours * 3.6, LAWS["epoch"]  # a thousandth, so that models are small
    flops = 15.7e12 * 0.4 * devices * seconds
    best = {"parameters": law.best_parameters(flops), "tokens": law.best_tokens(flops)}[pinned]
    more = {} if share is None else {pinned: best * share}
    assume(law.best_parameters(flops) * (share or 1) ** (1 if pinned == "parameters" else -1) > 1e5)
    found = plan(budget=f"{devices}xV100 {seconds:.6f}s", **more, **TINY)
    assert found.hours is not None
    least = 0.4 if "tokens" in more else 0.9  # of small models there are few shapes, and they are rounded down
    assert least * seconds < found.hours * 3600 <= seconds * 1.000001
    assert found.flops == pytest.approx(6 * found.parameters * found.tokens)


@pytest.mark.parametrize(
    ("card", "precision", "dtype"),
    [("H100", "mixed", "bf16"), ("H100", "fp32", "no"), ("V100", "mixed", "fp16"), ("cpu", "fp32", "no")],
)
def test_precision_decides_the_peak_that_time_is_bought_with(card: str, precision: str, dtype: str) -> None:
    found = plan(budget=f"2x{card} 10s", precision=precision, mfu=0.1, vocab_size=400, seq_len=32)
    assert found.device is not None
    assert found.run()["training"]["mixed_precision"] == dtype
    peak = found.device.peak["fp32" if dtype == "no" else dtype]
    assert found.exact_flops == pytest.approx(0.1 * 2 * peak * 10, rel=0.05)
    assert plan(budget=f"2x{card} 10s", mfu=0.1, vocab_size=400, seq_len=32).precision == (
        "fp32" if card == "cpu" else "autocast"
    )


def test_a_target_loss_is_reached_and_repeated_text_costs_more() -> None:
    given = {"target_loss": 2.4, "budget": "64xH100"}
    new, again = plan(**given), plan(**given, unique_tokens=1e10)
    assert new.loss <= 2.4
    assert again.loss <= 2.4
    assert again.flops > new.flops
    assert new.loss == LAWS["epoch"].loss(new.parameters, new.tokens)
    assert again.loss == repeated_loss(
        LAWS["epoch"], parameters=again.parameters, tokens=again.tokens, unique_tokens=1e10
    )
    with pytest.raises(UsageError, match="the loss that law 'epoch' never reaches"):
        plan(**given, unique_tokens=1e6)


def test_the_best_division_of_repeated_text_is_a_minimum() -> None:
    law = Repeated(law=LAWS["epoch"], unique_tokens=1e9)
    for flops in (1e18, 1e20, 1e22):
        size, tokens = law.best_parameters(flops), law.best_tokens(flops)
        assert 6 * size * tokens == pytest.approx(flops, rel=1e-5)
        around = [law.loss(size * factor, tokens / factor) for factor in (0.8, 0.95, 1.05, 1.2)]
        assert law.loss(size, tokens) <= min(around)
        assert law.tokens_for(law.loss(size, tokens), parameters=size) == pytest.approx(tokens, rel=1e-4)
        assert law.best_of_tokens(tokens) == pytest.approx(size, rel=1e-3)
        assert law.tokens_of_best(size) == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize("budget", ["cpu 30min", "cpu 1h", "8xH100 24h", "1xA100 10min", "64xMI300X 30 days"])
def test_budgets_need_nothing_else(budget: str) -> None:
    found = plan(budget=budget)
    assert found.memory.total <= found.device.memory
    assert found.memory.runtime == found.device.runtime
    embedding = found.config.vocab_size * found.config.hidden_size
    assert embedding < found.parameters / 2
    said = "\n".join(found.reasons)
    assert "MFU is an assumption" in said
    assert "MFU is an assumption" not in "\n".join(plan(budget=budget, mfu=0.3).reasons)


@pytest.mark.parametrize(("text", "size"), [("40GiB", 40 * 2**30), ("40 gb", 40e9), ("4e10", 4e10), (4e10, 4e10)])
def test_memory_in_words(text: float | str, size: float) -> None:
    assert read_bytes(text) == size


def test_a_plan_says_its_price_and_what_it_does_not_know() -> None:
    found = plan(budget="8xH100 24h", price=2.5)
    assert found.time is not None
    assert found.time.cost == pytest.approx(8 * 24 * 2.5, rel=0.01)
    nowhere = plan(parameters=2e5, tokens=4e6, **TINY)
    assert nowhere.limit is None
    assert "whether it fits is not known" in "\n".join(nowhere.reasons)
    times, loss_of = (f"{4e6 / 1.08e6:.1f} times over", "the loss is that of text which is all different")
    assert f"{times}: give your own with --source" in nowhere.to_yaml()
    assert loss_of not in nowhere.to_yaml()
    assert loss_of in plan(parameters=2e5, tokens=5e6, **TINY).to_yaml()
    assert loss_of not in plan(parameters=2e5, tokens=5e6, unique_tokens=1e6, **TINY).to_yaml()
    assert "too little for a vocabulary of 32,768: give your own" in found.to_yaml()


EXTREME = {
    "no power of such a number": {"A": 1e-9, "B": 1e18, "alpha": 0.001, "beta": 0.001},
    "a model without end": {"A": 1e18, "B": 1e-9, "alpha": 0.001, "beta": 0.001},
    "tokens without end": {"A": 1e-9, "B": 1e18, "alpha": 3, "beta": 0.001},
}
ASKED = [
    {"parameters": 1e7},
    {"tokens": 1e9},
    {"flops": 1e18},
    {"target_loss": 3},
    {"tokens": 1e9, "unique_tokens": 1e6},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("constants", EXTREME.values(), ids=EXTREME)
def test_extreme_laws_are_refused(constants: dict, asked: dict, tmp_path: Path) -> None:
    values = {"name": "fit", "source": "runs", "smallest": 1, "most_flops": 1e12, "undetermined": [], "E": 1}
    (tmp_path / "law.json").write_text(json.dumps(values | constants), encoding="utf-8")
    with pytest.raises(UsageError, match=r"too extreme|means nothing|never reaches|out of reach|no model of"):
        plan(law=str(tmp_path / "law.json"), **asked)


def test_what_a_fit_may_find_is_what_a_law_may_be() -> None:
    logs = {"A", "B", "E"}
    for name, bounds in zip(("A", "B", "E", "alpha", "beta"), BOUNDS, strict=True):
        least, most = LIMITS[name]
        assert all(least <= (math.exp(bound) if name in logs else bound) <= most for bound in bounds)


@pytest.mark.parametrize("given", [{"parameters": 2e5}, {"tokens": 4e7}, {"flops": 1e14}], ids=str)
def test_a_plan_of_one_quantity(given: dict) -> None:
    found = plan(**given, **TINY)
    for name, value in given.items():
        assert vars(found)[name] == pytest.approx(value, rel=0.1), name


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "give one or two of parameters, tokens, flops"),
        ({"parameters": -1.0}, "parameters must be at least 1 and finite, not -1"),
        ({"tokens": math.nan}, "tokens must be at least 1 and finite, not nan"),
        ({"flops": math.inf}, "flops must be more than 0 and finite, not inf"),
        ({"flops": 1e12, "seq_len": 0}, "seq_len must be at least 1, not 0"),
        ({"parameters": 1e9, "tokens": 1e9, "flops": 1e15}, "are 6e.18 FLOPs, more than the 1e.15 that are given"),
        ({"parameters": 1e6, "tokens": 1e6, "target_loss": 2.0}, "reach a loss of .*, not target_loss 2"),
        ({"tokens": 0.5, "flops": 1e12}, "tokens must be at least 1 and finite, not 0.5"),
        ({"flops": 1e12, "mfu": math.nan}, "mfu must be more than 0 and at most 1, not nan"),
        ({"flops": 1e12, "scorrer": "dot"}, "scorrer: no field of a plan's model: did you mean 'scorer'"),
        ({"flops": 1e12, "num_devices": 10**9}, "num_devices: 1000000000 cannot share a batch of .* rows"),
        ({"flops": 1e80}, "law 'epoch' asks for .* parameters and .* tokens, which means nothing"),
        ({"budget": "24h"}, "budget '24h' names no device"),
        ({"budget": "8xH100"}, "give one or two of parameters"),
        ({"budget": "8xH100 24h 3h"}, "has 2 times: give one"),
        ({"budget": "8xH100 24h", "num_devices": 4}, "num_devices 4 contradicts a budget of 8: give one of them"),
        ({"budget": "H100 1h", "mfu": 1.5}, "mfu must be more than 0 and at most 1, not 1.5"),
        ({"budget": "8xH10 24h"}, "unknown device 'H10': did you mean 'H100'"),
        ({"budget": "plenty"}, "unknown device 'plenty'"),
        ({"budget": "8xH100 24"}, "cannot be read: give devices and time"),
        ({"budget": "-3xH100 2h"}, "cannot be read"),
        ({"budget": "0xH100 2h"}, "devices and time must be more than 0"),
        ({"budget": "H100 1h", "flops": 1.0}, "give flops or a budget, not both"),
        ({"flops": 1e15, "law": "kaplann"}, "unknown law 'kaplann'"),
        ({"target_loss": 1.0}, "is not above 1.8172"),
        ({"target_loss": 2.0, "parameters": 1e6}, "out of reach of what is given"),
        ({"target_loss": 2.0, "flops": 1e12}, "needs .* FLOPs"),
        ({"parameters": 100.0, "tokens": 100.0}, "no model of 100 parameters has a vocabulary of 400 entries"),
        (
            {"parameters": 2e5, "tokens": 1e5, "memory_per_device": 2**20},
            "no layout of 16384 devices .* in 1.00 MiB each",
        ),
        ({"parameters": 7e9, "memory_per_device": 40}, "40 bytes are too few to be meant: give a unit, such as 40GiB"),
        (
            {"parameters": 7e9, "memory_per_device": "40 bags"},
            "'40 bags' cannot be read: give bytes, or a text such as",
        ),
        ({"parameters": "1e8"}, "parameters must be a number, not '1e8'"),
        ({"flops": 1e6, "vocab_size": 400, "parameters": 1e5}, "pay for no step of a single row: lower seq_len"),
        ({"flops": 1e12, "price": 2.5}, "price: no device was named whose hours could cost it: give a budget"),
        ({"budget": "1xTPUv3 1h", "precision": "fp32"}, "TPUv3 has no peak for 'fp32'"),
        ({"budget": "1xV100 1h", "precision": "bf16"}, "V100 has no peak for 'bf16'"),
    ],
)
def test_nonsense(given: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        plan(**TINY | given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "devices", "name", "hours"),
    [
        ("8xH100 24h", 8, "H100", 24),
        ("8 x H100 for 1 day", 8, "H100", 24),
        ("24 hours on 8 h100s", 8, "H100", 24),
        ("8×A100, 1.5d", 8, "A100", 36),
        ("512x TPU-v3 2 days", 512, "TPUv3", 48),
        ("MI300X 30 minutes", 1, "MI300X", 0.5),
        ("200 A100-hours", 1, "A100", 200),
        ("1,000 v100 hours", 1, "V100", 1000),
        ("8xH100", 8, "H100", None),
    ],
)
def test_budgets_in_words(text: str, devices: int, name: str, hours: float | None) -> None:
    found = read_budget(text)
    assert (found.num_devices, found.device.name, found.hours) == (devices, name, hours)


def test_a_model_that_data_parallel_ranks_cannot_hold_is_divided() -> None:
    workload = Workload(
        config=make_config(hidden_size=64, num_attention_heads=4, num_hidden_layers=4, vocab_size=400),
        seq_len=32, precision="mixed", optimizer="adamw", backend="sdpa",
    )  # fmt: skip
    alone = choose_layout(workload, rows=8, num_devices=None, limit=None)[0].memory
    states = alone.weights + alone.gradients + alone.optimizer
    runtime = alone.total - alone.peak - alone.margin
    tight = choose_layout(workload, rows=8, num_devices=8, limit=runtime + states / 4)
    assert tight[-1].fits
    assert not any(choice.fits for choice in tight[:-1])
    assert tight[-1].memory.total <= runtime + states / 4
    assert tight[-1].layout.sharding != "ddp"
    few_rows = choose_layout(workload, rows=2, num_devices=8, limit=1e12)[-1].layout
    assert (few_rows.data, few_rows.tensor * few_rows.pipeline) == (2, 4)  # a rank without a row has nothing to do


def test_the_run_of_a_plan_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"The {a} one saw the {b} one." for a in "abcdefghijk" for b in "lmnopqrstu"), encoding="utf-8"
    )
    found = plan(parameters=2e4, tokens=2000, vocab_size=270, seq_len=16, precision="fp32")
    path = tmp_path / "run.yaml"
    path.write_text(
        found.to_yaml(source=str(tmp_path / "text.txt"), output_dir=str(tmp_path / "run")), encoding="utf-8"
    )
    rule = {"transfer": "mup", "base_hidden_size": 8, "base_num_hidden_layers": 1}
    flags = [word for name, value in rule.items() for word in (f"--training.{name}", str(value))]
    assert main(["pretrain", "--config", str(path), *flags]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["parameters"] == found.parameters
    assert summary["steps"] == found.steps
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert saved["output_scale"] == pytest.approx(8 / found.config.hidden_size)
    again = ["pretrain", "--config", str(path), *flags, "--training.output_dir", str(tmp_path / "other")]
    assert main([*again, "--model.path", str(tmp_path / "run")]) == 2
    assert "training.transfer: its rules are for pretraining from random weights" in capsys.readouterr().err
