"""Which backend can compute which layer, and which position goes with which scorer."""

from collections.abc import Iterator

from attnkit.attention.normalizers import Normalizer
from attnkit.attention.patterns import Pattern, WeighingPattern
from attnkit.attention.positions import positions
from attnkit.attention.scorers import scorers
from attnkit.attention.scorers.base import PairwiseScorer, Scorer

FASTEST_FIRST = ("sdpa", "pairwise", "eager")  # of the backends that run on every device


def obstacle(backend: str, *, scorer: type[Scorer], normalizer: type[Normalizer], pattern: type[Pattern]) -> str | None:
    """Why a backend cannot compute a layer of these parts; None where it can."""
    if backend == "eager":
        return None
    if backend.startswith("paged|"):
        return (
            f"{backend!r} leaves out biases, sinks and patterns, and its cache takes keys of the heads' own width only"
        )
    if issubclass(pattern, WeighingPattern):
        return f"{pattern.__name__} changes the weights after softmax"
    if not normalizer.fused:
        return f"{normalizer.__name__} weights are not those of softmax"
    if backend == "pairwise":
        return None
    if issubclass(scorer, PairwiseScorer):
        return f"{scorer.__name__} scores are no dot product"
    if "flex" in backend and normalizer.sink is not Normalizer.sink:
        return f"{normalizer.__name__} needs an extra key, which a block mask has no place for"
    if "flash" in backend:
        # Its kernels take a padding mask and a causal flag: whatever else a layer's mask says would be left out.
        return f"{backend!r} knows causality and padding only, and the masks of attnkit say more"
    return None


def order_problems(scorer: str, position: str, *, scorer_key: str = "scorer") -> Iterator[str]:
    """Why a position says nothing that a scorer does not know already, or nothing that it can read."""
    if scorers[scorer].knows_order and positions[position].acts_on_scores:
        yield (
            f"{scorer_key}: order enters twice: {scorer!r} knows where a key stands, and position {position!r} says it "
            "again; use position 'none', 'learned' or 'sinusoidal'"
        )
    elif positions[position].needs_comparison and not scorers[scorer].compares:
        yield (
            f"position: {position!r} works through the comparison of query and key, and scorer {scorer!r} makes none; "
            "use another position"
        )
