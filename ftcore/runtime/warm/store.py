"""The store host: serves one TCPStore per round, each on a free port or on the one asked for, for the job's first node.

A round never re-uses the store of another: late workers of a dead round would read and write keys of the new one. The
stores of the last two rounds are kept, so that workers that are about to be stopped see no closed socket first. A store
that is asked for on the port of an older one takes its place.

It is forked from the warm process, so torch is loaded already, and a crash of it costs one round, not the agent.
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
    """Open stores on request until the agent is gone; never returns."""
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
        except Exception as error:  # torch raises its own types for a name that does not resolve or a refused socket
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        protocol.send(channel, reply)


def open_server(host: str, port: int = 0) -> tuple[Any, int]:
    """Serve a TCPStore for as long as it is referred to; returns it and its port (a free one for 0 or one in use).

    Raises what torch raises.
    """
    from torch.distributed import TCPStore

    socket.getaddrinfo(host, None)  # torch would try a name that nobody knows for as long as it may
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
    """Listen on one address if the host is given as one that is local; for a name, on all: ``/etc/hosts`` often maps a
    machine's own name to a loopback address that no other node can reach."""
    try:
        local = "127.0.0.1" if host == "localhost" else str(ipaddress.ip_address(host))
        return socket.create_server(
            (local, port), family=socket.AF_INET6 if ":" in local else socket.AF_INET, backlog=1024
        )
    except (ValueError, OSError):  # a name, or an address that is not of this machine
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=1024)
