"""The store host on the job's first node: serves one TCPStore per round, on a free or a requested port.

A round never reuses the store of another one, because late workers of an ended round would read and write its keys. The
stores of the last two rounds are kept, so that workers do not fail on a closed socket before they are stopped. A store
requested on the port of an older store replaces it.

It is forked from the warm process, which has imported torch unless ``--preload`` leaves it out. If it does, a store
listens at once, but starts with its first client, who waits in the listener's queue. A job without torch has no use for
a store, and would pay a second or two of processor time and 200 MB of memory for it.

A crash of the store host costs one round, not the agent.
"""

import contextlib
import datetime
import importlib.util
import ipaddress
import os
import resource
import select
import socket
import sys
from typing import Any

from ftcore.runtime.warm import protocol

ROUNDS_KEPT = 2
_CONNECT_TIMEOUT = datetime.timedelta(seconds=10)


class _HostedStore:
    """The store of a round, and the socket on which its clients find it.

    Args:
        host, port: as for ``open_server``.

    Raises the errors of torch, and ``ModuleNotFoundError`` without it.
    """

    def __init__(self, host: str, port: int) -> None:
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError("No module named 'torch'")
        self.host, self.listener = host, _listen(host, port)
        self.port = int(self.listener.getsockname()[1])
        self._store: Any = None
        if "torch" in sys.modules:
            self.start()

    @property
    def has_started(self) -> bool:
        """Whether clients are served."""
        return self._store is not None

    def start(self) -> None:
        """Serve the clients."""
        self._store = _served(self.host, self.listener)


def serve(channel: socket.socket) -> None:
    """Open stores on request until the agent ends; never returns."""
    stores: dict[int, _HostedStore] = {}
    with contextlib.suppress(OSError, ValueError):  # each rank is a connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    protocol.send(channel, {"serving": os.getpid()})
    while True:
        _start_asked(channel, stores)
        message, _ = protocol.receive(channel)
        if message is None:
            os._exit(0)
        try:
            round_ = int(message["open"])
            wanted = int(message["port"])
            for old in [kept for kept, store in stores.items() if kept == round_ or store.port == wanted]:
                del stores[old]
            stores[round_] = _HostedStore(str(message["host"]), wanted)
            for old in sorted(stores)[:-ROUNDS_KEPT]:
                del stores[old]
            reply: dict[str, Any] = {"port": stores[round_].port}
        except Exception as error:  # torch has its own error types
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        protocol.send(channel, reply)


def _start_asked(channel: socket.socket, stores: dict[int, _HostedStore]) -> None:
    """Start stores when their first clients connect, until the agent sends a message."""
    while waiting := {store.listener.fileno(): store for store in stores.values() if not store.has_started}:
        poll = select.poll()
        for descriptor in (channel.fileno(), *waiting):
            poll.register(descriptor, select.POLLIN)
        readable = {descriptor for descriptor, _ in poll.poll()}
        for descriptor in readable & waiting.keys():
            _start_or_end(waiting[descriptor])
        if channel.fileno() in readable:
            return


def _start_or_end(store: _HostedStore) -> None:
    """Start a store; if that fails, end the process: the agent reports that its rounds have lost their stores."""
    try:
        store.start()
    except Exception as error:
        print(f"ftcore: the store host cannot serve a store: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def open_server(host: str, port: int = 0) -> tuple[Any, int]:
    """Serve a TCPStore until it is garbage-collected; returns it and its port.

    Args:
        host: name or address of this machine for the workers.
        port: requested port; a free one is used for 0 or if the port is in use.

    Raises the errors of torch.
    """
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    return _served(host, listener), port


def _served(host: str, listener: socket.socket) -> Any:
    """Serve a TCPStore on a socket, which it takes over."""
    from torch.distributed import TCPStore

    try:
        store = TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=_CONNECT_TIMEOUT,
            master_listen_fd=listener.fileno(),
        )
    except BaseException:
        listener.close()
        raise
    listener.detach()  # torch closes it with the store
    return store


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the port, or on a free one."""
    socket.getaddrinfo(host, None)  # torch would retry an unknown name until its timeout
    try:
        return _bind(host, port)
    except OSError:
        return _bind(host, 0)


def _bind(host: str, port: int) -> socket.socket:
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
