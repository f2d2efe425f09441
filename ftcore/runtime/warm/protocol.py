"""Protocol between the agent and the warm process, parked workers and the store host: JSON messages with descriptors.

Each channel is a ``SOCK_SEQPACKET`` pair: messages are atomic, and the death of the peer reads as end of file. Large
data (environments, arguments) is sent in a memfd, so a message never exceeds a socket buffer.

| channel | agent sends | peer sends |
|---|---|---|
| warm | ``{"fork": n}`` + n ends; ``{"store": 1}`` + 1 | once ``{"ready": 1, "unsafe": why}`` or ``{"missing": why}`` |
| parked worker | ``{"start": 1}`` + body, 4 files | ``{"parked": pid}``, then ``{"how": ...}`` |
| store host | ``{"open": round, "host": name}`` | ``{"serving": pid}``, then ``{"port": n}`` or ``{"error": text}`` |

A parked worker receives its body, standard output, standard error, its page and its file for stacks. It answers
``how`` it starts, and the descriptor number of the file for stacks (-1: not open).

``WorkerBody`` is the content of the memfd: one worker's part of a launch.
"""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, TypedDict

CHANNEL_FD = 3
"""The warm process's end of its channel."""

DEFAULT_PRELOAD = ("torch", "numpy", "torch.distributed", "torch.optim", "torch.nn.parallel", "torch._dynamo")
"""Modules that training scripts import, and that torch's optimizers and DDP import on first use (``torch._dynamo``
takes over a second). Modules that are not installed are skipped."""

MESSAGE_BYTES_MAX = 65536
FDS_MAX = 64
"""Limit of descriptors in one message; the kernel's limit is 253."""


class WorkerBody(TypedDict):
    """One worker's part of a launch; see ``ports.Launch``."""

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
    """A new channel: the agent's end (non-blocking) and the peer's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message. Raises ``OSError`` if the peer has ended or does not read."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(fds), socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors, which the caller must close; None: the peer has ended.

    Raises ``BlockingIOError`` if the channel is non-blocking and has no message.
    """
    try:
        data, fds = _take(channel)
    except ConnectionResetError:
        data, fds = _take(channel)  # the peer ended with unread messages: the error comes before its last messages
    except ConnectionError:
        return None, []
    return (json.loads(data) if data else None), fds


def _take(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    return data, fds


def body_fd(body: WorkerBody) -> int:
    """Write a body to a new memfd, which the caller must close."""
    fd = os.memfd_create("ftcore-launch", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(json.dumps(body).encode())
    return fd


def read_body(fd: int) -> WorkerBody:
    """The body in a memfd."""
    size = os.fstat(fd).st_size
    body: WorkerBody = json.loads(os.pread(fd, size, 0))
    return body
