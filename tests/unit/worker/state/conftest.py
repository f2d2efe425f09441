"""Processes with torch for the tests of this folder, and the keeper of their node."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keeper_double import KeeperDouble
from rank_processes import HERE, Ranks


@pytest.fixture(scope="session")
def zygote() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "zygote.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def make_keeper(tmp_path: Path) -> Iterator[Callable[..., KeeperDouble]]:
    made: list[KeeperDouble] = []

    def make(**more: Any) -> KeeperDouble:
        path = Path(os.environ["XDG_RUNTIME_DIR"]) / f"k{os.getpid()}-{id(tmp_path)}-{len(made)}"
        made.append(KeeperDouble(path, **{"url": str(tmp_path / "check points ü"), **more}))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()
        keeper.path.unlink(missing_ok=True)


@pytest.fixture
def ranks(zygote: "subprocess.Popen[str]", tmp_path: Path, make_keeper: Callable[..., KeeperDouble]) -> Ranks:
    return Ranks(zygote, tmp_path, make_keeper())
