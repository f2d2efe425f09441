"""Agents and workers with a keeper, each in its own process, for tests that kill and stop them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
"""How long a test waits for what must happen; no test says how soon."""

_HERE = Path(__file__).parent
MARK = "FTCORE_KEEPER_TEST"


def until(true: Callable[[], Any], what: str = "") -> Any:
    """Wait until something is true; returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline, f"it did not happen: {what or true}"
        time.sleep(0.01)
    return found


class Party:
    """A process of the test.

    Args:
        host: what it belongs to.
        script: its program.
        arguments: the program's arguments.
    """

    def __init__(self, host: "KeeperHost", script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_HERE / script), str(host.root), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, MARK: str(host.root)},
        )
        self.reports: list[dict[str, Any]] = []
        self._unread = b""
        assert self._next() == {"ready": True}

    def ask(self, *line: Any) -> Any:
        """Have a line carried out; returns its answer."""
        self.send(*line)
        return self.answer()

    def send(self, *line: Any) -> None:
        """Have a line carried out, without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next answer; an error is returned as its message."""
        while True:
            message = self._next()
            if "answer" in message:
                return message["answer"]
            if "error" in message:
                return {"error": message["error"]}
            self.reports.append(message)

    def report(self, kind: str) -> Any:
        """The next report of a kind."""
        for number, message in enumerate(self.reports):
            if kind in message:
                return self.reports.pop(number)[kind]
        while True:
            message = self._next()
            if kind in message:
                return message[kind]
            self.reports.append(message)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; waits for the end after SIGKILL."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(PATIENCE_S)

    def output_ends(self) -> bool:
        """Whether its output is at its end: no other process holds it open."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            if not os.read(self.process.stdout.fileno(), 65536):
                return True
        return False

    def close(self) -> None:
        """End it by the end of its input."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()

    def _next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the process has ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class KeeperHost:
    """A node: an agent, workers and a keeper.

    Args:
        root: its directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.saved = root / "saved"
        (root / "run").mkdir(mode=0o700)
        self._parties: list[Party] = []

    def agent(self, *, url: bool = True, **options: Any) -> Party:
        """Start an agent; options are those of ``KeeperConfig``."""
        about = {"url": str(self.saved) if url else "", **options}
        self._parties.append(Party(self, "agent_main.py", json.dumps(about)))
        return self._parties[-1]

    def worker(self, rank: int = 0, *, ranks: int = 1, group: int = 0, groups: int = 1, round_: int = 1) -> Party:
        """Start a worker."""
        about = {"ranks": ranks, "group": group, "groups": groups, "round": round_}
        self._parties.append(Party(self, "worker_main.py", str(rank), json.dumps(about)))
        return self._parties[-1]

    def processes(self) -> dict[int, str]:
        """Command lines of all processes of this node that live."""
        mark, found = f"{MARK}={self.root}".encode(), {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def close(self) -> None:
        """End all of it; returns when no process is left."""
        for party in reversed(self._parties):
            party.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "all processes end")


def stat(pid: int) -> str:
    """State of a process, a letter; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def ended(pid: int) -> bool:
    """Whether a process has ended; its parent may not have collected it."""
    return stat(pid) in ("", "Z", "X")
