"""These tests need a CUDA device: without one they are skipped, or fail if ``FTCORE_REQUIRE_CUDA=1``."""

import os

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look before any fixture is made."""
    if not torch.cuda.is_available():
        if os.environ.get("FTCORE_REQUIRE_CUDA") == "1":
            pytest.fail("FTCORE_REQUIRE_CUDA=1, but torch finds no CUDA device")
        pytest.skip("no CUDA device")
