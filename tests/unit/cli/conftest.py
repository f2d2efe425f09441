"""Fixtures of tests of the command line."""

from pathlib import Path

import pytest
from ftctl_logs import archive, driven


@pytest.fixture
def store(tmp_path: Path) -> str:
    return archive(tmp_path / "demo.ftlog", driven().events)


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FTCORE_STORE", "FTCORE_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
