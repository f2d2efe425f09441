"""One end of a channel of messages (``ftcore.shm.messages``) in an event loop; it never waits to send.

A message that does not fit into the socket is queued, with copies of its descriptors. A peer that does not read for
``QUEUED_MAX`` messages is disconnected.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ftcore.shm import messages

QUEUED_MAX: Final = 10_000


class Peer:
    """A connected socket; closed by ``close``.

    Args:
        channel: the socket; it becomes non-blocking and belongs to this object.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._loop = asyncio.get_running_loop()
        self._queued: deque[tuple[dict[str, Any], list[int]]] = deque()
        self._ready: asyncio.Future[None] | None = None
        self.closed = False

    async def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Wait for one message and its descriptors, which the caller closes; None: the peer has ended or is closed.

        Raises:
            ValueError: the peer sent something else.
        """
        while not self.closed:
            try:
                return messages.receive(self.channel)
            except BlockingIOError:
                await self._readable()
            except OSError:
                break
        return None, []

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, now or when the peer reads; dropped if the peer has ended, which ``receive`` reports."""
        if self.closed:
            return
        if not self._queued:
            try:
                messages.send(self.channel, message, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self.channel, self._write)
            except OSError:
                return
        self._queued.append((message, [os.dup(fd) for fd in fds]))
        if len(self._queued) > QUEUED_MAX:
            self.close()

    def close(self) -> None:
        """Close the socket; ``receive`` returns None."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_writer(self.channel)
        self._loop.remove_reader(self.channel)
        self.channel.close()
        while self._queued:
            messages.close_all(self._queued.popleft()[1])
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _readable(self) -> None:
        self._ready = ready = self._loop.create_future()
        self._loop.add_reader(self.channel, _wake, ready)
        try:
            await ready
        finally:
            if not self.closed:
                self._loop.remove_reader(self.channel)

    def _write(self) -> None:
        while self._queued:
            message, fds = self._queued[0]
            try:
                messages.send(self.channel, message, fds)
            except BlockingIOError:
                return
            except OSError:
                pass  # it has ended
            messages.close_all(fds)
            self._queued.popleft()
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self.channel)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
