"""The connections of gloo's groups: they are recorded while a group is made, and shut down when a round is left.

Nothing in torch frees a rank that waits in a collective of gloo. Once its connections are shut down, the collective
fails at once, also if the peer is stopped.

One collective does not fail then: one that has sent or received a part of a message. Gloo forgets it, and it waits for
its time-out (``Pair::signalException`` in gloo's ``transport/tcp/pair.cc`` informs the operations that have not begun).
Collectives come to a stand when a rank is missing, and then all messages are whole. So this waits until no byte moves
before it shuts connections down. A message that a dead rank has sent in part stays one: its receiver is killed after
the grace period of its round.
"""

import contextlib
import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Iterator
from typing import Final

QUIET_S: Final = 0.01
"""Bytes that do not move for so many seconds do not move at all."""

QUIET_S_MAX: Final = 0.25
"""Longest wait in seconds for that: bytes may also go to a process that reads none."""

_TCP_INFO_BYTES: Final = 136
_MOVED: Final = struct.Struct("=120xQQ")
"""``tcpi_bytes_acked`` and ``tcpi_bytes_received`` of Linux's ``struct tcp_info``."""

_of_groups: set[str] = set()
"""Names of the sockets, which have their inodes."""


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record the connections that are made in this context."""
    before = _open()
    try:
        yield
    finally:
        _of_groups.update(_open().keys() - before.keys())


def forget_closed() -> None:
    """Forget connections that have been closed on purpose."""
    _of_groups.intersection_update(_open())


def forget() -> None:
    """Forget all connections: their groups have been left."""
    _of_groups.clear()


def is_cut() -> bool:
    """Whether a connection of a group has ended."""
    return bool(_of_groups) and not _of_groups <= _open().keys()


def drain_and_shut_down() -> None:
    """Wait until no byte moves on the connections of groups, then end all communication; safe in any thread."""
    _drain()
    shut_down()


def shut_down() -> None:
    """End all communication of this process; safe in any thread, also while others are inside of collectives."""
    for name, each in _sockets():
        with contextlib.suppress(OSError):
            if name in _of_groups or _is_of_store(each):
                each.getpeername()  # a listening socket has no peer: gloo aborts if it cannot accept any more
                each.shutdown(socket.SHUT_RDWR)


def _drain() -> None:
    deadline = time.monotonic() + QUIET_S_MAX
    before = _moved()
    while before[0] and time.monotonic() < deadline:
        time.sleep(QUIET_S)
        now = _moved()
        if now == before and now[1]:
            return
        before = now


def _moved() -> tuple[dict[str, tuple[int, ...]], bool]:
    """Count the bytes of each connection; and whether no byte is on its way to a process."""
    found: dict[str, tuple[int, ...]] = {}
    is_empty = True
    for name, each in _sockets():
        with contextlib.suppress(OSError):
            if name in _of_groups:
                each.getpeername()
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                found[name] = _MOVED.unpack(info)
                waiting = (fcntl.ioctl(each, code, bytes(4)) for code in (termios.FIONREAD, termios.TIOCOUTQ))
                is_empty = is_empty and not any(map(any, waiting))
    return found, is_empty


def _sockets() -> Iterator[tuple[str, socket.socket]]:
    """The open sockets by name, each for the time of one iteration."""
    for name, descriptor in _open().items():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as each:
            if name == f"socket:[{os.fstat(each.fileno()).st_ino}]":  # the number may be another one's by now
                yield name, each


def _open() -> dict[str, int]:
    """The sockets of this process: descriptors by name."""
    found: dict[str, int] = {}
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115  (a Path for each would take ten times as long)
                if target.startswith("socket:"):
                    found[target] = int(entry.name)
    return found


def _is_of_store(each: socket.socket) -> bool:
    """Whether a socket is connected to the store of this round, for whose keys a rank may wait."""
    if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
        return False
    return str(each.getpeername()[1]) == os.environ.get("MASTER_PORT", "")
