"""The agent's side of ``warm/stacks.py``: the file of one worker, and when it may be asked.

The open file is shared with the worker, its offset included: the agent empties it and goes back to its start before it
asks, and what the worker writes then is one answer.
"""

import contextlib
import os
from typing import Final

from ftcore.runtime.agent import processes
from ftcore.runtime.warm.stacks import ALL_STACKS, ALL_STACKS_LOCKED, MEMFD, STACKS

STACK_BYTES_MAX: Final = 64 << 10
_UNABLE: Final = "TtZX"


class StackFile:
    """The stacks of one worker.

    Attributes:
        fd: the file, also for the worker.
        there: its number in the worker; -1: the worker does not listen.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create(MEMFD, os.MFD_CLOEXEC)
        self.there = -1

    def ask(self, pid: int, every: bool = False, locked: bool = False) -> bool:
        """Ask for stacks, see ``ports.Inspector``; whether the worker can answer."""
        number = (ALL_STACKS_LOCKED if locked else ALL_STACKS) if every else STACKS
        if self.there < 0 or not _listens(pid, self.there, number):
            return False
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        processes.kill(pid, number)
        return True

    def read(self) -> str:
        """What the worker has answered by now."""
        return os.pread(self.fd, STACK_BYTES_MAX, 0).decode(errors="replace")

    def close(self) -> None:
        """Give up the file; the worker's own end stays as it is."""
        os.close(self.fd)


def _listens(pid: int, there: int, number: int) -> bool:
    """Whether the process catches this signal, which would end it otherwise, into that file, and is not stopped."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        if not os.readlink(f"/proc/{pid}/fd/{there}").startswith(f"/memfd:{MEMFD}"):
            return False
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
        caught = int(lines[b"SigCgt"], 16)
        return lines[b"State"].strip().decode()[0] not in _UNABLE and bool(caught >> (number - 1) & 1)
    return False
