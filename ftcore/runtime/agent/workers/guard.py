"""The agent's side of the guard process (``_guard``): keeps one alive and sends it the workers' sessions.

The guard is started by exec of a bare interpreter, not by fork: so it can be restarted when the agent has threads, it
shares no pages with the agent that would be copied later, and it has none of the agent's descriptors.
"""

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper

RETRY_S = 1.0
_MAIN = Path(__file__).with_name("_guard.py")


class Guard:
    """Keeps a guard process alive until ``close``.

    Args:
        reaper: waits for the guard.
        tag: ``NAME=value``, an entry in the environment of all processes that the guard may kill.
    """

    def __init__(self, reaper: Reaper, tag: str) -> None:
        self._reaper = reaper
        self._tag = tag
        self._sessions: set[int] = set()
        self._pipe: int | None = None
        self.pid = 0
        self._start()

    def add(self, session: int) -> None:
        """End this session when the agent ends."""
        self._sessions.add(session)
        self._write(f"+{session}\n")

    def remove(self, session: int) -> None:
        """Remove a session that has ended, because its id may be reused."""
        self._sessions.discard(session)
        self._write(f"-{session}\n")

    def close(self) -> None:
        """End the guard."""
        self._reaper.forget(self.pid)
        processes.kill(self.pid, signal.SIGKILL)
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _start(self) -> None:
        theirs, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        # A stopped guard must not block the agent: the pipe has room for over a hundred thousand lines.
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        # Write the sessions before the start: the agent may die as soon as the guard runs.
        os.write(self._pipe, "".join(f"+{session}\n" for session in sorted(self._sessions)).encode())
        try:
            self.pid = processes.spawn(
                [sys.executable, "-I", "-S", "-B", str(_MAIN), self._tag], {}, {0: theirs}, null=(1, 2)
            )
        finally:
            os.close(theirs)
        self._reaper.watch(self.pid, self._ended)

    def _ended(self, _code: int, _mono: int) -> None:
        if self._pipe is None:
            return
        os.close(self._pipe)
        try:
            self._start()
        except OSError:  # the process limit is reached
            asyncio.get_running_loop().call_later(RETRY_S, self._ended, 0, 0)

    def _write(self, line: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, line.encode())
        except BlockingIOError:
            processes.kill(self.pid, signal.SIGKILL)  # it does not read; the next guard gets all sessions
        except BrokenPipeError:
            pass  # it has just died; the next guard gets all sessions
