"""Samples of a worker's activity from the kernel: scheduling, CPU time, I/O, and what its main thread waits for.

| value | source |
|---|---|
| state, CPU | ``/proc/PID/stat``, also of its descendants |
| whether its main thread has run | context switches in ``/proc/PID/status`` |
| bytes of files and pipes | ``/proc/PID/io`` |
| bytes of the network | the counters of its TCP connections (``sockets.py``) |
| system call of its main thread | ``/proc/PID/syscall`` |
| end of its sleep | argument of that call, from ``/proc/PID/mem`` |

House rule: unreadable values are omitted; they are never an error. With fewer values the hang timeouts are longer.
"""

import contextlib
import os
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs

from ftcore.runtime.agent.telemetry import sockets
from ftcore.runtime.agent.telemetry.native import native_stack as native_stack
from ftcore.runtime.agent.workers import processes

BUSY_SHARE: Final = 0.02
"""Share of one CPU above which a process is busy; background threads use less."""

BUSY_BYTES_S: Final = 4096.0
"""I/O in bytes per second above which a process is busy; keep-alives need less."""

LOADER_NAME: Final = b"pt_data_worker"
"""Name that torch gives the worker processes of its data loaders."""

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_CALLS: Final[Mapping[str, Mapping[int, str]]] = {
    "x86_64": {35: "nanosleep", 230: "clock_nanosleep", 202: "futex", 23: "select", 270: "pselect", 271: "ppoll"}
    | dict.fromkeys((0, 7, 45, 47, 43, 288, 61, 247, 232, 281, 441, 42), "outside"),
    "aarch64": {101: "nanosleep", 115: "clock_nanosleep", 98: "futex", 72: "pselect", 73: "ppoll"}
    | dict.fromkeys((63, 207, 212, 202, 242, 260, 95, 22, 441, 203), "outside"),
}
"""System calls that wait, by architecture."""

_ABSOLUTE: Final = 1
_FUTEX_BITSET, _FUTEX_REALTIME, _FUTEX_OP = 9, 256, 127


@attrs.frozen
class Usage:
    """Resources that a process and its descendants had used at a point in time.

    Args:
        at: monotonic seconds.
        state: state of the main thread, a letter as in ``/proc/PID/stat``; ``X``: ended.
        switches: context switches of the main thread.
        cpu_s: CPU time of all processes in seconds.
        moved: I/O of all processes in bytes.
        others: context switches of the main threads of the descendants.
        inodes: inodes of the sockets of all processes.
        loaders: worker processes of data loaders of torch: process id and context switches of the main thread.
    """

    at: float
    state: str = "X"
    switches: int = 0
    cpu_s: float = 0.0
    moved: int = 0
    others: int = 0
    inodes: tuple[int, ...] = ()
    loaders: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class Wait:
    """The wait of a main thread.

    Args:
        kind: as in ``events.worker.RankState``.
        ends_at: monotonic seconds at which the wait times out; None: unknown, or never.
    """

    kind: str = ""
    ends_at: float | None = None


class Kernel(Protocol):
    """Process information of a kernel; this module implements it for this machine."""

    def start_time(self, pid: int) -> str:
        """See ``start_time``."""

    def state(self, pid: int) -> str:
        """See ``state``."""

    def wait_of(self, pid: int) -> Wait:
        """See ``wait_of``."""

    def usages(self, pids: Sequence[int]) -> tuple[list[Usage], list[sockets.Connection]]:
        """See ``usages``."""

    def native_stack(self, pid: int) -> str:
        """See ``native.native_stack``."""


def progressed(before: Usage, after: Usage, wait: Wait) -> bool:
    """Whether a process was active between two samples.

    A process that waits for an external event counts as active if any of its descendants has run, because it may wait
    for that descendant.
    """
    seconds = max(after.at - before.at, 1e-3)
    return (
        after.switches != before.switches
        or (after.cpu_s - before.cpu_s) / seconds >= BUSY_SHARE
        or (after.moved - before.moved) / seconds >= BUSY_BYTES_S
        or (wait.kind in ("outside", "") and after.others != before.others)
    )


def usages(pids: Sequence[int]) -> tuple[list[Usage], list[sockets.Connection]]:
    """The current usage of processes, and the connections of this host."""
    found = sockets.connections()
    sent = sockets.moved(found)
    return [usage(pid, sent) for pid in pids], found


def usage(pid: int, sent: Mapping[int, int]) -> Usage:
    """The current usage of a process and its descendants.

    Args:
        pid: the process.
        sent: bytes sent and received by each connection, by inode.
    """
    at, cpu_s, moved, others = time.monotonic(), 0.0, 0, 0
    children: list[int] = []
    inodes: list[int] = []
    loaders: list[tuple[int, int]] = []
    with contextlib.suppress(OSError):
        children = processes.descendants(pid, ())
    for member in (pid, *children):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat(member)
            cpu_s += (int(fields[11]) + int(fields[12])) * _TICK_S
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{member}/io", "rb") as file:
                words = file.read().split()
            moved += int(words[1]) + int(words[3])
        inodes += _sockets(member) if sent else []
        switches = _switches(member) if member != pid else 0
        others += switches
        if member != pid and _name(member) == LOADER_NAME:
            loaders.append((member, switches))
    moved += sum(sent.get(inode, 0) for inode in inodes)
    return Usage(at, state(pid), _switches(pid), cpu_s, moved, others, tuple(inodes), tuple(loaders))


def _name(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return file.read().strip()
    return b""


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
    """The current wait of the main thread of a process."""
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
            return Wait("sleep")  # relative: its start is unknown
        return Wait("sleep", seconds if args[0] == time.CLOCK_MONOTONIC else now + seconds - time.time())
    if call == "futex":
        if not args[3]:
            return Wait("lock")
        seconds = _timespec(pid, args[3])
        if args[1] & _FUTEX_OP != _FUTEX_BITSET:
            return Wait("lock")
        return Wait("lock", now + seconds - time.time() if args[1] & _FUTEX_REALTIME else seconds)
    if call in ("select", "pselect", "ppoll"):
        no_files = not args[1] if call == "ppoll" else not args[0]
        return Wait("sleep" if no_files else "outside")
    return Wait({"nanosleep": "sleep"}.get(call, call))


def _timespec(pid: int, address: int) -> float:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        seconds, nanoseconds = struct.unpack("qq", file.read(16))
    return float(seconds + nanoseconds / 1e9)


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on. Raises ``OSError``."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode("ascii").split()


def state(pid: int) -> str:
    """The state of a process, a letter; ``X``: ended."""
    try:
        return stat(pid)[0]
    except (OSError, IndexError):
        return "X"


def start_time(pid: int) -> str:
    """Start time of a process in clock ticks, to detect a reused process id; empty if it has ended."""
    try:
        fields = stat(pid)
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
