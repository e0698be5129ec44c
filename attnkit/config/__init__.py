"""A run = model + tokenizer + data + objective + training + tracking: strict loading, and saving.

    run = load(PretrainRun, ["--config", "demo.yaml", "--model.scorer", "cosine"])
    save(run, Path("runs/demo/config.yaml"))  # accepted back by --config

Every settings dataclass lives beside its only reader; `runs.py` gathers them.
"""

from attnkit.config.flags import help_text
from attnkit.config.load import load
from attnkit.config.runs import FinetuneRun, ModelConfig, PretrainRun, TokenizerRun
from attnkit.config.save import resolved, save, to_text

__all__ = [
    "FinetuneRun",
    "ModelConfig",
    "PretrainRun",
    "TokenizerRun",
    "help_text",
    "load",
    "resolved",
    "save",
    "to_text",
]
