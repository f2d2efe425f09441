"""Native stacks of real processes, by the real py-spy."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.runtime.agent.telemetry import native, samples
from ftcore.runtime.agent.telemetry.native import NativeStacks, native_stack

WAITS = """
import ctypes
print("ready", flush=True)
def in_the_library():
    ctypes.CDLL(None).pause()
in_the_library()
"""


def skip_without_tracing(pid: int) -> None:
    """Skip a test where this user may not trace its own processes, as in some containers."""
    tried = subprocess.run([native._program(), "dump", "--pid", str(pid)], capture_output=True, text=True, check=False)
    if tried.returncode and "ermission" in tried.stderr:
        pytest.skip("this user may not trace processes")


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    """A process that waits inside of a C library."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    while samples.state(process.pid) != "S":
        os.sched_yield()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program in place of py-spy."""

    def make(text: str) -> None:
        program = tmp_path / "py-spy"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(native, "_program", lambda: str(program))

    return make


def test_it_shows_where_a_library_waits(waiting: subprocess.Popen[str]) -> None:
    """And the process goes on waiting."""
    skip_without_tracing(waiting.pid)
    text = native_stack(waiting.pid)
    lines = [line.strip() for line in text.splitlines()]
    pause = next(number for number, line in enumerate(lines) if line.startswith("pause ("))
    python = next(number for number, line in enumerate(lines) if line.startswith("in_the_library ("))
    assert pause < python
    assert samples.state(waiting.pid) == "S"


def test_a_process_that_is_gone_has_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert native_stack(gone.pid) == ""


def test_without_py_spy_there_are_none(monkeypatch: pytest.MonkeyPatch, waiting: subprocess.Popen[str]) -> None:
    monkeypatch.setattr(native, "_program", lambda: "")
    assert native_stack(waiting.pid) == ""


@pytest.mark.parametrize("text", ["echo not allowed >&2; exit 1", "exit 3"])
def test_an_error_of_py_spy_is_none_of_ours(script, text: str) -> None:
    script(text)
    assert native_stack(os.getpid()) == ""


def test_a_process_that_py_spy_left_stopped_goes_on(
    script, monkeypatch: pytest.MonkeyPatch, waiting: subprocess.Popen[str]
) -> None:
    """It took too long, and was killed in between."""
    monkeypatch.setattr(native, "LIMIT_S", 0.5)
    script("kill -STOP $4; exec sleep 1000")
    assert native_stack(waiting.pid) == ""
    while samples.state(waiting.pid) == "T":
        os.sched_yield()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait() == -signal.SIGTERM


def test_processes_are_known_while_they_are_read() -> None:
    """They are stopped then, and that is nobody else's doing; what has no stack has no file."""
    seen: list[set[int]] = []
    stacks = NativeStacks(lambda pid: seen.append(set(stacks.reading)) or ("text" if pid == 5 else ""))
    found = asyncio.run(stacks.of({5: "/a/stacks.txt", 6: "/b/stacks.txt"}))
    assert found == {"/a/native.txt": "text"}
    assert seen == [{5, 6}] * 2
    assert stacks.reading == set()
