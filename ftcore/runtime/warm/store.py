"""The store host on the job's first node: serves one TCPStore per round, on a free or a requested port.

A round never reuses the store of another one, because late workers of an ended round would read and write its keys. The
stores of the last two rounds are kept, so that workers do not fail on a closed socket before they are stopped. A store
requested on the port of an older store replaces it.

It is forked from the warm process, so torch is loaded already. A crash of it costs one round, not the agent.
"""

import contextlib
import datetime
import ipaddress
import os
import resource
import socket
from typing import Any

from ftcore.runtime.warm import protocol

ROUNDS_KEPT = 2
_CONNECT_TIMEOUT = datetime.timedelta(seconds=10)


def serve(channel: socket.socket) -> None:
    """Open stores on request until the agent ends; never returns."""
    stores: dict[int, tuple[Any, int]] = {}
    with contextlib.suppress(OSError, ValueError):  # each rank is a connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    protocol.send(channel, {"serving": os.getpid()})
    while True:
        message, _ = protocol.receive(channel)
        if message is None:
            os._exit(0)
        try:
            round_ = int(message["open"])
            wanted = int(message["port"])
            for old in [kept for kept, (_, port) in stores.items() if kept == round_ or port == wanted]:
                del stores[old]
            stores[round_] = open_server(str(message["host"]), wanted)
            for old in sorted(stores)[:-ROUNDS_KEPT]:
                del stores[old]
            reply: dict[str, Any] = {"port": stores[round_][1]}
        except Exception as error:  # torch has its own error types
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        protocol.send(channel, reply)


def open_server(host: str, port: int = 0) -> tuple[Any, int]:
    """Serve a TCPStore until it is garbage-collected; returns it and its port.

    Args:
        host: name or address of this machine for the workers.
        port: requested port; a free one is used for 0 or if the port is in use.

    Raises the errors of torch.
    """
    from torch.distributed import TCPStore

    socket.getaddrinfo(host, None)  # torch would retry an unknown name until its timeout
    try:
        listener = _listen(host, port)
    except OSError:
        listener = _listen(host, 0)
    port = listener.getsockname()[1]
    try:
        store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=_CONNECT_TIMEOUT,
            master_listen_fd=listener.fileno(),
        )
    except BaseException:
        listener.close()
        raise
    listener.detach()  # torch closes it with the store
    return store, port


def _listen(host: str, port: int) -> socket.socket:
    """Listen on one address if ``host`` is a local address; otherwise on all addresses.

    ``/etc/hosts`` often maps a machine's own name to a loopback address that other nodes cannot reach.
    """
    try:
        local = "127.0.0.1" if host == "localhost" else str(ipaddress.ip_address(host))
        return socket.create_server(
            (local, port), family=socket.AF_INET6 if ":" in local else socket.AF_INET, backlog=1024
        )
    except (ValueError, OSError):  # a name, or not an address of this machine
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=1024)
