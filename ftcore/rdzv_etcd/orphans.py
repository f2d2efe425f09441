"""Finds the workers in ``/proc`` that a torchrun has started and not reported yet.

torchrun reports its workers when it first monitors them, up to ``--monitor-interval`` after their start. If it is
killed before, they are found here. A worker has the round's mark in its environment. A process that torchrun has forked
and that has not called ``execve`` yet has torchrun's environment. It is recognised by torchrun's command line, and by
the addresses of its stack and arguments, which the kernel chooses at random for every program.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

MARK = "FTCORE_LAUNCH"
"""Environment variable of torchrun's workers with the launch that they belong to."""

_START_TIME, _STACK, _ARGUMENTS, _ENVIRONMENT = 19, 25, 45, 47
"""Positions of fields in ``/proc/PID/stat``, counted from the state."""

Image: TypeAlias = tuple[bytes, str, str, str]


class Children:
    """The child processes of a torchrun that were started after this object.

    Args:
        torchrun: process id of the torchrun.

    Attributes:
        pidfd: of torchrun; -1 if it has ended.
    """

    def __init__(self, torchrun: int) -> None:
        self._token = secrets.token_hex(8)
        self._image = _image(torchrun)
        self._since = _started("self")
        try:
            self.pidfd = os.pidfd_open(torchrun)
        except ProcessLookupError:
            self.pidfd = -1
        if self.pidfd >= 0 and os.getppid() != torchrun:  # it has ended, and the process id may be reused
            os.close(self.pidfd)
            self.pidfd = -1

    def close(self, on_close: Callable[[int], object] = lambda fd: None) -> None:
        """Release the pidfd.

        Args:
            on_close: called with the pidfd before it is closed.
        """
        if self.pidfd >= 0:
            on_close(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1

    def mark(self, round_: int) -> str:
        """Value of ``MARK`` for the workers of a round."""
        return f"{self._token}.{round_}"

    def find(self, round_: int) -> list[int]:
        """Process ids of the living workers of a round, of their children, and of forked processes before execve."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if pid != os.getpid() and self.is_of(pid, round_)]

    def is_of(self, pid: int, round_: int) -> bool:
        """Whether the process is one that ``find`` returns."""
        try:
            if Path(f"/proc/{pid}").stat().st_uid != os.getuid() or _started(str(pid)) < self._since:
                return False
            if self._image is not None and _image(pid) == self._image:
                return True
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"{MARK}={self.mark(round_)}".encode() in variables


def _image(pid: int) -> Image | None:
    """The part of a process that its forks share until they call ``execve``; None if it cannot be read."""
    try:
        fields = _stat(str(pid))
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    image = (command, fields[_STACK], fields[_ARGUMENTS], fields[_ENVIRONMENT])
    return image if command and all(int(address) > 1 for address in image[1:]) else None


def _started(pid: str) -> int:
    """Start time of the process in clock ticks since boot; -1 if it is dead."""
    fields = _stat(pid)
    return -1 if fields[0] in ("Z", "X") else int(fields[_START_TIME])


def _stat(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
