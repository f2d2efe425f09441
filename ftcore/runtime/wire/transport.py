"""The gRPC transport: one service, generic handlers, byte streams. No generated code: the frames are JSON.

Targets: ``unix:/path`` on one machine, ``host:port`` between machines, the latter with TLS if configured.

House rule: only this module serves or calls with gRPC; it raises gRPC errors as ``StreamBroken``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog

from ftcore.errors import StreamBroken, Unreachable
from ftcore.ports import Handle, Stream
from ftcore.private import SocketPath
from ftcore.runtime.wire.frames import FRAME_BYTES_MAX
from ftcore.runtime.wire.security import Security
from ftcore.tls import trouble

SERVICE = "ftcore.Master"
CONNECT = f"/{SERVICE}/Connect"

HOST_CHARS_MAX = 100
"""Limit of a caller's host name; the rest is cut."""

CLOSING_S = 0.5
"""How long a stopping listener writes queued frames, in seconds."""

_LIMITS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    # Frames are small, so flow-control windows need not grow; bandwidth probes would only cost extra pings.
    ("grpc.http2.bdp_probe", 0),
]
_CLIENT: list[tuple[str, Any]] = [
    *_LIMITS,
    # Heartbeats are our own frames; gRPC's keepalive only ends half-open connections.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    # A channel is used for one attempt; the agent decides when to try the next address.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_SERVER: list[tuple[str, Any]] = [
    *_LIMITS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]

logger = structlog.get_logger()


class GrpcTransport:
    """Streams over gRPC.

    Args:
        security: credentials shown to the peer and required from it.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

    @contextlib.asynccontextmanager
    async def connect(self, target: str) -> AsyncIterator[Stream]:
        """A stream to a master; see ``ports.Transport``."""
        async with self._channel(target) as channel:
            call: Any = channel.stream_stream(CONNECT)()
            try:
                yield _CallerStream(call)
            finally:
                call.cancel()

    def listener(self, target: str, *, advertise: str, handle: Handle) -> "GrpcListener":
        """A listener that is not started yet; see ``ports.Transport``."""
        return GrpcListener(target, advertise, handle, self._security)

    def _channel(self, target: str) -> grpc.aio.Channel:
        credentials = self._security.for_channel(target)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=_CLIENT)
        name = self._security.tls.name if self._security.tls is not None else ""
        options = [*_CLIENT, ("grpc.ssl_target_name_override", name)] if name else _CLIENT
        return grpc.aio.secure_channel(target, credentials, options=options)


class GrpcListener:
    """Serves streams over gRPC.

    Args:
        target: ``unix:/path`` or ``host:port``, port 0 for a free one.
        advertise: host name or address that others use, for TCP targets.
        handle: serves each stream.
        security: credentials shown to callers and required from them.
    """

    def __init__(self, target: str, advertise: str, handle: Handle, security: Security) -> None:
        self._target = target
        self._advertise = advertise
        self._handle = handle
        self._security = security
        self._place = SocketPath(target.removeprefix("unix:")) if target.startswith("unix:") else None
        self._servers: list[grpc.aio.Server] = []
        self._warned = ""

    async def start(self) -> str:
        """Serve; returns the address for callers; see ``ports.Listener``."""
        try:
            port = await self._serve()
        except RuntimeError as error:
            raise Unreachable(f"cannot listen on {self._target}: {error}; choose another address or port") from error
        if self._place is not None:
            return self._target
        host = self._advertise or self._target.rpartition(":")[0]
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    @property
    def reachable(self) -> bool:
        """Whether callers can find the address; a Unix socket may have been removed."""
        return self._place is None or self._place.is_ours()

    async def restore(self) -> None:
        """Create a removed Unix socket again; an error is logged once."""
        if self._place is None or self.reachable:
            return
        try:
            self._place.prepare()
            await self._serve()
        except (OSError, RuntimeError) as error:
            if str(error) != self._warned:
                self._warned = str(error)
                logger.warning("the master's socket was removed and cannot be created again", error=str(error))
        else:
            logger.warning("the master's socket was removed and has been created again", path=str(self._place.path))

    async def stop(self) -> None:
        """Close all streams; queued frames are written first, for at most ``CLOSING_S``."""
        await asyncio.gather(*(server.stop(grace=CLOSING_S) for server in self._servers))
        if self._place is not None:
            self._place.remove()

    async def _serve(self) -> int:
        """Open the port; returns its number. Raises ``RuntimeError``, ``UsageError``."""
        server = grpc.aio.server(options=_SERVER)
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connected)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        credentials = self._security.for_server(self._target)
        if credentials is None:
            port = server.add_insecure_port(self._target)
        else:
            port = server.add_secure_port(self._target, credentials)
        self._servers.append(server)
        await server.start()
        if self._place is not None:
            self._place.path.chmod(0o600)
            self._place.bound()
        return port

    async def _connected(self, _: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(StreamBroken):
            await self._handle(_Served(context))


class _CallerStream:
    """The caller's end of a stream."""

    peer = ""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        with _broken():
            return _frame(await self._call.read())

    async def write(self, frame: bytes) -> None:
        with _broken():
            await self._call.write(frame)


class _Served:
    """The master's end of a stream."""

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def peer(self) -> str:
        """The host of gRPC's ``ipv4:HOST:PORT``, ``ipv6:%5bHOST%5d:PORT`` or ``unix:...``."""
        scheme, _, rest = unquote(self._context.peer()).partition(":")
        return scheme if scheme == "unix" else rest.rpartition(":")[0].strip("[]")[:HOST_CHARS_MAX]

    async def read(self) -> bytes | None:
        with _broken():
            return _frame(await self._context.read())

    async def write(self, frame: bytes) -> None:
        with _broken():
            await self._context.write(frame)


def _frame(body: Any) -> bytes | None:
    return body if isinstance(body, bytes) else None


@contextlib.contextmanager
def _broken() -> Iterator[None]:
    """Translate errors of gRPC to ``StreamBroken``; a write to an ended stream raises ``InvalidStateError``."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
        raise StreamBroken(details, error.code().name, trouble(details)) from error
    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
        raise StreamBroken(str(error)) from error
