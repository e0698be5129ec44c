"""From text to batches: sources, tokenizer, packing, objectives."""

from attnkit.data.documents import Documents
from attnkit.data.objectives import Objective, ObjectiveConfig
from attnkit.data.sources import DataConfig, PretrainDataConfig
from attnkit.data.statistics import unigram_loss
from attnkit.data.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer

__all__ = [
    "DataConfig",
    "Documents",
    "Objective",
    "ObjectiveConfig",
    "PretrainDataConfig",
    "TokenizerConfig",
    "load_tokenizer",
    "train_tokenizer",
    "unigram_loss",
]
