"""What the tests of training share."""

import gc

import pytest
from accelerate import Accelerator
from samples import fresh_accelerator

# Every run ends with collecting garbage; what the libraries made while they were imported need not be searched again.
gc.freeze()


@pytest.fixture
def accelerator() -> Accelerator:
    return fresh_accelerator()
