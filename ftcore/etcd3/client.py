"""The asynchronous client: one connection at a time, the next endpoint when it fails.

House rules: ``_current`` is the only state shared by calls; whoever sees an endpoint fail moves it on, once. Reads,
``compact`` and ``lease_revoke`` may be repeated and are, within their deadline; writes never are (see the package).
The exception is a refused token: the server did nothing, so after a new login the same call is made once more.
"""

import asyncio
import re
import time
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from ftcore.errors import LogUnavailable, StoreError, UsageError
from ftcore.etcd3 import wire
from ftcore.etcd3.config import Config
from ftcore.etcd3.messages import (
    Alarm,
    DeleteAnswer,
    DeleteRange,
    Lease,
    Login,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Status,
    Txn,
    TxnAnswer,
    WatchBatch,
    WatchOpen,
)
from ftcore.etcd3.transport import OPTIONS, REQUIRE_LEADER, Compacted, Pem, TokenRefused, credentials, pem, translate

Q = TypeVar("Q")
A = TypeVar("A")

ATTEMPT_S = 2.0
"""One endpoint may take this long to answer a read before the next one is asked."""

READ_S = 8.0
"""A read is tried for this long: longer than a cluster takes to elect a new leader (1-2 s)."""

WRITE_S = 5.0
"""A write may take this long; etcd itself gives up after about 7 s."""

_PAUSE_S = 0.1
"""Between two rounds through all endpoints."""

SAFE_VERSIONS = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""Oldest patch release of each line in which no known bug loses watch events, leases or permissions."""

_log = structlog.get_logger(__name__)
_warned: set[str] = set()


class Watch:
    """A stream of changes; made by ``Client.watch``. Read it from one task, and ``cancel`` it."""

    def __init__(self, client: "Client", endpoint: str, call: Any) -> None:
        self._client = client
        self.endpoint = endpoint
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def read(self, timeout_s: float) -> WatchBatch | None:
        """The next batch; None if nothing came in ``timeout_s`` seconds, the watch then still stands.

        Raises:
            Compacted: the start revision is gone.
            LogUnavailable: the connection broke or the server ended the watch; open another one.
        """
        # The pending read outlives the timeout: cancelling it would cancel the stream.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout_s)
        if not done:
            return None
        reading, self._reading = self._reading, None
        try:
            batch = reading.result()
        except grpc.aio.AioRpcError as error:
            raise self._client.failed(self.endpoint, error) from error
        if not isinstance(batch, WatchBatch):  # the end of the stream
            self._client.move_on(self.endpoint)
            raise LogUnavailable(f"etcd at {self.endpoint} ended the watch")
        if batch.compact_revision:
            raise Compacted(f"etcd at {self.endpoint}: watch from a compacted revision", batch.compact_revision)
        if batch.canceled:
            raise LogUnavailable(f"etcd at {self.endpoint} ended the watch: {batch.reason or 'no reason told'}")
        return batch

    def cancel(self) -> None:
        """End the watch. Harmless if it has ended."""
        self._call.cancel()
        if self._reading is not None:
            # Its CancelledError is nobody's business any more.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._reading = None


class Client:
    """An etcd cluster. Belongs to the event loop that uses it first; ``close`` it there.

    All calls raise ``LogUnavailable`` (no answer in time; for a write: outcome unknown), ``StoreError`` (no permission,
    not an etcd) and ``UsageError`` (login refused, unreadable TLS file).

    Args:
        config: where it is and how to get in.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._current = 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._pems: dict[str, Pem] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._token = ""
        self._login = asyncio.Lock()

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call goes to."""
        return self.config.endpoints[self._current]

    def move_on(self, failed: str) -> None:
        """Let the next call go to the next endpoint, unless somebody has seen to that."""
        if failed == self.endpoint:
            self._current = (self._current + 1) % len(self.config.endpoints)

    async def range(self, request: Range, *, timeout_s: float = READ_S) -> RangeAnswer:
        """Read keys, linearizable.

        Raises:
            Compacted: the revision asked for is gone.
        """
        return await self._repeat(wire.RANGE, request, timeout_s)

    async def put(self, request: Put, *, timeout_s: float = WRITE_S) -> PutAnswer:
        """Write a key. Raises also ``LogFull``, ``NotFound`` (the lease), ``ValueError`` (too large)."""
        return await self._once(wire.PUT, request, timeout_s)

    async def delete(self, request: DeleteRange, *, timeout_s: float = WRITE_S) -> DeleteAnswer:
        """Delete keys; sent once, because a repetition could delete what was written in between."""
        return await self._once(wire.DELETE, request, timeout_s)

    async def txn(self, request: Txn, *, timeout_s: float = WRITE_S) -> TxnAnswer:
        """Do a transaction. Raises also ``LogFull``, ``NotFound`` (a lease), ``ValueError`` (too large).

        One that only reads is repeated like any read.
        """
        if all(isinstance(op, Range) for op in (*request.success, *request.failure)):
            return await self._repeat(wire.TXN, request, max(timeout_s, READ_S))
        return await self._once(wire.TXN, request, timeout_s)

    async def compact(self, revision: int) -> None:
        """Drop what was superseded before ``revision``.

        Raises:
            Compacted: that has been done.
        """
        await self._repeat(wire.COMPACT, revision, READ_S)

    async def lease_grant(self, ttl_s: int) -> Lease:
        """A new lease; the server may grant more than it was asked for. Raises also ``LogFull``."""
        return await self._once(wire.GRANT, ttl_s, WRITE_S)

    async def lease_revoke(self, lease: int) -> None:
        """End a lease and delete its keys.

        Raises:
            NotFound: it has ended.
        """
        await self._repeat(wire.REVOKE, lease, READ_S)

    async def status(self) -> Status:
        """State of one member, whichever is asked."""
        return await self._repeat(wire.STATUS, None, READ_S)

    async def alarms(self) -> tuple[Alarm, ...]:
        """The alarms that are raised."""
        return await self._repeat(wire.ALARMS, None, READ_S)

    async def watch(self, request: WatchOpen) -> Watch:
        """Open a watch at the current endpoint; whether that works shows when it is read."""
        endpoint = self.endpoint
        metadata = await self._metadata(endpoint)
        # Any: the published stubs know neither a stream without an iterator nor this way to write to one.
        open_stream: Any = self._channel(endpoint).stream_stream(
            wire.WATCH.path, request_serializer=wire.WATCH.encode, response_deserializer=wire.WATCH.decode
        )
        call = open_stream(metadata=metadata)
        try:
            await call.write(request)
        except grpc.aio.AioRpcError as error:
            raise self.failed(endpoint, error) from error
        except asyncio.InvalidStateError as error:
            self.move_on(endpoint)
            raise LogUnavailable(f"etcd at {endpoint} does not answer: the watch ended as it began") from error
        return Watch(self, endpoint, call)

    async def warn_if_old(self) -> None:
        """Log a warning, once per process and version, if the server has known bugs that can hurt a log."""
        version = (await self.status()).version
        if not is_safe(version) and version not in _warned:
            _warned.add(version)
            safe = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in SAFE_VERSIONS.items())
            known = "this version of etcd has known bugs that lose watch events, leases or permissions; update it"
            _log.warning(known, version=version, endpoints=str(self.config), use_at_least=safe)

    async def close(self) -> None:
        """Close all connections; calls still running end with ``asyncio.CancelledError``."""
        channels, self._channels, self._retired = [*self._channels.values(), *self._retired], {}, []
        self._calls.clear()
        for channel in channels:
            await channel.close(None)

    def failed(self, endpoint: str, error: grpc.aio.AioRpcError) -> Exception:
        """What a failed call means; the client leaves an endpoint that did not answer and a token that was refused."""
        meaning = translate(error.code(), error.details() or "", endpoint, self.config)
        if isinstance(meaning, LogUnavailable):
            self._renew(endpoint)
            self.move_on(endpoint)
        elif isinstance(meaning, TokenRefused):
            self._token = ""
        return meaning

    def _renew(self, endpoint: str) -> None:
        """Have the next call open a channel anew if the files for TLS have changed: a channel keeps what it was given.

        The old one is closed at the end, for it may still carry others' calls.
        """
        try:
            changed = endpoint in self._channels and self._pems[endpoint] != pem(self.config)
        except UsageError:
            return  # the files are just being exchanged
        if changed:
            self._retired.append(self._channels.pop(endpoint))
            self._calls = {key: call for key, call in self._calls.items() if key[0] != endpoint}

    async def _repeat(self, method: wire.Method[Q, A], request: Q, timeout_s: float) -> A:
        deadline = time.monotonic() + timeout_s
        tried = 0
        while True:
            attempt_s = min(ATTEMPT_S, deadline - time.monotonic())
            try:
                return await self._once(method, request, attempt_s)
            except LogUnavailable:
                tried += 1
                pause = _PAUSE_S if tried % len(self.config.endpoints) == 0 else 0.0
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _once(self, method: wire.Method[Q, A], request: Q, timeout_s: float) -> A:
        endpoint = self.endpoint
        try:
            return await self._send(endpoint, method, request, timeout_s)
        except TokenRefused:
            pass
        try:
            return await self._send(endpoint, method, request, timeout_s)
        except TokenRefused as error:
            raise StoreError(f"{error}; a new login did not help") from error

    async def _send(self, endpoint: str, method: wire.Method[Q, A], request: Q, timeout_s: float) -> A:
        metadata = await self._metadata(endpoint)
        return await self._unary(endpoint, method, request, timeout_s, metadata)

    async def _unary(
        self, endpoint: str, method: wire.Method[Q, A], request: Q, timeout_s: float, metadata: tuple[Any, ...]
    ) -> A:
        call = self._calls.get((endpoint, method.path))
        if call is None:
            call = self._calls[endpoint, method.path] = self._channel(endpoint).unary_unary(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
        try:
            answer: A = await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise self.failed(endpoint, error) from error
        return answer

    async def _metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        if not self.config.user:
            return (REQUIRE_LEADER,)
        async with self._login:
            if not self._token:
                login = Login(user=self.config.user, password=self.config.password)
                self._token = await self._unary(endpoint, wire.LOGIN, login, ATTEMPT_S, (REQUIRE_LEADER,))
            return (REQUIRE_LEADER, ("token", self._token))

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            self._pems[endpoint] = pem(self.config)
            tls = credentials(self.config, self._pems[endpoint])
            if tls is None:
                channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, tls, options=OPTIONS)
            self._channels[endpoint] = channel
        return channel


def is_safe(version: str) -> bool:
    """Whether a server version is at or above the safe patch release of its line (``SAFE_VERSIONS``)."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return False
    major, minor, patch = map(int, match.groups())
    if (major, minor) > max(SAFE_VERSIONS):
        return True
    return patch >= SAFE_VERSIONS.get((major, minor), patch + 1)
