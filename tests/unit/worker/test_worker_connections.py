"""Connections of process groups: which are shut down, and when."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ftcore.worker import _connections, _groups

PORTION = b"x" * 65536


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection of a group is known yet."""
    monkeypatch.setattr(_connections, "_of_groups", set())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_connections_of_groups_are_ended_and_no_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for data of a peer goes on at once; a listening socket and the script's connections stay."""
    monkeypatch.delenv("MASTER_PORT", raising=False)
    own = socket.create_connection(listener.getsockname())
    own_peer = listener.accept()[0]
    pairs: list[socket.socket] = []

    def connects(*args: Any) -> None:
        pairs.append(socket.create_connection(listener.getsockname()))
        pairs.append(listener.accept()[0])
        pairs.append(socket.create_server(("127.0.0.1", 0)))

    with _groups.made_again():
        _groups._records_sockets(connects)(2, 0, [0, 1], "gloo")
    _connections.drain_and_shut_down()
    assert pairs[0].recv(1) == pairs[1].recv(1) == b""
    own.sendall(b"x")
    assert own_peer.recv(1) == b"x"
    socket.create_connection(pairs[2].getsockname()).close()
    monkeypatch.setenv("MASTER_PORT", str(listener.getsockname()[1]))
    _connections.shut_down()
    assert own_peer.recv(1) == b""  # a rank may wait for a key of the round's store
    for each in (own, own_peer, *pairs):
        each.close()


def test_a_destroyed_group_is_no_cut_connection(listener: socket.socket) -> None:
    """Only a connection that ends by itself says that a rank is gone."""
    with _connections.recorded():
        made = socket.create_connection(listener.getsockname())
    _groups._forgets_sockets(made.close)()
    assert not _connections.is_cut()
    with _connections.recorded():
        peer = socket.create_connection(listener.getsockname())
    peer.close()
    assert _connections.is_cut()


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection of a group, both in this process."""
    with _connections.recorded():
        sender = socket.create_connection(listener.getsockname())
        receiver = listener.accept()[0]
    with sender, receiver:
        yield sender, receiver


def _waits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[float]:
    """Let each wait for moving bytes act instead; the clock advances by what it would take."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        act()

    monkeypatch.setattr(_connections.time, "sleep", sleep)
    monkeypatch.setattr(_connections.time, "monotonic", lambda: now[0])
    return now


def test_a_message_under_way_arrives_whole(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo would wait for the rest of it until its time-out."""
    sender, receiver = pair
    sender.sendall(PORTION)
    portions, found = iter([PORTION] * 5), bytearray()

    def act() -> None:
        found.extend(receiver.recv(len(PORTION), socket.MSG_WAITALL) if len(found) < 6 * len(PORTION) else b"")
        sender.sendall(next(portions, b""))

    _waits(monkeypatch, act)
    _connections.drain_and_shut_down()
    assert bytes(found) == 6 * PORTION
    assert receiver.recv(1) == b""


def test_a_message_that_nobody_reads_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receiver may be stopped."""
    sender, receiver = pair
    sender.sendall(PORTION)
    now = _waits(monkeypatch, lambda: None)
    _connections.drain_and_shut_down()
    assert _connections.QUIET_S_MAX <= now[0] < _connections.QUIET_S_MAX + 2 * _connections.QUIET_S
    with pytest.raises(BrokenPipeError):
        sender.sendall(PORTION)
    assert receiver.recv(len(PORTION), socket.MSG_WAITALL) == PORTION
