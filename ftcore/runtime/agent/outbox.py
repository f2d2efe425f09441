"""The outbox: facts that no master has acknowledged yet, in memory and on disk.

A fact is numbered once and keeps its number however often it is sent. The file lets the next agent of the node deliver
what this one could not. It is read and written by a thread, in order: a disk that stalls (a home on a server that is
away) holds up no heartbeat. A disk that refuses, or an agent that dies or begins while its disk stalls, costs what the
next agent would have delivered, and nothing else.

The file belongs to one log: its folder is named after the log's identity, which a master tells in its welcome. Until
then facts are kept in memory alone. A job of the same name in another store has another log, and never sees them.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ftcore.errors import LogCorrupt
from ftcore.events.codec import decode_fact, encode_fact
from ftcore.events.envelope import At, EventId, Fact
from ftcore.events.operator import OperatorCommanded
from ftcore.private import make_private

OUTBOX_FACTS_MAX = 10_000
"""Bound of the memory of an agent without a master; reached only by a crash loop without a master to stop it."""

LEVELS = 3
"""Directories above the file that are made anew if they were removed: of the log, the job, and all agents. If what is
above them is gone too, it was taken away as a whole, and may be put back."""

CLOSE_S = 2.0
"""An agent that ends waits at most so long for its disk."""

READ_S = 2.0
"""An agent that begins waits at most so long for what its predecessor left."""


class Outbox:
    """Facts of one agent incarnation, oldest first, with those that its predecessor left.

    Args:
        node: the node.
        incarnation: this agent's life.
        wake: called when a fact is added.
    """

    def __init__(self, node: str, incarnation: str, wake: Callable[[], None]) -> None:
        self._node = node
        self._incarnation = incarnation
        self._wake = wake
        self._n = 0
        self.acked = 0
        self._facts: list[tuple[Fact, bytes]] = []
        self._acknowledged = asyncio.Event()
        self._file: _File | None = None

    def open(self, path: Path) -> None:
        """Keep the facts in a file from now on, those that are there first; only the first call counts.

        Args:
            path: the file of this node and log; its content, if any, is the predecessor's.
        """
        if self._file is None:
            self._file = _File(path)
            for _, body in self._facts:
                self._file.append(body)

    async def inherited(self) -> list[bytes]:
        """What the predecessor left, as JSON, until a fact of this life is acknowledged: then it was told, or never is.

        Waits for the disk, at most ``READ_S``: what it says later is too late, the fold takes this life for the newest.
        """
        if self.acked or self._file is None:
            return []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                return await asyncio.wrap_future(self._file.predecessor)
        return []

    def add(self, data: Any, at: At) -> int:
        """Number a fact and queue it; returns its number."""
        self._n += 1
        fact = Fact(id=EventId(self._node, self._incarnation, self._n), data=data, at=at)
        body = encode_fact(fact)
        self._facts.append((fact, body))
        del self._facts[:-OUTBOX_FACTS_MAX]
        if self._file is not None:
            self._file.append(body)
        self._wake()
        return self._n

    def unacknowledged(self, after: int) -> list[tuple[int, bytes]]:
        """Facts with a number above ``after``, as ``(number, JSON)``."""
        return [(fact.id.n, body) for fact, body in self._facts if fact.id.n > after]

    def acknowledge(self, n: int) -> None:
        """Facts up to that number are durable."""
        self.acked = max(self.acked, n)
        self._facts = [(fact, body) for fact, body in self._facts if fact.id.n > n]
        self._acknowledged.set()
        if not self._facts and self._file is not None:
            self._file.empty()

    async def emptied(self) -> None:
        """Wait until everything is acknowledged."""
        while self._facts:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def close(self) -> None:
        """Close the file behind what is to be in it, within ``CLOSE_S``; what is not acknowledged stays in it."""
        if self._file is not None:
            await asyncio.to_thread(self._file.close, CLOSE_S)


class _File:
    """The file, as a thread reads and writes it; nothing here waits for the disk but ``close``.

    Args:
        path: where it is made, with its folder, when there is something to write. Both are removed at the end if
            there is nothing to leave.

    Attributes:
        predecessor: the facts of the last life that are in it, before anything else is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque(maxlen=OUTBOX_FACTS_MAX)
        self._empty = False
        self._closed = False
        self._late = False
        self.predecessor: Future[list[bytes]] = Future()
        self._thread = threading.Thread(target=self._run, name="ftcore-outbox", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Have a line written behind the others."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def empty(self) -> None:
        """Have nothing in the file of what was appended so far, nor of what was there before."""
        with self._changed:
            self._lines.clear()
            self._empty = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Wait until all is done, at most so long; what is not done by then is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:  # a disk that comes back later holds a successor's file
            self._lines.clear()
            self._empty = False
            self._late = True

    def _run(self) -> None:
        self.predecessor.set_running_or_notify_cancel()  # who waits no longer ends nothing
        self.predecessor.set_result(_left_in(self._path))
        fd = -1
        vacant = False
        while self._wanted():
            fd = _there(self._path, fd)
            with self._changed:  # looked at anew: the disk may have taken its time
                empty, self._empty = self._empty, False
                line = self._lines.popleft() if self._lines and not empty else None
            if line is None and not empty:
                break
            vacant = empty
            with contextlib.suppress(OSError):
                if line is None:
                    os.ftruncate(fd, 0)
                else:
                    os.write(fd, b"\n" + line)  # in front: a line that was cut short spoils no other
        if fd >= 0:
            os.close(fd)
        if vacant and not self._late:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()  # if no other node of this machine keeps something there

    def _wanted(self) -> bool:
        """Wait for something to do; whether there is, before the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._empty or self._closed)
            return bool(self._lines) or self._empty


def _there(path: Path, fd: int) -> int:
    """A descriptor of the file that lies at the path, made anew if it was removed; -1 if it cannot be made.

    Args:
        path: the file.
        fd: the descriptor until now, or -1.
    """
    if fd >= 0:
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
    for _ in range(2):  # another node that ends removes the folder, maybe just now
        with contextlib.suppress(OSError):
            make_private(path.parent, LEVELS)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return -1


def _left_in(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    facts: list[tuple[str, bytes]] = []
    for line in lines:
        try:
            fact = decode_fact(line)
        except LogCorrupt:
            continue  # half-written: its agent died while writing it, or had no space, so nothing was promised
        if not isinstance(fact.data, OperatorCommanded):  # somebody's wish to end that life, not this one
            facts.append((fact.id.incarnation, line))
    # Only the last life's: it sent its own predecessor's before its first, so those may be in the log, and the fold
    # knows a duplicate only among the newest life's.
    return [line for incarnation, line in facts if incarnation == facts[-1][0]]
