"""Scorers by name: `attnkit.scorers["cosine"](num_heads=8, head_dim=64, max_positions=512)`."""

from attnkit.attention.scorers import additive, distance, dot, key_only, positional  # noqa: F401 -- they register
from attnkit.attention.scorers.base import PairwiseScorer, Scorer, scorers

__all__ = ["PairwiseScorer", "Scorer", "scorers"]
