"""Notification of followers on the same machine by datagrams of one byte.

Each follower binds a unix datagram socket in a directory beside the log, ``<file>.wake/``. After an append, the writer
sends a byte to each socket. A byte only means "read again", so lost and superfluous bytes are harmless.

Nothing here blocks or fails an append: followers also poll. Sockets are addressed by
``/proc/self/fd/<directory>/<name>``, because a socket path is limited to 107 bytes. The socket of a dead follower is
removed at the next append or close.
"""

import contextlib
import os
import secrets
import socket
from pathlib import Path


class Wake:
    """Sends and receives notifications for one process.

    Args:
        directory: directory of the sockets; exists only while there are listeners.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._receiver: socket.socket | None = None
        self._name = ""

    def listen(self) -> socket.socket | None:
        """Start to receive; returns the socket to watch, or None if no socket can be bound (then poll)."""
        if self._receiver is None:
            self._receiver = self._bind()
        return self._receiver

    def still_listed(self) -> bool:
        """Whether the socket's name exists: a sender may have removed it as dead just before it was bound."""
        return (self._directory / self._name).exists()

    def drain(self) -> None:
        """Discard the received bytes."""
        assert self._receiver is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                self._receiver.recv(16)

    def notify(self) -> None:
        """Notify all listeners, and remove the sockets of dead ones."""
        with contextlib.suppress(OSError):
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._notify_all(directory)
            finally:
                os.close(directory)

    def close(self) -> None:
        """Stop receiving and remove the socket."""
        if self._receiver is None:
            return
        self._receiver.close()
        self._receiver = None
        with contextlib.suppress(OSError):
            (self._directory / self._name).unlink()
        self.notify()
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _bind(self) -> socket.socket | None:
        self._name = f"{os.getpid()}.{secrets.token_hex(4)}"
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        for _ in range(5):  # the last listener removes the directory, possibly at the same time
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

    def _notify_all(self, directory: int) -> None:
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
