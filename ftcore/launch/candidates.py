"""Candidates for the master role that a node starts: separate processes, which outlive it unless it is released."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import attrs

from ftcore.launch.candidacy import MASTER_PREFIX, Candidacy
from ftcore.private import make_private
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper


class CandidateProcesses:
    """Starts candidates for the master role.

    Args:
        candidacy: configuration of the candidates.
        log: file for their messages.
        reaper: waits for them.
        on_failed: called with the reason if a candidate cannot be started or ends with an error.
    """

    def __init__(self, candidacy: Candidacy, log: Path, reaper: Reaper, on_failed: Callable[[str], None]) -> None:
        self._candidacy = candidacy
        self._log = log
        self._on_failed = on_failed
        self._reaper = reaper
        self._living: set[int] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def start(self, silent: int | None) -> None:
        """Start a candidate, unless a candidate of this node runs.

        Args:
            silent: process id of a leader that no longer answers: it may be frozen, so it does not count as running; 0:
                there is no leader; None: there is a leader, start a standby.
        """
        if self._living - {silent}:
            return
        try:
            log_bytes = size_of(self._log)
            pid = spawn(attrs.evolve(self._candidacy, standby=silent is None), self._log)
        except OSError as error:  # a lack of resources on this machine must not stop its workers
            self._on_failed(f"cannot start a master: {error}")
            return
        self._living.add(pid)
        self._none_left.clear()
        self._reaper.watch(pid, lambda code, mono: self._ended(pid, code, log_bytes))

    def end(self) -> None:
        """Have the candidates resign and end: the node is released, and its host may be cut off or go down."""
        for pid in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def ended(self, timeout_s: float) -> None:
        """Wait until every candidate of this node has ended, for at most ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()

    def stop_waiting(self) -> None:
        """End all calls of ``ended``."""
        self._none_left.set()

    def _ended(self, pid: int, code: int, log_bytes: int) -> None:
        self._living.discard(pid)
        if not self._living:
            self._none_left.set()
        if code in (1, 2):
            self._on_failed(last_message(self._log, log_bytes))


def size_of(log: Path) -> int:
    """Size of a file in bytes; 0 if it cannot be read."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_message(log: Path, after: int) -> str:
    """The error with which a candidate ended.

    Args:
        log: the file with the messages of this node's candidates, also of earlier jobs of the same name.
        after: size of the file in bytes before this candidate was started.
    """
    try:
        lines = log.read_bytes()[after:].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [line for line in lines[-5:] if line.startswith(MASTER_PREFIX)]
    return errors[-1].removeprefix(MASTER_PREFIX) if errors else f"the master ended unexpectedly; see {log}"


def spawn(candidacy: Candidacy, log: Path) -> int:
    """Start a candidate in a new session; returns its process id.

    Args:
        candidacy: its configuration.
        log: file to which its messages are appended.

    Raises:
        OSError: it cannot be started.
    """
    argv = candidacy.argv()
    make_private(log.parent)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return processes.spawn(argv, os.environ, {1: fd, 2: fd}, null=(0,))
    finally:
        os.close(fd)
