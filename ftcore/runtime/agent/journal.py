"""The file of an outbox: written and read by a thread, in order, so that a disk that stalls holds up no heartbeat."""

import asyncio
import contextlib
import os
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from ftcore.private import make_private

LINES_MAX = 10_000
"""Bound of what waits for a disk that stalls."""

LEVELS = 3
"""Directories above the file that are made anew if they were removed: of the log, the job, and all agents. If what is
above them is gone too, it was taken away as a whole, and may be put back."""


class FileJournal:
    """A journal in a file; see ``ports.Journal``.

    Args:
        path: where the file is made, with its folder, when there is something to write. Both are removed at the end if
            there is nothing to leave.
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
        with self._changed:  # a disk that comes back later holds a successor's file
            self._lines.clear()
            self._empty = False
            self._late = True

    def _run(self) -> None:
        self._left.set_running_or_notify_cancel()  # who waits no longer ends nothing
        self._left.set_result(_lines_of(self._path))
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


def _lines_of(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []
