"""The file of an outbox: a thread writes and reads it in order, so that a stalled disk does not delay heartbeats."""

import asyncio
import contextlib
import os
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from ftcore.private import make_private

LINES_MAX = 10_000
"""Limit of lines queued for a stalled disk."""

LEVELS = 3
"""Removed directories above the file that are created again: of the log, the job, and all agents. If directories above
those are missing, the whole disk may be unmounted and may return."""


class FileJournal:
    """A journal in a file; see ``ports.Journal``.

    Args:
        path: the file; it and its directory are created by the first write, and removed at the end if empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque(maxlen=LINES_MAX)
        self._empty = False
        self._closed = False
        self._late = False
        self._left: Future[list[bytes]] = Future()
        self._thread = threading.Thread(target=self._run, name="ftcore-outbox", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """See ``ports.Journal``."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def empty(self) -> None:
        """See ``ports.Journal``."""
        with self._changed:
            self._lines.clear()
            self._empty = True
            self._changed.notify_all()

    async def left(self) -> list[bytes]:
        """See ``ports.Journal``."""
        return await asyncio.wrap_future(self._left)

    async def close(self, timeout_s: float) -> None:
        """See ``ports.Journal``."""
        await asyncio.to_thread(self._close, timeout_s)

    def _close(self, timeout_s: float) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:  # after a timeout the file belongs to a successor
            self._lines.clear()
            self._empty = False
            self._late = True

    def _run(self) -> None:
        self._left.set_running_or_notify_cancel()  # a cancelled waiter must not cancel the reading
        self._left.set_result(_lines_of(self._path))
        fd = -1
        vacant = False
        while self._wanted():
            fd = _open(self._path, fd)
            with self._changed:  # read again: opening the file may have taken long
                empty, self._empty = self._empty, False
                line = self._lines.popleft() if self._lines and not empty else None
            if line is None and not empty:
                break
            vacant = empty
            with contextlib.suppress(OSError):
                if line is None:
                    os.ftruncate(fd, 0)
                else:
                    os.write(fd, b"\n" + line)  # newline first: a truncated line does not corrupt the next one
        if fd >= 0:
            os.close(fd)
        if vacant and not self._late:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()  # fails if another node of this machine uses it

    def _wanted(self) -> bool:
        """Wait for work; false at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._empty or self._closed)
            return bool(self._lines) or self._empty


def _open(path: Path, fd: int) -> int:
    """A descriptor of the file at the path, which is created again if it was removed; -1 if that fails.

    Args:
        path: the file.
        fd: the current descriptor, or -1.
    """
    if fd >= 0:
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
    for _ in range(2):  # an ending node may remove the directory concurrently
        with contextlib.suppress(OSError):
            make_private(path.parent, LEVELS)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return -1


def _lines_of(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []
