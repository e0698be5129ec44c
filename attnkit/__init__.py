"""attnkit: transformers whose attention score is a part you can swap.

Importing attnkit registers its models with the Auto classes of transformers.
"""

from attnkit.attention import PairwiseScorer, Scorer, normalizers, positions, scorers
from attnkit.models import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForMultipleChoice,
    AttnKitForPreTraining,
    AttnKitForQuestionAnswering,
    AttnKitForSeq2SeqLM,
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
    AttnKitModel,
    from_hf,
    to_hf,
)

__version__ = "0.1.0"

__all__ = [
    "AttnKitConfig",
    "AttnKitForCausalLM",
    "AttnKitForMaskedLM",
    "AttnKitForMultipleChoice",
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
    "positions",
    "scorers",
    "to_hf",
]
