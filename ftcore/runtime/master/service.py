"""The master's service: streams of agents, commands of operators. It knows frames, not decisions."""

import asyncio
from typing import Protocol

import structlog

from ftcore.errors import LogCorrupt, StreamBroken
from ftcore.events.codec import decode_fact
from ftcore.events.envelope import Fact
from ftcore.ports import EventLog, Stream, Transport
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.opening import Admitted, Opening, Turned, Word

PREDECESSOR_S = 1.5
"""How long a newcomer waits for the end of an older agent of its name; a dead one's stream ends, or falls silent."""

HELLO_S = 10.0
"""A stream that has not said what is expected of it by then is closed."""

OPENINGS_MAX = 1 << 14
"""So many streams may be in their opening at once; who comes beyond is sent away without a word, and tries again."""

logger = structlog.get_logger()


class _Master(Protocol):
    """What a service asks of its master; see ``Master``."""

    log: EventLog

    def turned_away(self, turned: Turned, peer: str) -> None: ...
    async def greet(
        self, hello: frames.Hello, peer: str = ""
    ) -> frames.NotMaster | frames.Refused | frames.Parked | None: ...
    def occupied(self, hello: frames.Hello) -> bool: ...
    def attach(self, session: Session) -> None: ...
    def detach(self, session: Session) -> None: ...
    def heard(self, session: Session) -> None: ...
    def beat(self, session: Session, beat: frames.Beat) -> None: ...
    def take_fact(self, session: Session, fact: Fact) -> None: ...
    def stands_by(self, standby: frames.Standby) -> frames.Candidates: ...
    def seen(self, inquiry: frames.Inquiry) -> frames.NodesSeen: ...
    async def command(self, request: frames.Command) -> frames.CommandReply: ...


class Service:
    """Serves one master.

    Args:
        master: whom it serves.
        transport: how it is reached.
        listen: where, as for ``Transport.listener``.
        advertise: host name or address that others use, for TCP targets.
        token: the job's token; empty: none is asked for.

    Attributes:
        listener: where it serves.
    """

    def __init__(self, master: _Master, transport: Transport, *, listen: str, advertise: str, token: str) -> None:
        self._master = master
        self._token = token
        self._opening = 0
        self.listener = transport.listener(listen, advertise=advertise, handle=self._serve)

    async def _serve(self, stream: Stream) -> None:
        opening = Opening(self._token, self._master.log.job)
        found: Turned | Admitted | frames.Challenge | None = None
        while not isinstance(found, Admitted):
            found = await self._next(stream, opening)
            if found is None:
                return
            if isinstance(found, Turned):
                self._master.turned_away(found, stream.peer)
                await stream.write(frames.encode(frames.Refused(found.reason, rejoin=False)))
                return
            if isinstance(found, frames.Challenge):
                await stream.write(frames.encode(found))
        if isinstance(found.frame, frames.Hello):
            await self._serve_agent(stream, found.frame)
        else:
            await stream.write(frames.encode(await self._reply(found.frame)))

    async def _reply(self, word: Word) -> frames.FromMaster:
        """The answer to an operator or a standby."""
        if isinstance(word, frames.Command):
            return await self._master.command(word)
        if isinstance(word, frames.Standby):
            return self._master.stands_by(word)
        return self._master.seen(word)

    async def _serve_agent(self, stream: Stream, hello: frames.Hello) -> None:
        if not hello.acked:
            await self._wait_for_predecessor(hello)
        answer = await self._master.greet(hello, stream.peer)
        if answer is not None:
            logger.info("agent not taken on", node=hello.node, answer=type(answer).__name__)
            await stream.write(frames.encode(answer))
            return
        session = Session(hello.node, hello.incarnation)
        self._master.attach(session)
        reader = asyncio.create_task(self._read(session, stream))
        try:
            while (frame := await session.outgoing.get()) is not None:
                await stream.write(frame)
        finally:
            reader.cancel()
            self._master.detach(session)

    async def _wait_for_predecessor(self, hello: frames.Hello) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PREDECESSOR_S
        while self._master.occupied(hello) and loop.time() < deadline:  # noqa: ASYNC110  (others change it, often)
            await asyncio.sleep(0.05)

    async def _next(self, stream: Stream, opening: Opening) -> frames.Challenge | Admitted | Turned | None:
        """What follows from the next frame of a stream that is being opened; None: it is to be closed."""
        if self._opening >= OPENINGS_MAX:
            return None
        self._opening += 1
        try:
            async with asyncio.timeout(HELLO_S):
                body = await stream.read()
        except TimeoutError:
            return None
        finally:
            self._opening -= 1
        return opening.take(body) if body is not None else None

    async def _read(self, session: Session, stream: Stream) -> None:
        try:
            while (body := await stream.read()) is not None:
                frame = frames.decode_from_agent(body)
                self._master.heard(session)
                if isinstance(frame, frames.Facts):
                    for raw in frame.facts:
                        self._master.take_fact(session, decode_fact(bytes(raw)))
                elif isinstance(frame, frames.Beat):
                    self._master.beat(session, frame)
        except (*frames.UNREADABLE, LogCorrupt) as error:
            logger.warning("a frame cannot be read; closing the stream", node=session.node, error=str(error))
        except StreamBroken as error:
            logger.debug("a stream broke", node=session.node, error=str(error))
        finally:
            session.end()
