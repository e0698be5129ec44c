"""Attention as one operator of swappable parts: scorers, normalizers, patterns, positions and backends."""

from typing import TYPE_CHECKING, Any

from attnkit.attention.kernel_regression import KernelRegression, kernel_regression
from attnkit.attention.normalizers import Normalizer, normalizers
from attnkit.attention.patterns import Pattern, patterns
from attnkit.attention.positions import Position, positions
from attnkit.attention.scorers import PairwiseScorer, Scorer, scorers

if TYPE_CHECKING:
    from attnkit.attention.layer import Attention

__all__ = [
    "Attention",
    "KernelRegression",
    "Normalizer",
    "PairwiseScorer",
    "Pattern",
    "Position",
    "Scorer",
    "kernel_regression",
    "normalizers",
    "patterns",
    "positions",
    "scorers",
]


def __getattr__(name: str) -> Any:
    """The layer is imported when it is asked for: its backends take a second, and a configuration needs none."""
    if name == "Attention":
        from attnkit.attention.layer import Attention

        return Attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
