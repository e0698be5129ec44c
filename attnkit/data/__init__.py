"""From text to batches: sources, tokenizer, packing, objectives."""

from attnkit.data.objectives import Objective, ObjectiveConfig
from attnkit.data.packing import PackedText, pack
from attnkit.data.sources import DataConfig, Documents, load_documents
from attnkit.data.statistics import unigram_loss
from attnkit.data.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer

__all__ = [
    "DataConfig",
    "Documents",
    "Objective",
    "ObjectiveConfig",
    "PackedText",
    "TokenizerConfig",
    "load_documents",
    "load_tokenizer",
    "pack",
    "train_tokenizer",
    "unigram_loss",
]
