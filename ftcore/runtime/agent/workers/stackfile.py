"""The agent's side of ``warm/stacks.py``: requests and reads the stacks of one worker.

The open file and its offset are shared with the worker: before a request the agent truncates the file and resets the
offset, so that the file then has one answer.
"""

import contextlib
import os
from typing import Final

from ftcore.runtime.agent.workers import processes
from ftcore.runtime.warm.stacks import ALL_STACKS, ALL_STACKS_LOCKED, MEMFD, STACKS

STACK_BYTES_MAX: Final = 64 << 10
_UNABLE: Final = "TtZX"


class StackFile:
    """The stacks of one worker.

    Attributes:
        fd: the file, shared with the worker.
        worker_fd: its descriptor number in the worker; -1: the worker cannot answer.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create(MEMFD, os.MFD_CLOEXEC)
        self.worker_fd = -1

    def ask(self, pid: int, every: bool = False, locked: bool = False) -> bool:
        """Request stacks, see ``ports.Inspector``; returns whether the worker can answer."""
        number = (ALL_STACKS_LOCKED if locked else ALL_STACKS) if every else STACKS
        if self.worker_fd < 0 or not _can_answer(pid, self.worker_fd, number):
            return False
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        processes.kill(pid, number)
        return True

    def read(self) -> str:
        """The answer of the worker so far."""
        return os.pread(self.fd, STACK_BYTES_MAX, 0).decode(errors="replace")

    def close(self) -> None:
        """Close the agent's descriptor; the worker's stays open."""
        os.close(self.fd)


def _can_answer(pid: int, worker_fd: int, number: int) -> bool:
    """Whether the process handles the signal (which ends it otherwise), has the file, and is not stopped."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        if not os.readlink(f"/proc/{pid}/fd/{worker_fd}").startswith(f"/memfd:{MEMFD}"):
            return False
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
        caught = int(lines[b"SigCgt"], 16)
        return lines[b"State"].strip().decode()[0] not in _UNABLE and bool(caught >> (number - 1) & 1)
    return False
