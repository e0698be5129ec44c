"""What every test starts from: no hub, no threads beyond its own, caches that vanish, fixed seeds."""

import os
import tempfile

import pytest
from hypothesis import settings

# The same cases in every run, so that a change is what makes a test fail; HYPOTHESIS_PROFILE=default draws others.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Read by the libraries when they are imported, and inherited by the processes that tests start.
CACHE = tempfile.TemporaryDirectory(prefix="attnkit-tests-", ignore_cleanup_errors=True)
os.environ.update(
    {
        "ACCELERATE_USE_CPU": "true",
        "HF_HOME": CACHE.name,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers in every test, whatever ran before it."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.set_seed(0)
