"""TCP connections of this host and their counters, from the kernel (``sock_diag``, as shown by ``ss -ti``).

One netlink dump has all connections of the network namespace; the inodes identify their processes.
"""

import contextlib
import math
import socket
import struct
from collections.abc import Iterable
from typing import Final

import attrs

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_ROOT_MATCH_REQUEST: Final = 0x301
_DONE, _ERROR = 3, 2
_INET_DIAG_INFO: Final = 2
_SYN_SENT: Final = 2
_STATES: Final = sum(1 << state for state in (1, _SYN_SENT, 4, 5, 8))
"""Established, connecting, and closing with unacknowledged data."""

_MESSAGE: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48s")
_TIMEOUT_S: Final = 1.0


@attrs.frozen
class Connection:
    """One connection.

    Args:
        inode: inode of the socket.
        local, remote: address and port of each end.
        opening: not established: the peer has not answered yet.
        unacked: unacknowledged segments.
        retries: retransmissions of the oldest unacknowledged segment.
        lost_s: lower bound of the seconds since that segment was first sent: the sum of the expired timeouts, by the
            kernel's exponential back-off; 0 without retransmissions.
        queued: bytes that are not sent or not acknowledged.
        heard_s: seconds since the last data or acknowledgement from the peer; infinite: never.
        received, acked: bytes received, and sent bytes that were acknowledged, since the start of the connection.
    """

    inode: int
    local: tuple[str, int]
    remote: tuple[str, int]
    opening: bool
    unacked: int
    retries: int
    lost_s: float
    queued: int
    heard_s: float
    received: int
    acked: int


def connections() -> list[Connection]:
    """All connections of this network namespace; empty if the kernel does not support the query."""
    found: list[Connection] = []
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with contextlib.suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_TIMEOUT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            found += _dump(link, family)
    return found


def _dump(link: socket.socket, family: int) -> list[Connection]:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _STATES, b"")
    link.send(_MESSAGE.pack(_MESSAGE.size + len(body), _SOCK_DIAG_BY_FAMILY, _ROOT_MATCH_REQUEST, 0, 0) + body)
    found: list[Connection] = []
    while True:
        data = link.recv(1 << 16)
        at = 0
        while at + _MESSAGE.size <= len(data):
            length, kind, *_ = _MESSAGE.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _MESSAGE.size:
                return found
            found.append(_connection(data[at + _MESSAGE.size : at + length]))
            at += (length + 3) & ~3


def _connection(body: bytes) -> Connection:
    """Layout: ``struct inet_diag_msg``, then attributes; ``struct tcp_info`` in one of them (linux/tcp.h)."""
    family = body[0]
    ports = struct.unpack_from("!HH", body, 4)
    ends = [_address(family, body[at : at + 16]) for at in (8, 24)]
    _, _, wqueue, _, inode = struct.unpack_from("=IIIII", body, 52)
    info, at = b"", 72
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        if kind == _INET_DIAG_INFO:
            info = body[at + 4 : at + length]
        at += (length + 3) & ~3
    info = info.ljust(136, b"\0")
    rto, unacked = (struct.unpack_from("=I", info, at)[0] for at in (8, 24))
    retries, backoff = info[2], info[4]
    heard = struct.unpack_from("=II", info, 52)  # last data received, last acknowledgement received: milliseconds ago
    acked, received = struct.unpack_from("=QQ", info, 120)
    return Connection(
        inode=inode,
        local=(ends[0], ports[0]),
        remote=(ends[1], ports[1]),
        opening=body[1] == _SYN_SENT,
        unacked=unacked,
        retries=retries,
        lost_s=rto * (1 - 0.5**backoff) / 1e6 if retries else 0.0,
        queued=wqueue,
        heard_s=math.inf if body[1] == _SYN_SENT else min(heard) / 1e3,
        received=received,
        acked=acked,
    )


def _address(family: int, packed: bytes) -> str:
    text = socket.inet_ntop(family, packed[:4] if family == socket.AF_INET else packed)
    return text.removeprefix("::ffff:")


def moved(found: Iterable[Connection]) -> dict[int, int]:
    """Bytes sent and received by each connection since its start, by inode."""
    return {each.inode: each.received + each.acked for each in found if each.inode}
