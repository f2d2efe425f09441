"""How agents, operators and standbys connect to masters."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias


class Stream(Protocol):
    """An ordered, bidirectional stream of whole frames. At each end one task reads and one task writes.

    Raised by ``read`` and ``write``: ``StreamBroken``.
    """

    @property
    def peer(self) -> str:
        """At the serving end: the client's host; ``unix`` for a unix socket."""

    async def read(self) -> bytes | None:
        """The next frame; None: the peer has closed the stream."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns once the transport has taken it."""


Handle: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Serves one stream: the stream is closed when the handler returns, the handler is cancelled when the stream breaks."""


class Listener(Protocol):
    """A server for streams."""

    async def start(self) -> str:
        """Start to serve; returns the advertised address.

        Raises:
            Unreachable: the address cannot be bound.
            UsageError: the server certificate is missing.
        """

    @property
    def reachable(self) -> bool:
        """Whether clients can find the address; the file of a unix socket may have been removed."""

    async def restore(self) -> None:
        """Make the address reachable again if possible; open streams are unaffected."""

    async def stop(self) -> None:
        """Close all streams, after a short grace period to flush them."""


class Transport(Protocol):
    """How agents, operators and standbys connect to masters."""

    def connect(self, target: str) -> AbstractAsyncContextManager[Stream]:
        """A stream to a server, closed at the end of the context.

        Args:
            target: the address that ``Listener.start`` returned.

        Raises:
            StreamBroken: on the first read or write, if no server listens at the address.
        """

    def listener(self, target: str, *, advertise: str, handle: Handle) -> Listener:
        """A listener, not started.

        Args:
            target: ``unix:/path``, or ``host:port``; port 0: any free port.
            advertise: host name or address for clients; empty: that of the target.
            handle: serves each stream.
        """
