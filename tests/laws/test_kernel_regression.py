"""Kernel regression as attention: the worked example y = 2 sin x + x^0.8 + noise, and its learned width."""

import numpy as np
import pytest
import torch
from torch import Tensor

from attnkit.attention import KernelRegression, kernel_regression


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


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        kernel_regression(torch.rand(5, 2), torch.rand(20, 3), torch.rand(20), 1.0)
    with pytest.raises(ValueError, match="cannot be learned from 2 points"):
        KernelRegression().fit(torch.rand(2), torch.rand(2))
    with pytest.raises(ValueError, match="width must be positive"):
        KernelRegression(width=0)
