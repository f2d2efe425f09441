"""The master's gRPC service: streams of agents, commands of operators. It knows frames, not decisions."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc.aio
import structlog

from ftcore.errors import LogCorrupt, Unreachable
from ftcore.events.codec import decode_fact
from ftcore.private import Place
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.channel import listen, server
from ftcore.runtime.wire.opening import NAME_CHARS_MAX, Admitted, Opening, Turned
from ftcore.runtime.wire.security import Security

if TYPE_CHECKING:
    from ftcore.runtime.master.master import Master

PREDECESSOR_S = 1.5
"""How long a newcomer waits for the end of an older agent of its name; a dead one's stream ends, or falls silent."""

HELLO_S = 10.0
"""A stream that has not said what is expected of it by then is closed."""

OPENINGS_MAX = 1 << 14
"""So many streams may be in their opening at once; who comes beyond is sent away without a word, and tries again."""

logger = structlog.get_logger()


class Service:
    """Serves one master.

    Args:
        master: whom it serves.
        listen: gRPC target: ``unix:/path`` or ``host:port``, port 0 for a free one.
        advertise: host name or address that others use, for TCP targets.
        security: what is shown to callers, and asked of them.
    """

    def __init__(self, master: "Master", *, listen: str, advertise: str, security: Security) -> None:
        self._master = master
        self._listen = listen
        self._advertise = advertise
        self._security = security
        self._opening = 0
        self._place = Place(listen.removeprefix("unix:")) if listen.startswith("unix:") else None
        self._servers: list[grpc.aio.Server] = []
        self._said = ""

    async def start(self) -> str:
        """Serve; returns the address for others.

        Raises:
            Unreachable: the address cannot be listened on.
            UsageError: it is to be TLS, and there is no certificate to show.
        """
        try:
            port = await self._serve()
        except RuntimeError as error:
            raise Unreachable(f"cannot listen on {self._listen}: {error}; choose another address or port") from error
        if self._place is not None:
            return self._listen
        host = self._advertise or self._listen.rpartition(":")[0]
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    async def _serve(self) -> int:
        made = server(self._connect)
        port = listen(made, self._listen, self._security)
        self._servers.append(made)
        await made.start()
        if self._place is not None:
            self._place.path.chmod(0o600)
            self._place.bound()
        return port

    @property
    def reachable(self) -> bool:
        """Whether callers find the address; a socket may have been removed."""
        return self._place is None or self._place.is_ours()

    async def restore(self) -> None:
        """Make a socket anew that was removed; streams that stand are not touched. Says so once if it cannot."""
        if self._place is None or self.reachable:
            return
        try:
            self._place.prepare()
            await self._serve()
        except (OSError, RuntimeError) as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("the master's socket was removed and cannot be made anew", error=str(error))
        else:
            logger.warning("the master's socket was removed; it was made anew", path=str(self._place.path))

    async def stop(self) -> None:
        """Close all streams; what is queued for them is written first, for a moment."""
        await asyncio.gather(*(made.stop(grace=0.5) for made in self._servers))
        if self._place is not None:
            self._place.remove()

    async def _connect(self, incoming: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        opening = Opening(self._security.token, self._master.log.job)
        found: Turned | Admitted | frames.Challenge | None = None
        while not isinstance(found, Admitted):
            found = await self._next(incoming, opening)
            if found is None:
                return
            if isinstance(found, Turned):
                self._master.turned_away(found, _host(context.peer()))
                yield frames.encode(frames.Refused(found.reason, rejoin=False))
                return
            if isinstance(found, frames.Challenge):
                yield frames.encode(found)
        if isinstance(found.frame, frames.Command):
            yield frames.encode(await self._master.command(found.frame))
            return
        if isinstance(found.frame, frames.Standby):
            yield frames.encode(self._master.stands_by(found.frame))
            return
        if isinstance(found.frame, frames.Inquiry):
            yield frames.encode(self._master.seen(found.frame))
            return
        hello = found.frame
        if not hello.acked:
            await self._wait_for_predecessor(hello)
        answer = await self._master.greet(hello, _host(context.peer()))
        if answer is not None:
            logger.info("agent not taken on", node=hello.node, answer=type(answer).__name__)
            yield frames.encode(answer)
            return
        session = Session(hello.node, hello.incarnation)
        self._master.attach(session)
        reader = asyncio.create_task(self._read(session, incoming))
        try:
            while (frame := await session.outgoing.get()) is not None:
                yield frame
        finally:
            reader.cancel()
            self._master.detach(session)

    async def _wait_for_predecessor(self, hello: frames.Hello) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PREDECESSOR_S
        while self._master.occupied(hello) and loop.time() < deadline:  # noqa: ASYNC110  (others change it, often)
            await asyncio.sleep(0.05)

    async def _next(
        self, incoming: AsyncIterator[bytes], opening: Opening
    ) -> frames.Challenge | Admitted | Turned | None:
        """What follows from the next frame of a stream that is being opened; None: it is to be closed."""
        if self._opening >= OPENINGS_MAX:
            return None
        self._opening += 1
        try:
            async with asyncio.timeout(HELLO_S):
                return opening.take(await anext(aiter(incoming)))
        except (TimeoutError, StopAsyncIteration):
            return None
        finally:
            self._opening -= 1

    async def _read(self, session: Session, incoming: AsyncIterator[bytes]) -> None:
        try:
            async for body in incoming:
                frame = frames.decode_from_agent(body)
                self._master.heard(session)
                if isinstance(frame, frames.Facts):
                    for raw in frame.facts:
                        self._master.take_fact(session, decode_fact(bytes(raw)))
                elif isinstance(frame, frames.Beat):
                    self._master.beat(session, frame)
        except (*frames.UNREADABLE, LogCorrupt) as error:
            logger.warning("a frame cannot be read; closing the stream", node=session.node, error=str(error))
        finally:
            session.end()


def _host(peer: str) -> str:
    """The host of gRPC's ``ipv4:HOST:PORT``, ``ipv6:%5bHOST%5d:PORT`` or ``unix:...``."""
    scheme, _, rest = unquote(peer).partition(":")
    return scheme if scheme == "unix" else rest.rpartition(":")[0].strip("[]")[:NAME_CHARS_MAX]
