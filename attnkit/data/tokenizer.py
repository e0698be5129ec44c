"""A tokenizer trained on the run's own text, or one loaded from a folder."""

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class TokenizerConfig:
    """Which tokenizer a run uses."""

    path: str | None = None
    """A folder or hub name to load; without it a tokenizer is trained on `data.source`."""
    algorithm: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """What is trained: byte-level BPE (Sennrich 2016), WordPiece (Schuster 2012) or Unigram (Kudo 2018)."""
    vocab_size: int = 8192
    """Entries of the trained vocabulary, special tokens included."""
