"""The agent's side of ``worker/_recorder.py``: asks a worker for its newest collectives, and reads the answer.

The descriptors are numbers of the worker, from its page. A script may have closed them and have other files there, so
the agent checks what they are.
"""

import contextlib
import os
from typing import Final

from ftcore.shm.calls import MEMFD, Call, decoded

ANSWER_BYTES_MAX: Final = 256 << 10


def ask(pid: int, descriptors: tuple[int, int]) -> bool:
    """Ask a worker; returns whether it can answer.

    Args:
        pid: the worker.
        descriptors: its pipe and its memfd; negative: none.
    """
    path, answer = (f"/proc/{pid}/fd/{number}" for number in descriptors)
    if min(descriptors) < 0:
        return False
    with contextlib.suppress(OSError):
        if not os.readlink(path).startswith("pipe:[") or not os.readlink(answer).startswith(f"/memfd:{MEMFD}"):
            return False
        os.truncate(answer, 0)  # a worker that does not answer now must not be taken for one that did
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, b"?") == 1
        finally:
            os.close(fd)
    return False


def read(pid: int, descriptors: tuple[int, int]) -> tuple[tuple[Call, ...], str]:
    """The worker's newest answer: its collectives and the details. Arguments as for ``ask``."""
    path = f"/proc/{pid}/fd/{descriptors[1]}"
    if min(descriptors) < 0:
        return (), ""
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(f"/memfd:{MEMFD}"):
            with open(path, "rb") as file:
                answer = file.read(ANSWER_BYTES_MAX)
            return decoded(answer), answer.partition(b"\n")[2].decode(errors="replace")
    return (), ""
