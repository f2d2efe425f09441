"""A progress page, as the agent reads it."""

import os
from collections.abc import Iterator

import pytest

from ftcore.shm import page


@pytest.fixture
def fd() -> Iterator[int]:
    """A page."""
    made = page.create()
    yield made
    os.close(made)


@pytest.fixture
def reader(fd: int) -> Iterator[page.PageReader]:
    """The agent's side."""
    made = page.PageReader(fd)
    yield made
    made.close()
