"""Candidates for the master role that a node starts: processes of their own, which outlive it."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import attrs

from ftcore.launch.candidacy import MASTER_SAYS, Candidacy
from ftcore.private import make_private
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.reaper import Reaper


class Candidates:
    """Puts up processes that want the master role; they outlive this one.

    Args:
        candidacy: of the node.
        log: file for their messages.
        reaper: waits for them.
        on_useless: told why one ended that cannot use the log.
    """

    def __init__(self, candidacy: Candidacy, log: Path, reaper: Reaper, on_useless: Callable[[str], None]) -> None:
        self._candidacy = candidacy
        self._log = log
        self._on_useless = on_useless
        self._reaper = reaper
        self._living: set[int] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def put_up(self, silent: int | None) -> None:
        """Start a candidate, unless one of ours lives.

        Args:
            silent: process id of one that led and is heard of no more: it may be frozen, and does not count; 0: nobody
                leads; None: somebody does, and a standby is wanted.
        """
        if self._living - {silent}:
            return
        try:
            said = written(self._log)
            pid = spawn(attrs.evolve(self._candidacy, standby=silent is None), self._log)
        except OSError as error:  # whatever was taken from this machine, its workers train on
            self._on_useless(f"cannot start a master: {error}")
            return
        self._living.add(pid)
        self._none_left.clear()
        self._reaper.watch(pid, lambda code, mono: self._ended(pid, code, said))

    async def ended(self, timeout_s: float) -> None:
        """Wait until every candidate that was put up here has ended, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()

    def let_go(self) -> None:
        """Have nobody wait for them any longer."""
        self._none_left.set()

    def _ended(self, pid: int, code: int, said: int) -> None:
        self._living.discard(pid)
        if not self._living:
            self._none_left.set()
        if code in (1, 2):
            self._on_useless(last_words(self._log, said))


def written(log: Path) -> int:
    """How many bytes a file of messages has."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_words(log: Path, after: int) -> str:
    """What a candidate said when it ended.

    Args:
        log: the file with the messages of this node's candidates, those of other jobs of that name too.
        after: bytes that were in it before this candidate was started.
    """
    try:
        lines = log.read_bytes()[after:].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    said = [line for line in lines[-5:] if line.startswith(MASTER_SAYS)]
    return said[-1].removeprefix(MASTER_SAYS) if said else f"the master ended unexpectedly; see {log}"


def spawn(candidacy: Candidacy, log: Path) -> int:
    """Start a candidate in a session of its own; returns its process id.

    Args:
        candidacy: what it needs to know.
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
