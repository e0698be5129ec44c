"""A run = model + tokenizer + data + objective + training + tracking: strict loading, and saving.

    run = load(PretrainRun, ["--config", "demo.yaml", "--model.scorer", "cosine"])
    save(run, Path("runs/demo/config.yaml"))  # accepted back by --config

Every settings dataclass lives beside its only reader; `runs.py` gathers them. This file imports nothing, so that
`help.py` can be read without torch.
"""
