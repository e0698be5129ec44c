"""Where text comes from: the settings of `data`, and the documents behind `data.source`."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class DataConfig:
    """The text of a pretraining run."""

    source: str | list[str] = "python-docs"
    """`python-docs`, or files, globs and folders of txt, jsonl, csv and parquet (plain or .gz), or a hub name."""
    text_column: str = "text"
    """The column that holds the text in jsonl, csv and parquet files and hub datasets."""
    held_out_source: str | list[str] | None = None
    """Text to evaluate on; without it a part of `source` is held out, document by document."""
    held_out_fraction: float = 0.05
    """The part of the documents of `source` that is held out when there is no `held_out_source`."""
    sequence_length: int = 256  # tokens
    """Tokens in one training row."""
    seed: int = 0
    """Seed of the split into training and held-out documents."""
