"""Kernel regression as attention: the worked example y = 2 sin x + x^0.8 + noise, and its learned width."""

import numpy as np
import pytest
import torch
from torch import Tensor

from attnkit.attention import KernelRegression, kernel_regression
from attnkit.errors import UsageError


def example() -> dict[str, Tensor]:
    random = np.random.RandomState(0)

    def truth(x: np.ndarray) -> np.ndarray:
        return 2 * np.sin(x) + x**0.8

    x = np.sort(5 * random.rand(50))
    y = truth(x) + 0.5 * random.randn(50)
    x_test = np.sort(5 * random.rand(50))
    y_test = truth(x_test) + 0.5 * random.randn(50)
    grid = np.arange(50) * 0.1
    named = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "grid": grid, "truth": truth(grid)}
    return {name: torch.from_numpy(values) for name, values in named.items()}


def error(ours: Tensor, expected: Tensor) -> float:
    return (ours - expected).square().mean().item()


def test_fixed_width() -> None:
    points = example()
    assert points["y"].sum().item() == pytest.approx(110.094932, abs=1e-6)
    known = points["x"], points["y"]
    assert error(kernel_regression(points["x"], *known, 1.0), points["y"]) == pytest.approx(0.454460, abs=1e-6)
    assert error(kernel_regression(points["grid"], *known, 1.0), points["truth"]) == pytest.approx(0.382208, abs=1e-6)
    assert error(kernel_regression(points["x_test"], *known, 1.0), points["y_test"]) == pytest.approx(
        0.542226, abs=1e-6
    )
    assert error(kernel_regression(points["grid"], *known, 1e-9), points["truth"]) == pytest.approx(0.891000, abs=1e-6)
    model = KernelRegression(width=1.0).fit(*known, max_steps=0)
    assert model.width == pytest.approx(1.0)
    assert model.leave_one_out_error == pytest.approx(0.514944, abs=1e-6)


def test_learned_width() -> None:
    points = example()
    model = KernelRegression(width=1.0)
    assert model.fit(points["x"], points["y"]) is model
    assert model.width == pytest.approx(3.388311, abs=1e-4)
    assert model.leave_one_out_error == pytest.approx(0.270313, abs=1e-6)
    assert error(model.predict(points["grid"]), points["truth"]) == pytest.approx(0.084978, abs=1e-5)
    assert error(model.predict(points["x_test"]), points["y_test"]) == pytest.approx(0.298788, abs=1e-5)


def test_several_dimensions_and_values() -> None:
    x, y = torch.rand(20, 3), torch.rand(20, 2)
    assert kernel_regression(torch.rand(5, 3), x, y, 2.0).shape == (5, 2)
    torch.testing.assert_close(kernel_regression(x, x, y, 1e4), y, atol=1e-4, rtol=0)


@pytest.mark.parametrize("width", [0.0, 1e-6, 1.0, 1e3, 1e6])
def test_constants_and_sums_stay_what_they_are(width: float) -> None:
    """The prediction is a mean of the values, also where points are many widths apart."""
    x, y, other = torch.rand(20, 3).double(), torch.rand(20).double(), torch.rand(20).double()
    at = 3 * torch.rand(9, 3).double()
    torch.testing.assert_close(kernel_regression(at, x, torch.full_like(y, 7.0), width), torch.full((9,), 7.0).double())
    both = kernel_regression(at, x, torch.stack([y, other], dim=-1), width)
    torch.testing.assert_close(both[:, 0], kernel_regression(at, x, y, width))
    torch.testing.assert_close(both.sum(-1), kernel_regression(at, x, y + other, width))


@pytest.mark.parametrize("dimensions", [1, 3])
def test_the_width_goes_with_the_inverse_of_distances(dimensions: int) -> None:
    """With points twice as far apart the width is half as large, whatever the unit of the values, the order of the
    points and the width to start from."""
    x = torch.rand(60, dimensions).double() * 5
    y = torch.sin(x).sum(-1) + 0.1 * torch.randn(60).double()
    planted = KernelRegression().fit(x, y)
    order = torch.randperm(60)
    for points, values, start, factor in (
        (2 * x, y, 1.0, 2.0),
        (x / 100, y, 100.0, 0.01),
        (x, 50 * y + 3, 1.0, 1.0),
        (x[order], y[order], 3.0, 1.0),
    ):
        fitted = KernelRegression(width=start).fit(points, values)
        assert fitted.width == pytest.approx(planted.width / factor, rel=1e-4)


@pytest.mark.parametrize("scale", [0.01, 0.06, 0.3, 1.0, 6.0])
def test_the_minimum_is_the_next_one_downhill(scale: float) -> None:
    """However far away it is: on the plateau beyond it each point has the value of its nearest neighbour."""
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        x = torch.rand(60, generator=draw).double()
        y = torch.sin(6 * x) + 0.2 * torch.randn(60, generator=draw).double()
        near = KernelRegression(width=20 / scale).fit(scale * x, y)
        model = KernelRegression().fit(scale * x, y)
        assert model.leave_one_out_error == pytest.approx(near.leave_one_out_error, rel=1e-6)
        assert model.width == pytest.approx(near.width, rel=1e-6)


def test_only_distances_count() -> None:
    """As far from 0 as seconds since 1970 are, and in fp32 as far as it still tells the points apart."""
    x, y = torch.arange(60).double(), torch.sin(torch.arange(60).double() / 5)
    near = KernelRegression().fit(x, y)
    far = KernelRegression().fit(x + 1.7e9, y)
    assert far.width == pytest.approx(near.width, rel=1e-6)
    torch.testing.assert_close(far.predict(x + 1.7e9 + 0.5), near.predict(x + 0.5))
    single = kernel_regression((x + 1e6).float(), (x + 1e6).float(), y.float(), 1.0)
    torch.testing.assert_close(single.double(), kernel_regression(x, x, y, 1.0), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert KernelRegression().fit(x, y).width == near.width


def test_whole_numbers_are_points_too() -> None:
    x, y = torch.arange(12), torch.arange(12) ** 2
    predicted = KernelRegression().fit(x, y).predict(torch.tensor([3, 4]))
    assert predicted.dtype == torch.float64
    assert predicted.tolist() == pytest.approx([9, 16], abs=1)


def test_a_width_may_have_more_digits_than_points() -> None:
    x, y, width = torch.rand(9), torch.rand(9), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    values = kernel_regression(x, x, y, width)
    assert values.dtype == torch.float32
    assert values.equal(kernel_regression(x, x, y, 2.0))
    values.sum().backward()
    assert width.grad.dtype == torch.float64


def test_each_dimension_may_have_a_width() -> None:
    at, x, y, width = torch.rand(5, 3), torch.rand(20, 3), torch.rand(20), torch.tensor([2.0, 0.0, 5.0])
    torch.testing.assert_close(kernel_regression(at, x, y, width), kernel_regression(at * width, x * width, y))
    assert kernel_regression(at, x, y, torch.tensor(2)).equal(kernel_regression(at, x, y, 2.0))


def test_what_does_not_fit_is_refused() -> None:
    x, y = torch.rand(20), torch.rand(20)
    for arguments, said in (
        ((torch.rand(5, 2), torch.rand(20, 3), y), r"x_query torch.float32 \[5, 2\] on cpu, .* do not fit"),
        ((x.double(), x, y), "x_query torch.float64 .* do not fit"),
        ((x, x, y[:9]), r"y torch.float32 \[9\] on cpu do not fit"),
        ((x, torch.arange(20), y), r"x_key must be floating \[n\] or \[n, dimensions\], not torch.int64 \[20\]"),
        ((torch.rand(2, 2, 2), x, y), r"x_query must be floating .* \[2, 2, 2\]"),
        ((x, x, y, -1.0), "width must be at least 0 and finite, not -1"),
        ((x, x, y, float("nan")), "width must be at least 0 and finite, not nan"),
        ((x, x, y, torch.tensor([float("nan")])), r"width must be at least 0 and finite, not \[nan\]"),
        ((x, x, y, torch.tensor(-1.0)), r"width must be at least 0 and finite, not -1"),
        ((x, x, y, torch.ones(2)), r"width must be a real number, or \[1\] of them, not torch.float32 \[2\]"),
        ((x, x, y, torch.tensor(1 + 1j)), r"width must be a real number, .* not torch.complex64 \[\]"),
        ((x, x, y, torch.tensor(True)), r"width must be a real number, .* not torch.bool \[\]"),
        ((torch.rand(5, 3), torch.rand(20, 3), y, torch.ones(20, 1)), r"or \[3\] of them, not torch.float32 \[20, 1\]"),
    ):
        with pytest.raises(ValueError, match=said):
            kernel_regression(*arguments)
    nothing = torch.empty(0)
    with pytest.raises(UsageError, match="x_key and y hold no point"):
        kernel_regression(x, nothing, nothing)
    with pytest.raises(UsageError, match="x_query must be a tensor, not list"):
        kernel_regression([1.0], x, y)  # type: ignore[arg-type]
    for given, said in (((x.tolist(), y), "x must be a tensor .* not list"), ((x[0], y), r"x must be .* not \[\]")):
        with pytest.raises(UsageError, match=said):
            KernelRegression().fit(*given)
    with pytest.raises(UsageError, match="x must be a tensor, not list"):
        KernelRegression().fit(x, y).predict([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be learned from 2 points"):
        KernelRegression().fit(torch.rand(2), torch.rand(2))
    with pytest.raises(ValueError, match="width must be more than 0 and finite, not 0"):
        KernelRegression(width=0)
    with pytest.raises(ValueError, match="no points to predict from: call fit first"):
        KernelRegression().predict(x)
    with pytest.raises(ValueError, match="x and y must be finite numbers"):
        KernelRegression().fit(x, y / 0)
    with pytest.raises(ValueError, match=r"at width 1e\+06 the error does not change: start nearer"):
        KernelRegression(width=1e6).fit(x, y)
