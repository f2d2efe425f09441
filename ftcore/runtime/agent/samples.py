"""What a worker does, as the kernel tells it: does it run, use a processor, move bytes, and what does it wait for?

| what | from |
|---|---|
| state, CPU | ``/proc/PID/stat``, also of its descendants |
| whether its main thread has run | its context switches in ``/proc/PID/status`` |
| bytes of files and pipes | ``/proc/PID/io`` |
| bytes of the network | the counters of its TCP connections (``sockets.py``) |
| what its main thread waits for | ``/proc/PID/syscall`` |
| when its sleep ends | that call's argument, from ``/proc/PID/mem`` |

House rule: what cannot be read is left out, and never an error; then less is known, and there is more patience.
"""

import contextlib
import os
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs

from ftcore.runtime.agent import processes, sockets

BUSY_SHARE: Final = 0.02
"""Of one processor: what background threads use is less."""

BUSY_BYTES_S: Final = 4096.0
"""What keeps connections alive is less."""

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_CALLS: Final[Mapping[str, Mapping[int, str]]] = {
    "x86_64": {35: "nanosleep", 230: "clock_nanosleep", 202: "futex", 23: "select", 270: "pselect", 271: "ppoll"}
    | dict.fromkeys((0, 7, 45, 47, 43, 288, 61, 247, 232, 281, 441, 42), "outside"),
    "aarch64": {101: "nanosleep", 115: "clock_nanosleep", 98: "futex", 72: "pselect", 73: "ppoll"}
    | dict.fromkeys((63, 207, 212, 202, 242, 260, 95, 22, 441, 203), "outside"),
}
"""System calls that wait, by machine."""

_ABSOLUTE: Final = 1
_FUTEX_BITSET, _FUTEX_REALTIME, _FUTEX_OP = 9, 256, 127


@attrs.frozen
class Usage:
    """What a process and its descendants had used at a moment.

    Args:
        at: monotonic seconds.
        state: of its main thread, a letter as in ``/proc/PID/stat``; ``X``: it has ended.
        switches: of its main thread.
        cpu_s: seconds of CPU of all.
        moved: bytes of all.
        others: context switches of the main threads of its descendants.
        inodes: of the sockets of all.
    """

    at: float
    state: str = "X"
    switches: int = 0
    cpu_s: float = 0.0
    moved: int = 0
    others: int = 0
    inodes: tuple[int, ...] = ()


@attrs.frozen
class Wait:
    """What a main thread waits for.

    Args:
        kind: as in ``events.worker.Stand``.
        ends_at: monotonic seconds at which it ends by itself; None: not known, or never.
    """

    kind: str = ""
    ends_at: float | None = None


class Kernel(Protocol):
    """What a kernel tells of processes; this module is that of this machine's."""

    def born(self, pid: int) -> str:
        """See ``born``."""

    def state(self, pid: int) -> str:
        """See ``state``."""

    def wait_of(self, pid: int) -> Wait:
        """See ``wait_of``."""

    def usages(self, pids: Sequence[int]) -> tuple[list[Usage], list[sockets.Connection]]:
        """See ``usages``."""


def progressed(before: Usage, after: Usage, wait: Wait) -> bool:
    """Whether a process did anything between two moments.

    A process that waits for something outside counts as one that does something if any of its descendants has run:
    it may wait for that one.
    """
    seconds = max(after.at - before.at, 1e-3)
    return (
        after.switches != before.switches
        or (after.cpu_s - before.cpu_s) / seconds >= BUSY_SHARE
        or (after.moved - before.moved) / seconds >= BUSY_BYTES_S
        or (wait.kind in ("outside", "") and after.others != before.others)
    )


def usages(pids: Sequence[int]) -> tuple[list[Usage], list[sockets.Connection]]:
    """What processes have used by now, and the connections of this host."""
    found = sockets.connections()
    sent = sockets.moved(found)
    return [usage(pid, sent) for pid in pids], found


def usage(pid: int, sent: Mapping[int, int]) -> Usage:
    """What a process and its descendants have used by now.

    Args:
        pid: the process.
        sent: bytes that connections have moved, by inode.
    """
    at, cpu_s, moved, others = time.monotonic(), 0.0, 0, 0
    children: list[int] = []
    inodes: list[int] = []
    with contextlib.suppress(OSError):
        children = processes.descendants(pid, ())
    for one in (pid, *children):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat(one)
            cpu_s += (int(fields[11]) + int(fields[12])) * _TICK_S
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{one}/io", "rb") as file:
                words = file.read().split()
            moved += int(words[1]) + int(words[3])
        inodes += _sockets(one) if sent else []
        others += _switches(one) if one != pid else 0
    moved += sum(sent.get(inode, 0) for inode in inodes)
    return Usage(at, state(pid), _switches(pid), cpu_s, moved, others, tuple(inodes))


def _switches(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        return sum(int(line.split()[1]) for line in file if b"ctxt_switches" in line)
    return 0


def _sockets(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, ValueError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:["):
                    found.append(int(link[8:-1]))
    return found


def wait_of(pid: int) -> Wait:
    """What the main thread of a process waits for now."""
    try:
        with open(f"/proc/{pid}/syscall", "rb") as file:
            words = file.read().split()
        number, args = int(words[0]), [int(word, 16) for word in words[1:7]]
    except (OSError, ValueError, IndexError):
        return Wait()
    call = _CALLS.get(os.uname().machine, {}).get(number, "")
    with contextlib.suppress(OSError, struct.error, ValueError):
        return _wait(pid, call, args)
    return Wait("outside" if call not in ("futex", "") else "")


def _wait(pid: int, call: str, args: list[int]) -> Wait:
    now = time.monotonic()
    if call == "clock_nanosleep":
        seconds = _timespec(pid, args[2])
        if not args[1] & _ABSOLUTE:
            return Wait("sleep")  # it began nobody knows when
        return Wait("sleep", seconds if args[0] == time.CLOCK_MONOTONIC else now + seconds - time.time())
    if call == "futex":
        if not args[3]:
            return Wait("lock")
        seconds = _timespec(pid, args[3])
        if args[1] & _FUTEX_OP != _FUTEX_BITSET:
            return Wait("lock")
        return Wait("lock", now + seconds - time.time() if args[1] & _FUTEX_REALTIME else seconds)
    if call in ("select", "pselect", "ppoll"):
        nobody = not args[1] if call == "ppoll" else not args[0]
        return Wait("sleep" if nobody else "outside")
    return Wait({"nanosleep": "sleep"}.get(call, call))


def _timespec(pid: int, address: int) -> float:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        seconds, nanoseconds = struct.unpack("qq", file.read(16))
    return float(seconds + nanoseconds / 1e9)


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on. Raises ``OSError``."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode("ascii").split()


def state(pid: int) -> str:
    """The state of a process, a letter; ``X``: it has ended."""
    try:
        return stat(pid)[0]
    except (OSError, IndexError):
        return "X"


def born(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it has ended. Tells two processes of one id apart."""
    try:
        fields = stat(pid)
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
