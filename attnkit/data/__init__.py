"""From text to batches.

sources     which files and data sets, opened by `readers`         → rows of columns, each with its place
documents   what is left out and what is held out                  → documents
rows        tokenized by the `tokenizer`, put together by `packing` → rows of token ids, with their account
mixing, prepared, streaming   several sources, rows in files, rows that are made while they are read
objectives  what is predicted: rows                                → batches of tensors
"""

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
