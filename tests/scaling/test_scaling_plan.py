"""Laws, fits and plans: published figures, planted constants, and a plan that trains."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from attnkit.cli import main
from attnkit.errors import UsageError
from attnkit.scaling import LAWS, Run, count_parameters, fit_scaling_law, plan, repeated_loss
from attnkit.scaling.fit import read_runs
from attnkit.scaling.laws import Law, best_parameters_for_tokens, kaplan_loss, kaplan_loss_of_compute

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
    assert best_parameters_for_tokens(law, tokens) == pytest.approx(size)


def test_kaplan() -> None:
    assert kaplan_loss(8.8e13, math.inf) == pytest.approx(1.0)
    assert kaplan_loss(1e30, 5.4e13) == pytest.approx(1.0, abs=0.01)
    assert kaplan_loss_of_compute(1e21) > kaplan_loss_of_compute(1e22)


def test_repeated_text_is_worth_less_than_new_text_and_more_than_none() -> None:
    law, unique = LAWS["epoch"], 1e9
    size = best_parameters_for_tokens(law, unique)

    def loss(epochs: float) -> float:
        return repeated_loss(law, parameters=size, tokens=epochs * unique, unique_tokens=unique)

    assert loss(1) == pytest.approx(law.loss(size, unique))
    assert law.loss(size, 4 * unique) < loss(4) < loss(2) < loss(1)
    assert loss(4) == pytest.approx(law.loss(size, 4 * unique), rel=0.01)  # four passes are nearly as good
    assert loss(1000) == pytest.approx(loss(2000), rel=1e-6)


def planted(law: Law, *, noise: float) -> list[Run]:
    generator = np.random.default_rng(3)
    sizes = [(n, d) for n in np.geomspace(1e7, 1e10, 6) for d in np.geomspace(1e9, 1e12, 6)]
    return [
        Run(name=f"run-{index}", parameters=n, tokens=d, loss=law.loss(n, d) * math.exp(generator.normal(0, noise)))
        for index, (n, d) in enumerate(sizes)
    ]


def test_a_fit_recovers_planted_constants_and_names_the_outlier() -> None:
    law = LAWS["epoch"]
    runs = planted(law, noise=1e-3)
    runs[7] = Run(name="broken", parameters=runs[7].parameters, tokens=runs[7].tokens, loss=1.1 * runs[7].loss)
    fit = fit_scaling_law(runs, bootstraps=40)
    for name in ("E", "A", "B", "alpha", "beta"):
        low, high = fit.intervals[name]
        assert low <= vars(law)[name] <= high, name
    assert fit.undetermined == []
    assert "broken" in fit.outliers
    assert len(fit.outliers) <= 3
    loss, low, high = fit.predict(1e11, 1e13)
    assert low <= law.loss(1e11, 1e13) <= high
    assert low <= loss <= high


def test_the_shipped_sweep_tells_what_it_does_not_determine() -> None:
    runs = read_runs(Path(__file__).parents[2] / "docs" / "scaling-sweep.csv")
    fit = fit_scaling_law(runs, bootstraps=20)
    assert "E" in fit.undetermined
    assert max(abs(residual) for residual in fit.residuals.values()) < 0.06


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        (planted(LAWS["epoch"], noise=0)[:3], "3 runs do not determine five constants: give at least 6"),
        (planted(LAWS["epoch"], noise=0)[:6], "1 distinct numbers of parameters do not determine an exponent: give 3"),
        (
            [Run(name="it", parameters=1.0, tokens=1.0, loss=-1.0)],
            "it: parameters, tokens and loss must be more than 0",
        ),
    ],
    ids=["three", "one-size", "negative"],
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
    table.write_text("parameters,tokens,loss\n1,x,3\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2: parameters, tokens and loss must be numbers"):
        read_runs(table)
    with pytest.raises(UsageError, match="is no finished run"):
        read_runs(tmp_path / "nowhere")


def test_a_plan_spends_its_budget() -> None:
    found = plan(budget="8xH100 24h")
    flops = 8 * 989.4e12 * 0.4 * 24 * 3600
    assert 6 * found.parameters * found.tokens == pytest.approx(flops, rel=0.01)
    assert found.parameters == count_parameters(found.config)
    assert found.parameters == pytest.approx(LAWS["epoch"].best_parameters(flops), rel=0.1)
    assert found.memory.total <= 80 * 2**30
    assert found.hours == pytest.approx(24, rel=0.01)
    best = found.front[2].loss
    assert all(point.loss > best for point in found.front if point is not found.front[2])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"parameters": 2e5, "tokens": 1e6}, {"parameters": 2e5, "tokens": 1e6}),
        ({"parameters": 2e5, "flops": 1e12}, {"parameters": 2e5, "flops": 1e12}),
        ({"tokens": 1e6, "flops": 1e12}, {"tokens": 1e6}),
        ({"parameters": 2e5}, {"parameters": 2e5}),
        ({"tokens": 4e7}, {"tokens": 4e7}),
        ({"flops": 1e14}, {"flops": 1e14}),
        ({"target_loss": 9.0}, {"loss": 9.0}),
        ({"target_loss": 16.0, "parameters": 2e5}, {"parameters": 2e5, "loss": 16.0}),
    ],
)
def test_a_plan_keeps_what_it_is_given(given: dict, kept: dict) -> None:
    found = plan(**given, **TINY)
    for name, value in kept.items():
        assert vars(found)[name] == pytest.approx(value, rel=0.15), name


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "give one or two of parameters, tokens, flops .* not none"),
        ({"parameters": -1.0}, "parameters must be more than 0, not -1"),
        ({"budget": "8xH10 24h"}, "unknown device 'H10': did you mean 'H100'"),
        ({"budget": "plenty"}, "budget 'plenty' cannot be read"),
        ({"budget": "-3xH100 2h"}, "cannot be read"),
        ({"budget": "0xH100 2h"}, "devices and time must be more than 0"),
        ({"budget": "H100 1h", "flops": 1.0}, "give flops or a budget, not both"),
        ({"flops": 1e15, "law": "kaplann"}, "unknown law 'kaplann'"),
        ({"target_loss": 1.0}, "is not above 1.8172"),
        ({"target_loss": 2.0, "parameters": 1e6}, "out of reach of what is given"),
        ({"target_loss": 2.0, "flops": 1e12}, "needs .* FLOPs"),
        ({"parameters": 100.0, "tokens": 100.0}, "no model of 100 parameters has a vocabulary of 400 entries"),
        ({"parameters": 2e4, "tokens": 1e3, "memory_per_device": 1000.0}, "no layout of 1 devices holds"),
    ],
)
def test_nonsense(given: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        plan(**given, **TINY)


def test_the_run_of_a_plan_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"The {a} one saw the {b} one." for a in "abcdefghijk" for b in "lmnopqrstu"), encoding="utf-8"
    )
    found = plan(parameters=2e4, tokens=2000, vocab_size=270, seq_len=16, precision="fp32")
    path = tmp_path / "run.yaml"
    path.write_text(
        found.to_yaml(source=str(tmp_path / "text.txt"), output_dir=str(tmp_path / "run")), encoding="utf-8"
    )
    assert main(["pretrain", "--config", str(path)]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["parameters"] == found.parameters
    assert summary["steps"] == found.steps
