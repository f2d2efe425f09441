"""Messages between processes of one machine: JSON with file descriptors, over ``SOCK_SEQPACKET`` Unix sockets.

A message is atomic, and the death of the peer reads as end of file. A message that is too large for a packet travels in
a memfd, as one more descriptor of its packet.

House rules: standard library only, because the training process imports this module.
"""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

PACKET_BYTES_MAX: Final = 65536
"""Largest packet; the kernel's limit is the socket's send buffer, about 200 KiB."""

FDS_MAX: Final = 64
"""Limit of descriptors in one message; the kernel's limit is 253."""

_IN_MEMFD: Final = b"@"
"""Packet of a message that is the content of its last descriptor; JSON of an object begins with a brace."""


def new_socket() -> socket.socket:
    """Return an unconnected socket of the kind that carries messages."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message, with copies of descriptors.

    Args:
        channel: the socket.
        message: what ``json`` can encode.
        fds: the descriptors, at most ``FDS_MAX - 1``.

    Raises:
        BlockingIOError: the channel is non-blocking and full.
        OSError: the peer has ended.
    """
    data = json.dumps(message).encode()
    if len(data) <= PACKET_BYTES_MAX:
        socket.send_fds(channel, [data], list(fds), socket.MSG_NOSIGNAL)
        return
    large = os.memfd_create("ftcore-message", os.MFD_CLOEXEC)
    try:
        with open(os.dup(large), "wb") as file:
            file.write(data)
        socket.send_fds(channel, [_IN_MEMFD], [*fds, large], socket.MSG_NOSIGNAL)
    finally:
        os.close(large)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors, which the caller closes.

    Returns:
        The message, or None if the peer has ended.

    Raises:
        BlockingIOError: the channel is non-blocking and has no message.
        TimeoutError: the channel has a timeout, and no message arrived in time.
        ValueError: the peer sent something else.
    """
    try:
        data, fds = _take(channel)
    except ConnectionResetError:  # the peer ended with unread messages: the error comes before its last messages
        try:
            data, fds = _take(channel)
        except ConnectionError:
            return None, []
    except ConnectionError:
        return None, []
    try:
        if data == _IN_MEMFD and fds:
            data = _content(fds.pop())
        message = json.loads(data) if data else None
        if message is not None and not isinstance(message, dict):
            raise ValueError("a message is a JSON object")
    except ValueError:
        close_all(fds)
        raise
    return message, fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)


def _content(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return os.pread(fd, os.fstat(file.fileno()).st_size, 0)


def _take(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, fds, _, _ = socket.recv_fds(channel, PACKET_BYTES_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    return data, fds
