"""attnkit: transformers whose attention score is a part you can swap.

Importing attnkit registers its models with the Auto classes of transformers, which takes as long as importing torch.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

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


def only_help_is_wanted() -> bool:
    """Whether this process is `attnkit` or `python -m attnkit`, and will say its help or version and nothing else."""
    started = [Path(word).stem for word in sys.orig_argv[-len(sys.argv) :][:1]]  # the script, or the module after -m
    asked = sys.argv[1:]
    return started == ["attnkit"] and (not asked or not {"-h", "--help", "--version"}.isdisjoint(asked))


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
