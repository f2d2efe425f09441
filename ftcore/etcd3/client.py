"""The asynchronous client: uses one endpoint at a time, and the next one after a failure.

``_current`` is the only state shared by calls; the first call that sees an endpoint fail moves it on. Reads,
``compact`` and ``lease_revoke`` are retried within their deadline; writes never are (see the package). Exception: if a
token is refused, the server did nothing, so the call is repeated once after a new login.
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
"""Timeout of one attempt of a read, after which the next endpoint is tried."""

READ_S = 8.0
"""Deadline of a read; longer than a leader election of the etcd cluster (1-2 s)."""

WRITE_S = 5.0
"""Deadline of a write; etcd itself times out after about 7 s."""

_PAUSE_S = 0.1
"""Seconds between two passes through all endpoints."""

SAFE_VERSIONS = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""Oldest patch release of each line without known bugs that lose watch events, leases or permissions."""

_log = structlog.get_logger(__name__)
_warned: set[str] = set()


class Watch:
    """A stream of changes, created by ``Client.watch``. Read it from one task, and ``cancel`` it."""

    def __init__(self, client: "Client", endpoint: str, call: Any) -> None:
        self._client = client
        self.endpoint = endpoint
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def read(self, timeout_s: float) -> WatchBatch | None:
        """The next batch; None if none arrives within ``timeout_s`` seconds, which does not end the watch.

        Raises:
            Compacted: the start revision was compacted.
            LogUnavailable: the connection broke or the server ended the watch; open a new one.
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
            raise LogUnavailable(f"etcd at {self.endpoint} ended the watch: {batch.reason or 'no reason given'}")
        return batch

    def cancel(self) -> None:
        """End the watch. Idempotent."""
        self._call.cancel()
        if self._reading is not None:
            # Retrieve the exception, so that asyncio does not log it as never retrieved.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._reading = None


class Client:
    """A client of an etcd cluster. Bound to the event loop that uses it first; ``close`` it there.

    All calls raise ``LogUnavailable`` (no answer in time; for a write: outcome unknown), ``StoreError`` (no permission,
    not an etcd server) and ``UsageError`` (login refused, unreadable TLS file).

    Args:
        config: endpoints and credentials.
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
        """The endpoint of the next call."""
        return self.config.endpoints[self._current]

    def move_on(self, failed: str) -> None:
        """Switch to the next endpoint, unless another call has done so."""
        if failed == self.endpoint:
            self._current = (self._current + 1) % len(self.config.endpoints)

    async def range(self, request: Range, *, timeout_s: float = READ_S) -> RangeAnswer:
        """Read keys, linearizable.

        Raises:
            Compacted: the requested revision was compacted.
        """
        return await self._repeat(wire.RANGE, request, timeout_s)

    async def put(self, request: Put, *, timeout_s: float = WRITE_S) -> PutAnswer:
        """Write a key. Also raises ``LogFull``, ``NotFound`` (the lease), ``ValueError`` (too large)."""
        return await self._once(wire.PUT, request, timeout_s)

    async def delete(self, request: DeleteRange, *, timeout_s: float = WRITE_S) -> DeleteAnswer:
        """Delete keys. Sent once, because a retry could delete keys written in between."""
        return await self._once(wire.DELETE, request, timeout_s)

    async def txn(self, request: Txn, *, timeout_s: float = WRITE_S) -> TxnAnswer:
        """Execute a transaction. Also raises ``LogFull``, ``NotFound`` (a lease), ``ValueError`` (too large).

        A read-only transaction is retried like a read.
        """
        if all(isinstance(op, Range) for op in (*request.success, *request.failure)):
            return await self._repeat(wire.TXN, request, max(timeout_s, READ_S))
        return await self._once(wire.TXN, request, timeout_s)

    async def compact(self, revision: int) -> None:
        """Remove superseded values before ``revision``.

        Raises:
            Compacted: the revision is compacted already.
        """
        await self._repeat(wire.COMPACT, revision, READ_S)

    async def lease_grant(self, ttl_s: int) -> Lease:
        """A new lease; the server may grant a longer TTL. Also raises ``LogFull``."""
        return await self._once(wire.GRANT, ttl_s, WRITE_S)

    async def lease_revoke(self, lease: int) -> None:
        """End a lease and delete its keys.

        Raises:
            NotFound: the lease has expired.
        """
        await self._repeat(wire.REVOKE, lease, READ_S)

    async def status(self) -> Status:
        """Status of the current endpoint's member."""
        return await self._repeat(wire.STATUS, None, READ_S)

    async def alarms(self) -> tuple[str, ...]:
        """The active alarms: ``NOSPACE``, ``CORRUPT`` or the number of another alarm."""
        return await self._repeat(wire.ALARMS, None, READ_S)

    async def watch(self, request: WatchOpen) -> Watch:
        """Open a watch at the current endpoint; most errors appear only in ``Watch.read``."""
        endpoint = self.endpoint
        metadata = await self._metadata(endpoint)
        # Any: the published type stubs lack streams without an iterator.
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
            raise LogUnavailable(f"etcd at {endpoint} does not answer: the watch ended at once") from error
        return Watch(self, endpoint, call)

    async def warn_if_old(self) -> None:
        """Log a warning, once per process and version, if the server has known bugs that can damage a log."""
        version = (await self.status()).version
        if not is_safe(version) and version not in _warned:
            _warned.add(version)
            safe = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in SAFE_VERSIONS.items())
            known = "this version of etcd has known bugs that lose watch events, leases or permissions; update it"
            _log.warning(known, version=version, endpoints=str(self.config), use_at_least=safe)

    async def close(self) -> None:
        """Close all connections; pending calls end with ``asyncio.CancelledError``."""
        channels, self._channels, self._retired = [*self._channels.values(), *self._retired], {}, []
        self._calls.clear()
        for channel in channels:
            await channel.close(None)

    def failed(self, endpoint: str, error: grpc.aio.AioRpcError) -> Exception:
        """Translate the error of a call. Switches endpoints if there was no answer; drops a refused token."""
        meaning = translate(error.code(), error.details() or "", endpoint, self.config)
        if isinstance(meaning, LogUnavailable):
            self._renew(endpoint)
            self.move_on(endpoint)
        elif isinstance(meaning, TokenRefused):
            self._token = ""
        return meaning

    def _renew(self, endpoint: str) -> None:
        """Make the next call open a new channel if the TLS files have changed.

        The old channel may still carry other calls; ``close`` closes it.
        """
        try:
            changed = endpoint in self._channels and self._pems[endpoint] != pem(self.config)
        except UsageError:
            return  # the files are being replaced
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
            raise StoreError(f"{error}; also refused after a new login") from error

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
