"""The local platform over its socket: ``ftrun --local-nodes`` serves it, whoever is master asks.

One line of JSON to a message, over a Unix socket that only this user may enter. A connection carries one question and
its answer, or, after ``watch``, what happens, until either side ends it.

House rules: a line is bounded; what cannot be read ends the connection. The server answers from one event loop, so an
order is carried out whole or not at all; how it is carried out is its owner's (``Host``).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import structlog

from ftcore.errors import Refused, Unreachable, UsageError
from ftcore.platforms.options import parse
from ftcore.ports import CapacityChanged, Happening, NodeEnded, NodeWarned, Occupant
from ftcore.private import Place

LINE_BYTES_MAX = 64 << 10
ANSWER_S = 10.0
"""The server answers from its memory; one that takes longer is stopped, or the machine is drowning."""

KEEP_S = 0.5
"""How often the server looks whether its socket is still there."""

logger = structlog.get_logger()


class Launch(msgspec.Struct, frozen=True, tag_field="do", tag="launch"):
    """As ``Platform.launch``."""

    effect: str
    node: str
    pid: int
    ordinal: int | None


class Delete(msgspec.Struct, frozen=True, tag_field="do", tag="delete"):
    """As ``Platform.delete``."""

    node: str
    pid: int
    grace_s: float


class Cordon(msgspec.Struct, frozen=True, tag_field="do", tag="cordon"):
    """As ``Platform.cordon``."""

    node: str
    pid: int
    reason: str


class Capacity(msgspec.Struct, frozen=True, tag_field="do", tag="capacity"):
    """As ``Platform.capacity``."""


class Watch(msgspec.Struct, frozen=True, tag_field="do", tag="watch"):
    """As ``Platform.watch``."""


Question: TypeAlias = Launch | Delete | Cordon | Capacity | Watch


class Answer(msgspec.Struct, frozen=True):
    """What came of a question.

    Args:
        ok: it was carried out.
        reason: why not.
        free: to ``Capacity``: machines that are free; None: no bound.
    """

    ok: bool = True
    reason: str = ""
    free: int | None = None


class Ended(msgspec.Struct, frozen=True, tag_field="is", tag="ended"):
    """As ``NodeEnded``."""

    node: str
    reason: str
    pid: int


class Warned(msgspec.Struct, frozen=True, tag_field="is", tag="warned"):
    """As ``NodeWarned``."""

    node: str
    reason: str
    within_s: float
    pid: int


class Free(msgspec.Struct, frozen=True, tag_field="is", tag="free"):
    """As ``CapacityChanged``."""

    free: int | None


_encode = msgspec.json.Encoder().encode
_question = msgspec.json.Decoder(Question).decode
_answer = msgspec.json.Decoder(Answer).decode
_happening = msgspec.json.Decoder(Ended | Warned | Free).decode


class LocalPlatform:
    """The master's side; see ``ports.Platform``.

    Args:
        path: of the socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def from_url(cls, url: str) -> "LocalPlatform":
        """The platform at ``local:///path/of.sock``.

        Raises:
            UsageError: it names no socket.
        """
        path = parse(url).path
        if not path:
            raise UsageError(f"{url!r} is the platform of --local-nodes: give it together with --local-nodes")
        return cls(path)

    async def capacity(self) -> int | None:
        """See ``Platform``."""
        return (await self._ask(Capacity())).free

    async def launch(self, effect: str, place: Occupant) -> None:
        """See ``Platform``."""
        await self._ask(Launch(effect=effect, node=place.node, pid=place.pid, ordinal=place.ordinal))

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        await self._ask(Delete(node=place.node, pid=place.pid, grace_s=grace_s))

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        await self._ask(Cordon(node=place.node, pid=place.pid, reason=reason))

    async def watch(self) -> AsyncIterator[Happening]:
        """See ``Platform``."""
        async with self._connected() as (reader, writer):
            await _send(writer, Watch())
            while line := await _line(reader):
                told = _happening(line)
                if isinstance(told, Ended):
                    yield NodeEnded(node=told.node, reason=told.reason, pid=told.pid)
                elif isinstance(told, Warned):
                    yield NodeWarned(node=told.node, reason=told.reason, within_s=told.within_s, pid=told.pid)
                else:
                    yield CapacityChanged(free=told.free)
        raise Unreachable("the ftrun that plays the nodes has closed the connection")

    async def close(self) -> None:
        """See ``Platform``."""

    async def _ask(self, question: Question) -> Answer:
        async with self._connected() as (reader, writer):
            try:
                async with asyncio.timeout(ANSWER_S):
                    await _send(writer, question)
                    line = await _line(reader)
            except TimeoutError:
                raise Unreachable(f"the ftrun that plays the nodes did not answer in {ANSWER_S:g} s") from None
        if not line:
            raise Unreachable("the ftrun that plays the nodes closed the connection")
        answer = _answer(line)
        if not answer.ok:
            raise Refused(answer.reason)
        return answer

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
        except OSError as error:
            raise Unreachable(f"the ftrun that plays the nodes is not there: {error.strerror or error}") from error
        try:
            yield reader, writer
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise Unreachable(f"the ftrun that plays the nodes cannot be understood: {error}") from error
        finally:
            writer.close()


class Host(Protocol):
    """Who plays the nodes; see ``ports.Platform`` for what each method is to do."""

    def capacity(self) -> int | None:
        """Machines that are free."""

    def launch(self, effect: str, place: Occupant) -> None:
        """Have a node come; raises ``Refused``."""

    def delete(self, place: Occupant, grace_s: float) -> None:
        """End a node."""

    def cordon(self, place: Occupant, reason: str) -> None:
        """Keep its machine and its name from being used again."""

    def happened(self) -> list[Happening]:
        """What a master that begins to watch may have missed."""


class LocalServer:
    """The side of ``ftrun --local-nodes``.

    Args:
        path: where to make the socket.
        host: who plays the nodes.
    """

    def __init__(self, path: str, host: Host) -> None:
        self._place = Place(path)
        self._host = host
        self._keeping: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._watchers: set[asyncio.Queue[Happening]] = set()
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serve.

        Raises:
            UsageError: the socket cannot be made.
        """
        try:
            await self._bind()
        except OSError as error:
            raise UsageError(f"cannot make the socket {self._place.path}: {error.strerror or error}") from error
        self._keeping = asyncio.create_task(self._keep())

    async def _bind(self) -> None:
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._talk, self._place.path, limit=LINE_BYTES_MAX)
        finally:
            os.umask(before)
        self._place.bound()

    async def _keep(self) -> None:
        """Make the socket anew whenever it was removed; connections that stand are not touched."""
        while True:
            await asyncio.sleep(KEEP_S)
            if not self._place.is_ours():
                with contextlib.suppress(OSError):
                    self._place.prepare()
                    await self._bind()

    async def close(self) -> None:
        """Stop serving."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._server is not None:
            self._server.close()
        for task in self._talks:
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        self._place.remove()

    def tell(self, happening: Happening) -> None:
        """Tell whoever watches."""
        for queue in self._watchers:
            queue.put_nowait(happening)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            question = _question(await _line(reader))
            if isinstance(question, Watch):
                await self._be_watched(writer)
            else:
                await _send(writer, self._answer(question))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.debug("a connection to the local platform ended", error=str(error))
        except asyncio.CancelledError:
            pass  # the platform ends
        finally:
            self._talks.discard(task)
            writer.close()

    def _answer(self, question: Question) -> Answer:
        doers: dict[type[Any], Callable[[Any], None]] = {
            Launch: lambda q: self._host.launch(q.effect, Occupant(node=q.node, pid=q.pid, ordinal=q.ordinal)),
            Delete: lambda q: self._host.delete(Occupant(node=q.node, pid=q.pid), q.grace_s),
            Cordon: lambda q: self._host.cordon(Occupant(node=q.node, pid=q.pid), q.reason),
        }
        if isinstance(question, Capacity):
            return Answer(free=self._host.capacity())
        try:
            doers[type(question)](question)
        except Refused as error:
            return Answer(ok=False, reason=str(error))
        return Answer()

    async def _be_watched(self, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[Happening] = asyncio.Queue()
        for missed in (CapacityChanged(free=self._host.capacity()), *self._host.happened()):
            queue.put_nowait(missed)
        self._watchers.add(queue)
        try:
            while True:
                happening = await queue.get()
                if isinstance(happening, NodeEnded):
                    told: Any = Ended(node=happening.node, reason=happening.reason, pid=happening.pid)
                elif isinstance(happening, NodeWarned):
                    within_s = happening.within_s
                    told = Warned(node=happening.node, reason=happening.reason, within_s=within_s, pid=happening.pid)
                else:
                    told = Free(free=happening.free)
                await _send(writer, told)
        finally:
            self._watchers.discard(queue)


async def _send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    writer.write(_encode(message) + b"\n")
    await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end. Raises ``ValueError`` if it is too long."""
    return await reader.readline()
