"""Scorers by name: `attnkit.scorers["cosine"](num_heads=8, head_dim=64, max_positions=512)`."""

from attnkit.attention.scorers import additive, distance, dot  # noqa: F401 -- each registers its classes
from attnkit.attention.scorers.base import PairwiseScorer, Scorer, scorers

__all__ = ["PairwiseScorer", "Scorer", "scorers"]
