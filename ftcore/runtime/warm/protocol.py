"""How the agent speaks with the warm process, a parked worker and the store host: JSON datagrams with descriptors.

Each channel is a ``SOCK_SEQPACKET`` pair, so a message is whole or not there, and a peer that died reads as end of
file. What may be large (environments, arguments) travels in a memfd, so a message never exceeds a socket buffer.

| channel | agent says | the other says |
|---|---|---|
| warm | ``{"fork": n}`` + n ends; ``{"store": 1}`` + 1 | once ``{"ready": 1, "unsafe": why}`` or ``{"missing": why}`` |
| parked worker | ``{"start": 1}`` + body, 4 files | ``{"parked": pid}``, then ``{"how": ...}`` |
| store host | ``{"open": round, "host": name}`` | ``{"serving": pid}``, then ``{"port": n}`` or ``{"error": text}`` |

A parked worker is sent its body, standard output, standard error, its page and its file for stacks, and answers
``how`` it starts and at which number the last of these is open in it (-1: nowhere).

``Body`` is what the memfd holds: one worker's share of a launch.
"""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, TypedDict

CHANNEL_FD = 3
"""The warm process's end of its channel."""

DEFAULT_PRELOAD = ("torch", "numpy", "torch.distributed", "torch.optim", "torch.nn.parallel", "torch._dynamo")
"""What a training script imports, and what torch's optimizers and DDP import on first use (``torch._dynamo``: over a
second). One that is not installed is left out."""

MESSAGE_BYTES_MAX = 65536
FDS_MAX = 64
"""Descriptors in one message; the kernel's limit is 253."""


class Body(TypedDict):
    """One worker's share of a launch, as ``ports.Launch`` means it."""

    argv: list[str]
    module: bool
    no_python: bool
    cwd: str
    env: dict[str, str]
    python: str
    exec_reason: str
    hooks: str
    stacks: int


def pair() -> tuple[socket.socket, socket.socket]:
    """A new channel: the agent's end (non-blocking) and the other's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message. Raises ``OSError`` if the peer is gone or does not read."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(fds), socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors, which the caller closes; None: the peer is gone.

    Raises ``BlockingIOError`` if the channel does not block and nothing is there.
    """
    try:
        data, fds = _take(channel)
    except ConnectionResetError:
        data, fds = _take(channel)  # the peer ended without reading all; that is told before its last words
    except ConnectionError:
        return None, []
    return (json.loads(data) if data else None), fds


def _take(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    return data, fds


def body_fd(body: Body) -> int:
    """Put a body into a memfd; the caller closes it."""
    fd = os.memfd_create("ftcore-launch", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(json.dumps(body).encode())
    return fd


def read_body(fd: int) -> Body:
    """The body in a memfd."""
    size = os.fstat(fd).st_size
    body: Body = json.loads(os.pread(fd, size, 0))
    return body
