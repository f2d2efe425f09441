"""Detection of connections without an answer: made-up samples over time, and a real peer that does not read."""

import contextlib
import math
import os
import socket
from typing import Any

from ftcore.faults.cuts import Net, Unanswered
from ftcore.runtime.agent.telemetry import sockets
from ftcore.runtime.agent.telemetry.sockets import Connection
from ftcore.runtime.agent.telemetry.unanswered import UnansweredWatch

RANKS = {1: 4, 2: 5, 3: 5}


def connection(inode: int, **more: Any) -> Connection:
    given: dict[str, Any] = {
        "local": ("10.0.0.1", 4000),
        "remote": ("10.0.0.2", 5000),
        "opening": False,
        "unacked": 1,
        "retries": 3,
        "lost_s": 1.4,
        "queued": 100,
        "heard_s": 60.0,
        "received": 0,
        "acked": 7,
    }
    return Connection(inode=inode, **(given | more))


def test_time_is_counted_on_between_the_kernel_s_steps() -> None:
    """From the first sample of the segment, or from its first transmission if that is earlier."""
    watch = UnansweredWatch()
    for now, lost_s, silent_s in ((100.0, 1.4, 1.4), (104.0, 3.0, 5.4), (108.0, 6.2, 9.4), (109.0, 12.6, 12.6)):
        (told,) = watch.net([connection(1, lost_s=lost_s)], RANKS, now).unanswered
        assert told.silent_s == silent_s
    (told,) = watch.net([connection(1, lost_s=1.4, acked=8)], RANKS, 110.0).unanswered
    assert told.silent_s == 1.4, "something was acknowledged: another segment"


def test_a_peer_that_sends_is_alive() -> None:
    """A peer that sends anything is alive despite retransmissions; a few retransmissions are normal."""
    watch = UnansweredWatch()
    (told,) = watch.net([connection(1, lost_s=20.0, heard_s=0.5)], RANKS, 100.0).unanswered
    assert told.silent_s == 0.5
    assert watch.net([connection(1, retries=2, lost_s=20.0)], RANKS, 100.0).unanswered == ()


def test_connections_of_workers_are_put_together_by_address() -> None:
    """Without other processes; local addresses are reported, except loopback."""
    net = UnansweredWatch().net(
        [
            connection(1, lost_s=6.2),
            connection(2, retries=5),
            connection(3, remote=("10.0.0.3", 5000), local=("fd00::1", 4000), retries=0, lost_s=0.0),
            connection(9, remote=("10.0.0.4", 5000)),
            connection(3, local=("127.0.0.1", 4000)),
        ],
        RANKS,
        100.0,
    )
    assert net == Net(
        addresses=("10.0.0.1", "fd00::1"),
        unanswered=(Unanswered(address="10.0.0.2", connections=2, silent_s=6.2, retries=5, ranks=(4, 5)),),
    )


def test_a_peer_that_reads_nothing_answers() -> None:
    """A closed window causes no retransmission."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            (mine,) = (one for one in sockets.connections() if one.inode == os.fstat(ours.fileno()).st_ino)
            assert mine.queued > 0 and (mine.retries, mine.lost_s) == (0, 0.0)


def test_a_connection_that_is_being_opened_is_seen() -> None:
    """Its peer has sent nothing yet."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # with one in its queue the kernel drops what comes next
        first.connect(full.getsockname())
        second.setblocking(False)
        second.connect_ex(full.getsockname())
        found = {one.inode: one for one in sockets.connections()}
        assert not found[os.fstat(first.fileno()).st_ino].opening
        mine = found[os.fstat(second.fileno()).st_ino]
        assert mine.opening and mine.heard_s == math.inf
