"""Attention as one operator of swappable parts: scorers, normalizers, patterns, positions and backends."""

from attnkit.attention.layer import Attention
from attnkit.attention.normalizers import Normalizer, normalizers
from attnkit.attention.positions import Position, positions
from attnkit.attention.scorers import PairwiseScorer, Scorer, scorers

__all__ = [
    "Attention",
    "Normalizer",
    "PairwiseScorer",
    "Position",
    "Scorer",
    "normalizers",
    "positions",
    "scorers",
]
