"""What every test starts from: no hub, no threads beyond its own, caches that vanish, fixed seeds."""

import os
import tempfile

import pytest

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
