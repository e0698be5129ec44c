"""attnkit: transformers whose attention score is a part you can swap.

Importing attnkit registers its models with the Auto classes of transformers, which takes as long as importing torch.
"""

from importlib import import_module
from typing import Any

from attnkit.asked import only_help_is_wanted

__version__ = "0.1.0"

__all__ = [
    "AttnKitConfig",
    "AttnKitForCausalLM",
    "AttnKitForMaskedLM",
    "AttnKitForMultipleChoice",
    "AttnKitForPermutationLM",
    "AttnKitForPreTraining",
    "AttnKitForQuestionAnswering",
    "AttnKitForSeq2SeqLM",
    "AttnKitForSequenceClassification",
    "AttnKitForTokenClassification",
    "AttnKitModel",
    "PairwiseScorer",
    "Scorer",
    "__version__",
    "from_hf",
    "normalizers",
    "objectives",
    "patterns",
    "positions",
    "scorers",
    "tasks",
    "to_hf",
]


# Such a process needs no model, and a person who asks for help should not wait for torch.
if not only_help_is_wanted():
    from attnkit.attention import PairwiseScorer, Scorer, normalizers, patterns, positions, scorers
    from attnkit.models import (
        AttnKitConfig,
        AttnKitForCausalLM,
        AttnKitForMaskedLM,
        AttnKitForMultipleChoice,
        AttnKitForPermutationLM,
        AttnKitForPreTraining,
        AttnKitForQuestionAnswering,
        AttnKitForSeq2SeqLM,
        AttnKitForSequenceClassification,
        AttnKitForTokenClassification,
        AttnKitModel,
        from_hf,
        to_hf,
    )


def __getattr__(name: str) -> Any:
    """The registries whose parts need more than torch and transformers are imported when they are asked for."""
    if name == "objectives":
        return import_module("attnkit.data.objectives").objectives
    if name == "tasks":
        return import_module("attnkit.tasks")  # a package that answers as its registry does
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
