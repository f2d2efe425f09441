"""A node with a keeper for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_harness import KeeperHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KeeperHost]:
    """A node without processes; all that a test starts ends with it."""
    made = KeeperHost(tmp_path)
    yield made
    made.close()
