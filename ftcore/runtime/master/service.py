"""The master's gRPC service: streams of agents, commands of operators. It knows frames, not decisions."""

import asyncio
import contextlib
import hmac
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ftcore.errors import LogCorrupt, Unreachable
from ftcore.events.codec import decode_fact
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.channel import server

if TYPE_CHECKING:
    from ftcore.runtime.master.master import Master

PREDECESSOR_S = 1.5
"""How long a newcomer waits for the end of an older agent of its name; a dead one's stream ends, or falls silent."""

HELLO_S = 10.0
"""A stream that has not said hello by then is closed."""

logger = structlog.get_logger()


class Service:
    """Serves one master.

    Args:
        master: whom it serves.
        listen: gRPC target: ``unix:/path`` or ``host:port``, port 0 for a free one.
        advertise: host name or address that others use, for TCP targets.
        token: the job's token; empty: none is asked for.
    """

    def __init__(self, master: "Master", *, listen: str, advertise: str, token: str) -> None:
        self._master = master
        self._listen = listen
        self._advertise = advertise
        self._token = token
        self._server = server(self._connect, self._command)

    async def start(self) -> str:
        """Serve; returns the address for others.

        Raises:
            Unreachable: the address cannot be listened on.
        """
        try:
            port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise Unreachable(f"cannot listen on {self._listen}: {error}; choose another address or port") from error
        await self._server.start()
        if self._listen.startswith("unix:"):
            os.chmod(self._listen.removeprefix("unix:"), 0o600)  # noqa: PTH101  (no path object in a coroutine)
            return self._listen
        host = self._advertise or self._listen.rpartition(":")[0]
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Close all streams; what is queued for them is written first, for a moment."""
        await self._server.stop(grace=0.5)
        if self._listen.startswith("unix:"):
            with contextlib.suppress(OSError):
                os.unlink(self._listen.removeprefix("unix:"))  # noqa: PTH108  (no path object in a coroutine)

    def _authentic(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    async def _connect(self, incoming: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        hello = await self._read_hello(incoming)
        if hello is None:
            return
        authentic = self._authentic(hello.token)
        if authentic and not hello.acked:
            await self._wait_for_predecessor(hello)
        answer = self._master.greet(hello) if authentic else _WRONG_TOKEN
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

    async def _read_hello(self, incoming: AsyncIterator[bytes]) -> frames.Hello | None:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(aiter(incoming))
            hello = frames.decode_from_agent(first)
        except (TimeoutError, StopAsyncIteration, msgspec.MsgspecError):
            return None
        return hello if isinstance(hello, frames.Hello) else None

    async def _read(self, session: Session, incoming: AsyncIterator[bytes]) -> None:
        try:
            async for body in incoming:
                frame = frames.decode_from_agent(body)
                self._master.heard(session)
                if isinstance(frame, frames.Facts):
                    for raw in frame.facts:
                        self._master.take_fact(session, decode_fact(bytes(raw)))
                elif isinstance(frame, frames.Beat):
                    session.beat = frame
        except (msgspec.MsgspecError, LogCorrupt) as error:
            logger.warning("a frame cannot be read; closing the stream", node=session.node, error=str(error))
        finally:
            session.end()

    async def _command(self, body: bytes, context: Any) -> bytes:
        try:
            request = frames.decode_command(body)
        except msgspec.MsgspecError as error:
            return frames.encode(frames.CommandReply(False, f"not a command: {error}"))
        if not self._authentic(request.token):
            return frames.encode(frames.CommandReply(False, _WRONG_TOKEN.reason))
        return frames.encode(await self._master.command(request))


_WRONG_TOKEN = frames.Refused(
    "wrong token: set FTCORE_TOKEN to the same value for every process of the job", rejoin=False
)
