"""Logging of ftcore's own processes."""

import sys
from collections.abc import Iterator

import pytest
import structlog

from ftcore.runtime.logging import configure


@pytest.fixture
def structured() -> Iterator[None]:
    """structlog, set up by the test alone."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_log_on_a_full_disk_fails_nobody(structured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master whose log file cannot be written leads on."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        configure("info", to_file=True)
        structlog.get_logger().error("no space is left")
        full.buffer.raw.close()
        structlog.get_logger().error("and the file is closed")
