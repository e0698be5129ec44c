"""Regression by attention: the value at a point is the mean of the values at known points, weighted by nearness.

Shapes: Q points asked, K points known, D their dimensions, V values.
"""

import torch
from torch import Tensor

from attnkit.attention.normalizers import masked_softmax
from attnkit.attention.scorers.distance import Gaussian
from attnkit.errors import UsageError


def kernel_regression(x_query: Tensor, x_key: Tensor, y: Tensor, width: float | Tensor = 1.0) -> Tensor:
    """Nadaraya-Watson regression (Nadaraya 1964; Watson 1964), which is softmax attention with the gaussian scorer.

    f(x) = Σ_i softmax_i(-(width · ‖x - x_i‖)² / 2) · y_i

    x_query [Q] or [Q, D], x_key [K] or [K, D], y [K] or [K, V] -> [Q] or [Q, V]. The larger the width parameter, the
    nearer the points that count. Raises `UsageError` for shapes that do not fit.
    """
    return masked_softmax(kernel_scores(x_query, x_key, y, width), None) @ y


def kernel_scores(x_query: Tensor, x_key: Tensor, y: Tensor, width: float | Tensor) -> Tensor:
    """The exponents of the kernel, [Q, K]."""
    query, key = (points[:, None] if points.ndim == 1 else points for points in (x_query, x_key))
    if query.shape[1] != key.shape[1] or key.shape[0] != y.shape[0]:
        raise UsageError(
            f"x_query {tuple(x_query.shape)}, x_key {tuple(x_key.shape)} and y {tuple(y.shape)} do not fit"
        )
    scorer = Gaussian(num_heads=1, head_dim=key.shape[1], max_positions=1, width="fixed", initial_width=1.0)
    return scorer((width * query)[None, None], (width * key)[None, None])[0, 0]


class KernelRegression:
    """Kernel regression whose width is learned.

    `fit` minimises the leave-one-out error: with a point among its own neighbours, the training error goes to zero as
    the width parameter grows, and nothing is learned.
    """

    def __init__(self, *, width: float = 1.0) -> None:
        if width <= 0:
            raise UsageError(f"width must be positive, not {width}")
        self.width = width

    def fit(self, x: Tensor, y: Tensor, *, max_steps: int = 200) -> "KernelRegression":
        """x [K] or [K, D], y [K] or [K, V]: set `width` and `leave_one_out_error`, starting from the present width."""
        if len(x) < 3:
            raise UsageError(f"a width cannot be learned from {len(x)} points: give at least 3")
        self.x, self.y = x.double(), y.double()
        log_width = torch.tensor(float(self.width), dtype=torch.float64).log().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [log_width], max_iter=max_steps, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.leave_one_out(log_width.exp())
            loss.backward()
            return loss

        optimizer.step(closure)
        self.width = log_width.exp().item()
        self.leave_one_out_error = self.leave_one_out(log_width.exp()).item()
        return self

    def leave_one_out(self, width: Tensor) -> Tensor:
        """Mean squared error of each known value, predicted from all the others."""
        others = ~torch.eye(len(self.x), dtype=torch.bool)
        predicted = masked_softmax(kernel_scores(self.x, self.x, self.y, width), others) @ self.y
        return (predicted - self.y).square().mean()

    def predict(self, x: Tensor) -> Tensor:
        """[Q] or [Q, D] -> [Q] or [Q, V], from the points of `fit`."""
        return kernel_regression(x.double(), self.x, self.y, self.width).to(x.dtype)
