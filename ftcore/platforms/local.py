"""The local platform: protocol over a Unix socket between ``ftrun --local-nodes`` (server) and the master (client).

Each message is one line of JSON; only this user can connect. A connection carries one request and its answer, or, after
``watch``, a stream of events until either side closes it.

Lines are limited in length; an invalid line ends the connection. The server answers from one event loop, so requests
are atomic; its owner (``NodeLauncher``) carries them out.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import structlog

from ftcore.errors import Refused, Unreachable, UsageError
from ftcore.platforms.adapters import PlatformAdapter
from ftcore.platforms.options import parse
from ftcore.policies.base import Ability
from ftcore.ports import (
    CapacityChanged,
    LaunchRequest,
    MaintenanceAnnounced,
    MaintenanceOver,
    NodeEnded,
    NodeWarned,
    Occupant,
    PlatformEvent,
)
from ftcore.private import SocketPath

LINE_BYTES_MAX = 64 << 10
ANSWER_S = 10.0
"""Timeout of an answer, which the server gives from memory: a slower server is stopped or its machine is overloaded."""

KEEP_S = 0.5
"""Interval at which the server checks that its socket exists."""

logger = structlog.get_logger()


class LaunchCall(msgspec.Struct, frozen=True, tag_field="do", tag="launch"):
    """As ``Platform.launch``; ``node`` is empty if the request replaces no node."""

    effect: str
    node: str
    pid: int
    ordinal: int | None
    count: int


class DeleteCall(msgspec.Struct, frozen=True, tag_field="do", tag="delete"):
    """As ``Platform.delete``."""

    node: str
    pid: int
    grace_s: float


class CordonCall(msgspec.Struct, frozen=True, tag_field="do", tag="cordon"):
    """As ``Platform.cordon``."""

    node: str
    pid: int
    reason: str


class CapacityCall(msgspec.Struct, frozen=True, tag_field="do", tag="capacity"):
    """As ``Platform.capacity``."""


class WatchCall(msgspec.Struct, frozen=True, tag_field="do", tag="watch"):
    """As ``Platform.watch``."""


Question: TypeAlias = LaunchCall | DeleteCall | CordonCall | CapacityCall | WatchCall


class PlatformReply(msgspec.Struct, frozen=True):
    """PlatformReply to a request.

    Args:
        ok: whether the request was carried out.
        reason: why it was not.
        free: for ``CapacityCall``: number of free machines; None: no limit.
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


class Maintained(msgspec.Struct, frozen=True, tag_field="is", tag="maintained"):
    """As ``MaintenanceAnnounced``, or with ``over`` as ``MaintenanceOver``."""

    node: str
    reason: str
    within_s: float
    pid: int
    over: bool


class Free(msgspec.Struct, frozen=True, tag_field="is", tag="free"):
    """As ``CapacityChanged``."""

    free: int | None


_encode = msgspec.json.Encoder().encode
_question = msgspec.json.Decoder(Question).decode
_answer = msgspec.json.Decoder(PlatformReply).decode
_decode_event = msgspec.json.Decoder(Ended | Warned | Maintained | Free).decode


class LocalPlatform:
    """The client, for the master; see ``ports.Platform``.

    Args:
        path: path of the socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def from_url(cls, url: str) -> "LocalPlatform":
        """The platform at ``local:///path/of.sock``.

        Raises:
            UsageError: the URL has no path.
        """
        path = parse(url).path
        if not path:
            raise UsageError(f"{url!r} is the platform of --local-nodes: add --local-nodes")
        return cls(path)

    async def capacity(self) -> int | None:
        """See ``Platform``."""
        return (await self._ask(CapacityCall())).free

    async def launch(self, request: LaunchRequest) -> None:
        """See ``Platform``."""
        old = request.replaces or Occupant(node="")
        await self._ask(
            LaunchCall(effect=request.effect, node=old.node, pid=old.pid, ordinal=old.ordinal, count=request.count)
        )

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        await self._ask(DeleteCall(node=place.node, pid=place.pid, grace_s=grace_s))

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        await self._ask(CordonCall(node=place.node, pid=place.pid, reason=reason))

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """See ``Platform``."""
        async with self._connected() as (reader, writer):
            await _send(writer, WatchCall())
            while line := await _line(reader):
                yield _from_message(_decode_event(line))
        raise Unreachable("ftrun --local-nodes has closed the connection")

    async def close(self) -> None:
        """See ``Platform``."""

    async def _ask(self, question: Question) -> PlatformReply:
        async with self._connected() as (reader, writer):
            try:
                async with asyncio.timeout(ANSWER_S):
                    await _send(writer, question)
                    line = await _line(reader)
            except TimeoutError:
                raise Unreachable(f"ftrun --local-nodes did not answer within {ANSWER_S:g} s") from None
        if not line:
            raise Unreachable("ftrun --local-nodes has closed the connection")
        answer = _answer(line)
        if not answer.ok:
            raise Refused(answer.reason)
        return answer

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
        except OSError as error:
            raise Unreachable(f"cannot connect to ftrun --local-nodes: {error.strerror or error}") from error
        try:
            yield reader, writer
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise Unreachable(f"invalid message from ftrun --local-nodes: {error}") from error
        finally:
            writer.close()


class NodeLauncher(Protocol):
    """Owner of the nodes; see ``ports.Platform`` for the methods."""

    def capacity(self) -> int | None:
        """Number of free machines; None: no limit."""

    def launch(self, request: LaunchRequest) -> None:
        """Launch nodes; raises ``Refused``."""

    def delete(self, place: Occupant, grace_s: float) -> None:
        """End a node."""

    def cordon(self, place: Occupant, reason: str) -> None:
        """Exclude a node's machine and name from later launches."""

    def happened(self) -> list[PlatformEvent]:
        """Past events that a new watcher may have missed."""


class LocalServer:
    """The server, in ``ftrun --local-nodes``.

    Args:
        path: path of the socket to create.
        host: owner of the nodes.
    """

    def __init__(self, path: str, host: NodeLauncher) -> None:
        self._place = SocketPath(path)
        self._host = host
        self._keeping: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._watchers: set[asyncio.Queue[PlatformEvent]] = set()
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to serve.

        Raises:
            UsageError: the socket cannot be created.
        """
        try:
            await self._bind()
        except OSError as error:
            raise UsageError(f"cannot create the socket {self._place.path}: {error.strerror or error}") from error
        self._keeping = asyncio.create_task(self._keep())

    async def _bind(self) -> None:
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._talk, self._place.path, limit=LINE_BYTES_MAX)
        finally:
            os.umask(before)
        self._place.bound()

    async def _keep(self) -> None:
        """Create the socket again whenever it was removed; open connections are unaffected."""
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

    def publish(self, event: PlatformEvent) -> None:
        """Send an event to all watchers."""
        for queue in self._watchers:
            queue.put_nowait(event)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            question = _question(await _line(reader))
            if isinstance(question, WatchCall):
                await self._be_watched(writer)
            else:
                await _send(writer, self._answer(question))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.debug("a connection to the local platform ended", error=str(error))
        except asyncio.CancelledError:
            pass  # the server is closing
        finally:
            self._talks.discard(task)
            writer.close()

    def _answer(self, question: Question) -> PlatformReply:
        doers: dict[type[Any], Callable[[Any], None]] = {
            LaunchCall: lambda q: self._host.launch(
                LaunchRequest(
                    effect=q.effect,
                    count=q.count,
                    replaces=Occupant(node=q.node, pid=q.pid, ordinal=q.ordinal) if q.node else None,
                )
            ),
            DeleteCall: lambda q: self._host.delete(Occupant(node=q.node, pid=q.pid), q.grace_s),
            CordonCall: lambda q: self._host.cordon(Occupant(node=q.node, pid=q.pid), q.reason),
        }
        if isinstance(question, CapacityCall):
            return PlatformReply(free=self._host.capacity())
        try:
            doers[type(question)](question)
        except Refused as error:
            return PlatformReply(ok=False, reason=str(error))
        return PlatformReply()

    async def _be_watched(self, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[PlatformEvent] = asyncio.Queue()
        for missed in (CapacityChanged(free=self._host.capacity()), *self._host.happened()):
            queue.put_nowait(missed)
        self._watchers.add(queue)
        try:
            while True:
                await _send(writer, _to_message(await queue.get()))
        finally:
            self._watchers.discard(queue)


def _to_message(event: PlatformEvent) -> Ended | Warned | Maintained | Free:
    if isinstance(event, CapacityChanged):
        return Free(free=event.free)
    node, reason, pid = event.node, event.reason, event.pid
    if isinstance(event, NodeEnded):
        return Ended(node=node, reason=reason, pid=pid)
    if isinstance(event, NodeWarned):
        return Warned(node=node, reason=reason, within_s=event.within_s, pid=pid)
    over = isinstance(event, MaintenanceOver)
    within_s = event.within_s if isinstance(event, MaintenanceAnnounced) else 0.0
    return Maintained(node=node, reason=reason, within_s=within_s, pid=pid, over=over)


def _from_message(message: Ended | Warned | Maintained | Free) -> PlatformEvent:
    if isinstance(message, Free):
        return CapacityChanged(free=message.free)
    node, reason, pid = message.node, message.reason, message.pid
    if isinstance(message, Ended):
        return NodeEnded(node=node, reason=reason, pid=pid)
    if isinstance(message, Warned):
        return NodeWarned(node=node, reason=reason, within_s=message.within_s, pid=pid)
    if message.over:
        return MaintenanceOver(node=node, reason=reason, pid=pid)
    return MaintenanceAnnounced(node=node, reason=reason, within_s=message.within_s, pid=pid)


async def _send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    writer.write(_encode(message) + b"\n")
    await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end. Raises ``ValueError`` if it is too long."""
    return await reader.readline()


ADAPTER = PlatformAdapter(
    open=lambda url, job: LocalPlatform.from_url(url),
    check=parse,
    abilities=lambda url: (Ability.REPLACE,) if parse(url).ever_free else (),
)
