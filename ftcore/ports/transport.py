"""How agents, operators and standbys reach masters."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias


class Stream(Protocol):
    """A conversation between two processes in whole frames, in order. At each end one task reads and one task writes.

    Raised by ``read`` and ``write``: ``StreamBroken``.
    """

    @property
    def peer(self) -> str:
        """The host of who opened the stream, ``unix`` on one machine; of use to who serves."""

    async def read(self) -> bytes | None:
        """The next frame; None: the other end has closed the stream."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns once the transport has taken it."""


Handle: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Serves one stream. The stream is closed when it returns; it is cancelled when the stream breaks."""


class Listener(Protocol):
    """Where one process serves streams."""

    async def start(self) -> str:
        """Serve; returns the address for others.

        Raises:
            Unreachable: the address cannot be listened on.
            UsageError: there is no certificate to show.
        """

    @property
    def reachable(self) -> bool:
        """Whether callers find the address; the file of a socket may have been removed."""

    async def restore(self) -> None:
        """Make the address reachable again, if that is possible; open streams are not touched."""

    async def stop(self) -> None:
        """Close all streams; what was written to them is sent first, for a moment."""


class Transport(Protocol):
    """How agents, operators and standbys reach masters."""

    def connect(self, target: str) -> AbstractAsyncContextManager[Stream]:
        """A stream to who serves an address, closed at the end of the context.

        Args:
            target: the address, as ``Listener.start`` gave it.

        Raises:
            StreamBroken: when it is read or written first: nobody serves there.
        """

    def listener(self, target: str, *, advertise: str, handle: Handle) -> Listener:
        """A listener that is not started yet.

        Args:
            target: ``unix:/path``, or ``host:port`` with port 0 for a free one.
            advertise: host name or address that others use; empty: that of the target.
            handle: serves each stream.
        """
