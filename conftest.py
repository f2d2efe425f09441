"""What all tests share: fixtures of several folders, a state home that is not the user's, and no process left behind.

The folders ``tests`` and ``tests/chaos/ftrun`` are on the import path of all tests. ``XDG_RUNTIME_DIR`` is the
session's mark: no test changes it, every process that a test starts inherits it, so a process that has it at the end
was left behind. With ``-n`` (pytest-xdist) each process is such a session of its own, with its own home and mark, and
tells the first what it found.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from ftcore.timing import DEFAULT

TESTS = Path(__file__).parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "chaos" / "ftrun")]

hypothesis.settings.register_profile("ftcore", deadline=None)  # no test judges how long something takes
hypothesis.settings.load_profile("ftcore")

pytest_plugins = ["etcd_cluster"]

HOME = pytest.StashKey[Path]()
LEFT = pytest.StashKey[list[str]]()

LONG = os.environ.get("FTCORE_LONG_TESTS") == "1"
"""Long tests run too: see ``make long``."""

PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Processes of pytest-xdist that share the tests."""

END_S = DEFAULT.master_idle_s + 5.0
"""A master whose agents were all killed ends by itself after ``master_idle_s``: that is its right, not a leftover."""


@pytest.fixture(scope="session")
def longer() -> bool:
    """Whether tests marked ``longer`` try all of their cases."""
    return LONG


def pytest_configure(config: pytest.Config) -> None:
    """Keep the session's state and sockets apart from the user's own; the path is short, as sockets need it."""
    home = Path(tempfile.mkdtemp(prefix="ftcore-test-", dir="/tmp"))
    config.stash[HOME] = home
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        path = home / name[4:].partition("_")[0].lower()
        path.mkdir(mode=0o700)
        os.environ[name] = str(path)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # nohup, or a shell's background: no test starts anything deaf
            signal.signal(number, lambda *_: None)
    for name in [name for name in os.environ if name.startswith(("PET_", "FTCORE_JOB", "FTCORE_STORE"))]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip long tests unless they are asked for; every process begins with what may take longest.

    The last one to end of several processes is waited for by all.
    """
    from order_of_tests import dealt

    for item in items:
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(pytest.mark.skip(reason="takes long: `make long` runs it"))

    def allowed_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0]) if mark is not None and mark.args else 0.0

    slow = sorted((item for item in items if allowed_s(item)), key=allowed_s, reverse=True)
    items[:] = dealt(slow, [item for item in items if not allowed_s(item)], PROCESSES)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a process that a test started still lives, once it had time to end by itself."""
    deadline = time.monotonic() + END_S
    mark = f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}".encode()
    while (left := _living(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left += session.config.stash.get(LEFT, [])
    session.config.stash[LEFT] = left
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left"] = left
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """One of xdist's processes ended: keep what it told of processes left behind."""
    del error
    node.config.stash.setdefault(LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the processes that were left behind."""
    for line in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND by a test: {line}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's directory."""
    shutil.rmtree(config.stash[HOME], ignore_errors=True)


def _living(mark: bytes) -> list[str]:
    """``pid command line`` of the processes that carry the mark, ourselves excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or entry.name == str(os.getpid()):
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command:  # a zombie has none
                    found.append(f"{entry.name} {command[:300]}")
        except OSError:  # ended while we looked, or another user's
            continue
    return found
