"""gRPC plumbing: one service, generic handlers, bytes in and out. No generated code: the frames are JSON.

Targets: ``unix:/path`` on one machine, ``host:port`` between machines, the latter with TLS if the job has it.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from ftcore.runtime.wire.frames import FRAME_BYTES_MAX
from ftcore.runtime.wire.security import Security

SERVICE = "ftcore.Master"
CONNECT = f"/{SERVICE}/Connect"

_LIMITS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    # Frames are small, so no window has to grow; each probe of the bandwidth would be a ping more to write and answer.
    ("grpc.http2.bdp_probe", 0),
]
_CLIENT: list[tuple[str, Any]] = [
    *_LIMITS,
    # Signs of life are our own frames; gRPC's keepalive only ends a half-open connection that both sides believe in.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    # A channel is made for one attempt; the agent itself decides when to try the next address.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_SERVER: list[tuple[str, Any]] = [
    *_LIMITS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]

Connect = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]


def server(connect: Connect) -> grpc.aio.Server:
    """A server with our service on it; add a port and start it.

    Args:
        connect: handler of the streams of agents and operators.
    """
    made = grpc.aio.server(options=_SERVER)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Connect": grpc.stream_stream_rpc_method_handler(connect),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return made


def listen(made: grpc.aio.Server, target: str, security: Security) -> int:
    """Add a port to a server; returns its number.

    Raises:
        RuntimeError: it cannot be listened on.
        UsageError: there is no certificate to show.
    """
    credentials = security.for_server(target)
    return made.add_insecure_port(target) if credentials is None else made.add_secure_port(target, credentials)


def channel(target: str, security: Security) -> grpc.aio.Channel:
    """A channel to a master."""
    credentials = security.for_channel(target)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_CLIENT)
    name = security.tls.name if security.tls is not None else ""
    options = [*_CLIENT, ("grpc.ssl_target_name_override", name)] if name else _CLIENT
    return grpc.aio.secure_channel(target, credentials, options=options)
