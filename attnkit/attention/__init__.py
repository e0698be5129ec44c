"""Attention as one operator of swappable parts: scorers, normalizers, patterns, positions and backends."""

from attnkit.attention.kernel_regression import KernelRegression, kernel_regression
from attnkit.attention.layer import Attention
from attnkit.attention.normalizers import Normalizer, normalizers
from attnkit.attention.patterns import Pattern, patterns
from attnkit.attention.positions import Position, positions
from attnkit.attention.scorers import PairwiseScorer, Scorer, scorers

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
