"""Waking followers on the same machine: one byte in a datagram.

Each follower binds a unix datagram socket in a directory beside the log, ``<file>.wake/``; whoever appends sends a byte
to each socket there. A byte says only "look again", so it does not matter if one is dropped because the follower's
queue is full, or if one comes for nothing.

House rules: nothing here blocks, and nothing here may fail an append: a follower that was not woken polls. Names go
through ``/proc/self/fd/<directory>/<name>``, because a socket's path is limited to 107 bytes and a log's is not. A
follower that died leaves its name behind; the next append (or close) finds nobody listening and removes it.
"""

import contextlib
import os
import secrets
import socket
from pathlib import Path


class Wake:
    """One process's share in waking and being woken.

    Args:
        directory: where the sockets are; it exists only while somebody listens.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._receiver: socket.socket | None = None
        self._name = ""

    def listen(self) -> socket.socket | None:
        """Be woken from now on; the socket to watch, or None if this place does not take one (then poll)."""
        if self._receiver is None:
            self._receiver = self._bind()
        return self._receiver

    def still_listed(self) -> bool:
        """Whether a sender can find the socket: a sender may have taken it for dead in the instant it was bound."""
        return (self._directory / self._name).exists()

    def drain(self) -> None:
        """Take the bytes that came."""
        assert self._receiver is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                self._receiver.recv(16)

    def ring(self) -> None:
        """Wake everybody who listens, and remove who died."""
        with contextlib.suppress(OSError):
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._ring(directory)
            finally:
                os.close(directory)

    def close(self) -> None:
        """Listen no more, and leave nothing behind."""
        if self._receiver is None:
            return
        self._receiver.close()
        self._receiver = None
        with contextlib.suppress(OSError):
            (self._directory / self._name).unlink()
        self.ring()
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _bind(self) -> socket.socket | None:
        self._name = f"{os.getpid()}.{secrets.token_hex(4)}"
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        for _ in range(5):  # whoever leaves last removes the directory, maybe just as we come
            try:
                self._directory.mkdir(mode=0o700, exist_ok=True)
                directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError:
                break
            try:
                receiver.bind(f"/proc/self/fd/{directory}/{self._name}")
                return receiver
            except FileNotFoundError:
                continue
            except OSError:
                break
            finally:
                os.close(directory)
        receiver.close()
        return None

    def _ring(self, directory: int) -> None:
        names = os.listdir(directory)
        if not names:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
            for name in names:
                try:
                    sender.sendto(b"\n", f"/proc/self/fd/{directory}/{name}")
                except ConnectionRefusedError:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=directory)
                except OSError:
                    continue
