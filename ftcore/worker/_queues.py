"""The training process's connection for data queues, to the keeper of its node; see ``runtime/keeper/queues.py``.

House rules: standard library and ``ftcore.shm`` only. Nothing here raises, and only ``receive`` waits, for at most the
given time. If the keeper ends, the next message goes to a new one.
"""

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.shm import messages

RETRY_S: Final = 1.0
"""Pause in seconds before another connection is tried."""


class QueueChannel:
    """A connection to the keeper.

    Args:
        path: the keeper's socket.
        place: returns the round, the rank and the number of ranks of this process.
        must_leave: returns whether this process has been ordered to leave its round.
    """

    def __init__(
        self, path: str, place: Callable[[], tuple[int, int, int]], must_leave: Callable[[], bool] = lambda: False
    ) -> None:
        self._path, self.place, self.must_leave = path, place, must_leave
        self._socket: socket.socket | None = None
        self._pid = 0
        self._retry_at = 0.0

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message without waiting; false if it is lost: there is no keeper now."""
        channel = self._connected()
        if channel is None:
            return False
        try:
            messages.send(channel, message)
        except OSError:  # it has ended, or has not read for so long that the socket is full
            self._lose()
            return False
        return True

    def receive(self, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the messages that have arrived.

        Args:
            wait_s: longest wait in seconds for the first one.
        """
        found: list[dict[str, Any]] = []
        until = time.monotonic() + wait_s
        channel = self._connected()
        while channel is not None:
            left_s = 0.0 if found else max(0.0, until - time.monotonic())
            poll = select.poll()
            poll.register(channel, select.POLLIN)
            if not poll.poll(left_s * 1000):
                return found
            try:
                message, fds = messages.receive(channel)
            except (OSError, ValueError):
                message, fds = None, []
            messages.close_all(fds)
            if message is None:
                self._lose()
                break
            found.append(message)
        if not found:
            time.sleep(max(0.0, until - time.monotonic()))
        return found

    def close(self) -> None:
        """End the connection: the leases of this process expire."""
        self._lose()

    def _connected(self) -> socket.socket | None:
        if self._pid != os.getpid():  # a forked process has a connection of its own
            self._pid, self._socket, self._retry_at = os.getpid(), None, 0.0
        if self._socket is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_S
            channel = messages.new_socket()
            try:
                channel.settimeout(0)
                channel.connect(self._path)
                round_, rank, _ = self.place()
                about = {"rank": rank, "local_rank": 0, "round": round_, "pid": os.getpid()}
                messages.send(channel, {"hello": "queues", **about})
            except OSError:
                channel.close()
                return None
            self._socket = channel
        return self._socket

    def _lose(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
