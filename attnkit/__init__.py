"""attnkit: transformers whose attention score is a part you can swap.

Importing attnkit registers its models with the Auto classes of transformers, which takes as long as importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnkit.asked import models_are_wanted, only_help_is_wanted

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
    "replace_scorer",
    "scorers",
    "tasks",
    "to_hf",
]


# A person who asks for help should not wait for torch, nor a verb that reads text for the models.
if not only_help_is_wanted():
    from attnkit.attention import PairwiseScorer, Scorer, normalizers, patterns, positions, scorers
    from attnkit.models.configuration_attnkit import AttnKitConfig

if TYPE_CHECKING or models_are_wanted():
    from attnkit.models.auto import (
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
        replace_scorer,
        to_hf,
    )


def __getattr__(name: str) -> Any:
    """What needs more than attention and the configuration is imported when it is asked for, if it was not before."""
    if name == "objectives":
        return import_module("attnkit.data.objectives").objectives
    if name == "tasks":
        return import_module("attnkit.tasks")  # a package that answers as its registry does
    if name in __all__ and not only_help_is_wanted():
        return vars(import_module("attnkit.models.auto"))[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
