"""The master's service: serves agents' streams and operators' requests. It handles frames and makes no decisions."""

import asyncio
from typing import Protocol

import structlog

from ftcore.errors import LogCorrupt, StreamBroken
from ftcore.events.codec import decode_fact
from ftcore.ports import EventLog, Stream, Transport
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.term import Term
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.handshake import Admitted, Handshake, Rejection, Request

PREDECESSOR_S = 1.5
"""How long a new agent waits for an older one of the same node to end; a dead agent's stream ends or becomes silent."""

HELLO_S = 10.0
"""Timeout for each frame of the handshake."""

OPENINGS_MAX = 1 << 14
"""Limit of concurrent handshakes; further streams are closed without an answer, and their callers retry."""

logger = structlog.get_logger()


class _ServingMaster(Protocol):
    """The methods of ``Master`` that the service calls."""

    log: EventLog

    def record_refusal(self, rejection: Rejection, peer: str) -> None: ...
    async def greet(
        self, hello: frames.Hello, peer: str = ""
    ) -> frames.NotMaster | frames.JoinRefused | frames.Parked | None: ...
    def name_in_use(self, hello: frames.Hello) -> bool: ...
    def attach(self, session: Session) -> Term: ...
    def register_standby(self, standby: frames.Standby) -> frames.Candidates: ...
    def list_nodes(self, inquiry: frames.Inquiry) -> frames.NodesSeen: ...
    async def command(self, request: frames.Command) -> frames.CommandReply: ...


class Service:
    """The service of one master.

    Args:
        master: handles the frames.
        transport: provides the listener.
        listen: target to listen on, as for ``Transport.listener``.
        advertise: host name or address that others use, for TCP targets.
        token: the job's token; empty: none is required.

    Attributes:
        listener: the listener.
    """

    def __init__(
        self, master: _ServingMaster, transport: Transport, *, listen: str, advertise: str, token: str
    ) -> None:
        self._master = master
        self._token = token
        self._opening = 0
        self.listener = transport.listener(listen, advertise=advertise, handle=self._serve)

    async def _serve(self, stream: Stream) -> None:
        handshake = Handshake(self._token, self._master.log.job)
        found: Rejection | Admitted | frames.Challenge | None = None
        while not isinstance(found, Admitted):
            found = await self._next(stream, handshake)
            if found is None:
                return
            if isinstance(found, Rejection):
                self._master.record_refusal(found, stream.peer)
                await stream.write(frames.encode(frames.JoinRefused(found.reason, rejoin=False)))
                return
            if isinstance(found, frames.Challenge):
                await stream.write(frames.encode(found))
        if isinstance(found.frame, frames.Hello):
            await self._serve_agent(stream, found.frame)
        else:
            await stream.write(frames.encode(await self._reply(found.frame)))

    async def _reply(self, request: Request) -> frames.FromMaster:
        """The answer to an operator's or a standby's request."""
        if isinstance(request, frames.Command):
            return await self._master.command(request)
        if isinstance(request, frames.Standby):
            return self._master.register_standby(request)
        return self._master.list_nodes(request)

    async def _serve_agent(self, stream: Stream, hello: frames.Hello) -> None:
        if not hello.acked:
            await self._wait_for_predecessor(hello)
        answer = await self._master.greet(hello, stream.peer)
        if answer is not None:
            logger.info("agent refused", node=hello.node, answer=type(answer).__name__)
            await stream.write(frames.encode(answer))
            return
        session = Session(hello.node, hello.incarnation)
        term = self._master.attach(session)
        reader = asyncio.create_task(self._read(term, session, stream))
        try:
            while (frame := await session.outgoing.get()) is not None:
                await stream.write(frame)
        finally:
            reader.cancel()
            term.agents.detach(session)

    async def _wait_for_predecessor(self, hello: frames.Hello) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PREDECESSOR_S
        while self._master.name_in_use(hello) and loop.time() < deadline:  # noqa: ASYNC110  (many frames change it)
            await asyncio.sleep(0.05)

    async def _next(self, stream: Stream, handshake: Handshake) -> frames.Challenge | Admitted | Rejection | None:
        """Process the next frame of a handshake; None: close the stream."""
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
        return handshake.receive(body) if body is not None else None

    async def _read(self, term: Term, session: Session, stream: Stream) -> None:
        try:
            while (body := await stream.read()) is not None:
                frame = frames.decode_from_agent(body)
                term.heard(session)
                if isinstance(frame, frames.Facts):
                    for raw in frame.facts:
                        term.take_fact(session, decode_fact(bytes(raw)))
                elif isinstance(frame, frames.Beat):
                    term.liveness.beat(session, frame)
        except (*frames.UNREADABLE, LogCorrupt) as error:
            logger.warning("unreadable frame; closing the stream", node=session.node, error=str(error))
        except StreamBroken as error:
            logger.debug("a stream broke", node=session.node, error=str(error))
        finally:
            session.end()
