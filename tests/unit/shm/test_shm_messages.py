"""Messages with descriptors between processes of one machine."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.shm import messages

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_messages_keep_their_borders_and_descriptors(pair: Pair) -> None:
    """Two messages are two messages, each with its own descriptors."""
    read, write = os.pipe()
    messages.send(pair[0], {"a": 1}, [read, write])
    messages.send(pair[0], {"b": "ü"})
    message, fds = messages.receive(pair[1])
    assert message == {"a": 1} and len(fds) == 2
    os.write(fds[1], b"x")
    assert os.read(read, 1) == b"x"
    messages.close_all([*fds, read, write])
    assert messages.receive(pair[1]) == ({"b": "ü"}, [])


@pytest.mark.parametrize("length", [messages.PACKET_BYTES_MAX, 5_000_000])
def test_a_large_message_leaves_no_descriptor(pair: Pair, length: int) -> None:
    """It is longer than a packet, and arrives with the descriptors of its sender alone."""
    before = opened()
    read, write = os.pipe()
    messages.send(pair[0], {"text": "x" * length}, [read])
    os.close(read)
    message, fds = messages.receive(pair[1])
    assert message == {"text": "x" * length} and len(fds) == 1
    messages.close_all([*fds, write])
    assert opened() == before


def test_the_death_of_the_peer_comes_after_its_messages(pair: Pair) -> None:
    """Also if it died with unread messages of ours."""
    messages.send(pair[0], {"unread": 1})
    messages.send(pair[1], {"last": 1})
    pair[1].close()
    assert messages.receive(pair[0]) == ({"last": 1}, [])
    assert messages.receive(pair[0]) == (None, [])


@pytest.mark.parametrize("packet", [b"no json", b"[1]", b"1", b"\xff"])
def test_what_is_no_message_is_refused_without_a_leak(pair: Pair, packet: bytes) -> None:
    """Its descriptors are closed."""
    before = opened()
    socket.send_fds(pair[0], [packet], [0])
    with pytest.raises(ValueError):
        messages.receive(pair[1])
    assert opened() == before
