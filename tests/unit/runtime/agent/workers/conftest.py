"""Nodes for the tests of the supervisor: one without torch per module, since nothing of it depends on torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import Node


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose warm process has nothing loaded but Python."""
    node = Node(tmp_path_factory.mktemp("bare"))
    yield node
    node.close()


@pytest.fixture
def root(bare: Node, tmp_path: Path) -> Iterator[Node]:
    """The bare node, working in the test's own directory."""
    bare.root = tmp_path
    bare.notes.clear()
    yield bare
    bare.run(bare.supervisor.stop(0.0))
