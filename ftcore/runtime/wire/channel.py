"""gRPC plumbing: one service, generic handlers, bytes in and out. No generated code: the frames are JSON.

Targets are gRPC's: ``unix:/path`` on one machine, ``host:port`` between machines.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ftcore.runtime.wire.frames import FRAME_BYTES_MAX

SERVICE = "ftcore.Master"
CONNECT = f"/{SERVICE}/Connect"
COMMAND = f"/{SERVICE}/Command"

_LIMITS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
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
CommandHandler = Callable[[bytes, Any], Awaitable[bytes]]


def server(connect: Connect, command: CommandHandler) -> grpc.aio.Server:
    """A server with our service on it; add a port and start it.

    Args:
        connect: handler of agents' streams.
        command: handler of operators' commands.
    """
    made = grpc.aio.server(options=_SERVER)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Connect": grpc.stream_stream_rpc_method_handler(connect),
        "Command": grpc.unary_unary_rpc_method_handler(command),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return made


def channel(target: str) -> grpc.aio.Channel:
    """A channel to a master."""
    return grpc.aio.insecure_channel(target, options=_CLIENT)
