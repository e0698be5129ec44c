"""What the tests of training share."""

import pytest
from accelerate import Accelerator
from samples import fresh_accelerator


@pytest.fixture
def accelerator() -> Accelerator:
    return fresh_accelerator()
