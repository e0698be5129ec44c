"""Regression by attention: the value at a point is the mean of the values at known points, weighted by nearness.

Shapes: Q points asked, K points known, D their dimensions, V values.
"""

import math

import torch
from torch import Tensor

from attnkit.attention.normalizers import masked_softmax
from attnkit.attention.scorers.distance import Gaussian
from attnkit.errors import UsageError, check_number

DIGITS = 53  # binary ones of a number in fp64


def kernel_regression(x_query: Tensor, x_key: Tensor, y: Tensor, width: float | Tensor = 1.0) -> Tensor:
    """Nadaraya-Watson regression (Nadaraya 1964; Watson 1964), which is softmax attention with the gaussian scorer.

    f(x) = Σ_i softmax_i(-‖width · (x - x_i)‖² / 2) · y_i

    x_query [Q] or [Q, D], x_key [K] or [K, D], y [K] or [K, V] -> [Q] or [Q, V]. The larger the width parameter, one
    for all dimensions or [D], the nearer the points that count; with 0 all count alike. Raises `UsageError` for what
    does not fit.
    """
    return masked_softmax(kernel_scores(x_query, x_key, y, width), None) @ y


def kernel_scores(x_query: Tensor, x_key: Tensor, y: Tensor, width: float | Tensor) -> Tensor:
    """The exponents of the kernel, [Q, K]."""
    for name, points in (("x_query", x_query), ("x_key", x_key), ("y", y)):
        if not isinstance(points, Tensor):
            raise UsageError(f"{name} must be a tensor, not {type(points).__name__}: make one with torch.as_tensor()")
        if points.ndim not in (1, 2) or not points.is_floating_point():
            raise UsageError(f"{name} must be floating [n] or [n, dimensions], not {points.dtype} {list(points.shape)}")
    if not isinstance(width, Tensor):
        check_number("width", width, least=0)
    query, key = (points[:, None] if points.ndim == 1 else points for points in (x_query, x_key))
    same_kind = (x_query.dtype, x_query.device) == (x_key.dtype, x_key.device) == (y.dtype, y.device)
    if not same_kind or query.shape[1] != key.shape[1] or key.shape[0] != y.shape[0]:
        of_each = [f"{it.dtype} {list(it.shape)} on {it.device}" for it in (x_query, x_key, y)]
        raise UsageError("x_query {}, x_key {} and y {} do not fit".format(*of_each))
    if len(key) == 0:
        raise UsageError("x_key and y hold no point to predict from")
    center = key.detach().mean(dim=0)  # scores are of differences, which large numbers would have no digits left for
    query, key = query - center, key - center
    if isinstance(width, Tensor):
        check_width(width, num_dimensions=key.shape[1])
        width = width.to(key)
    scorer = Gaussian(num_heads=1, head_dim=key.shape[1], max_positions=1, width="fixed", initial_width=1.0)
    return scorer((width * query)[None, None], (width * key)[None, None])[0, 0]


def check_width(width: Tensor, *, num_dimensions: int) -> None:
    """Raise `UsageError` for a width that is none: one number, or one for each dimension."""
    if width.is_complex() or width.dtype == torch.bool or width.shape not in ((), (num_dimensions,)):
        wanted = f"a real number, or [{num_dimensions}] of them"
        raise UsageError(f"width must be {wanted}, not {width.dtype} {list(width.shape)}")
    if not torch.compiler.is_compiling() and not (width.isfinite() & (width >= 0)).all():
        raise UsageError(f"width must be at least 0 and finite, not {width.tolist()}")


class KernelRegression:
    """Kernel regression whose width is learned.

    `fit` minimises the leave-one-out error: with a point among its own neighbours, the training error goes to zero as
    the width parameter grows, and nothing is learned.
    """

    def __init__(self, *, width: float = 1.0) -> None:
        check_number("width", width)
        self.width = width
        self.x: Tensor | None = None
        self.y: Tensor | None = None

    @torch.enable_grad()
    def fit(self, x: Tensor, y: Tensor, *, max_steps: int = 200) -> "KernelRegression":
        """x [K] or [K, D], y [K] or [K, V]: set `width` and `leave_one_out_error`, those of the first minimum downhill
        from the present width.

        Raises `UsageError` for too few points, numbers that are none, and a width at which the error does not change.
        """
        check_number("max_steps", max_steps, least=0)
        for name, points in (("x", x), ("y", y)):
            if not isinstance(points, Tensor) or points.ndim == 0 or points.is_complex():
                given = list(points.shape) if isinstance(points, Tensor) else type(points).__name__
                raise UsageError(f"{name} must be a tensor [n] or [n, dimensions] of real numbers, not {given}")
        if len(x) < 3:
            raise UsageError(f"a width cannot be learned from {len(x)} points: give at least 3")
        self.x, self.y = x.double(), y.double()
        if not (self.x.isfinite().all() and self.y.isfinite().all()):
            raise UsageError("x and y must be finite numbers: leave out the points that are not")
        here = math.log(self.width)
        slope = self.slope(here)
        if slope == 0:
            raise UsageError(f"at width {self.width:g} the error does not change: start nearer to 1 / distance")
        # Downhill, no faster than a minimum is wide, and back by halves from where it goes up again.
        step = -math.copysign(math.log(2), slope)
        for _ in range(max_steps):
            if self.slope(here + step) * slope <= 0:
                break
            here += step
        for _ in range(min(max_steps, DIGITS)):
            step /= 2
            if self.slope(here + step) * slope > 0:
                here += step
        self.width = math.exp(here)
        self.leave_one_out_error = self.leave_one_out(torch.tensor(self.width, dtype=torch.float64)).item()
        return self

    def slope(self, log_width: float) -> float:
        """The derivative of the leave-one-out error by the logarithm of the width."""
        logarithm = torch.tensor(log_width, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(self.leave_one_out(logarithm.exp()), logarithm)[0].item()

    def leave_one_out(self, width: Tensor) -> Tensor:
        """Mean squared error of each known value, predicted from all the others."""
        others = ~torch.eye(len(self.x), dtype=torch.bool, device=self.x.device)
        predicted = masked_softmax(kernel_scores(self.x, self.x, self.y, width), others) @ self.y
        return (predicted - self.y).square().mean()

    def predict(self, x: Tensor) -> Tensor:
        """[Q] or [Q, D] -> [Q] or [Q, V], from the points of `fit`; in fp64 where x are whole numbers."""
        if self.x is None or self.y is None:
            raise UsageError("there are no points to predict from: call fit first")
        if not isinstance(x, Tensor):
            raise UsageError(f"x must be a tensor, not {type(x).__name__}: make one with torch.as_tensor()")
        predicted = kernel_regression(x.double(), self.x, self.y, self.width)
        return predicted.to(x.dtype) if x.is_floating_point() else predicted
