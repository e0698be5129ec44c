"""What a model is trained to predict: one class per objective turns rows into batches."""

from attnkit.data.objectives.base import IGNORED, Objective, ObjectiveConfig, objectives
from attnkit.data.objectives.causal import Causal
from attnkit.data.objectives.denoising import Denoising
from attnkit.data.objectives.masked import Masked
from attnkit.data.objectives.next_sentence import NextSentence
from attnkit.data.objectives.permuted import Permuted
from attnkit.data.objectives.sequence_to_sequence import SequenceToSequence

__all__ = [
    "IGNORED",
    "Causal",
    "Denoising",
    "Masked",
    "NextSentence",
    "Objective",
    "ObjectiveConfig",
    "Permuted",
    "SequenceToSequence",
    "objectives",
]
