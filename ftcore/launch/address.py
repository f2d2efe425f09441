"""The address at which other nodes reach this host."""

import contextlib
import socket

from ftcore.errors import UsageError
from ftcore.logs.stores import endpoints

LOCALHOST = "127.0.0.1"
_LOOPBACK = ("127.", "::1")


def on_this_machine(store: str) -> bool:
    """Whether the store at a URL, and so every node of its jobs, is on this machine."""
    return store.startswith("sqlite:")


def address_in(store: str, *, alone: bool) -> str:
    """The address of this host for the jobs in a store.

    Args:
        store: the store's URL.
        alone: the job has no other host.
    """
    return LOCALHOST if alone or on_this_machine(store) else own_address(store)


def own_address(store: str) -> str:
    """The address of this host that other hosts most likely reach.

    The interface with the route to the store comes first: it is on the nodes' network. The host name comes second,
    because on many hosts it resolves to a loopback address.
    """
    for host, port in endpoints(store):
        with contextlib.suppress(OSError):
            family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing; the kernel only selects the route
                found = str(probe.getsockname()[0])
            if not found.startswith(_LOOPBACK):
                return found
    name = socket.getfqdn()
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return LOCALHOST
    return next((str(info[4][0]) for info in infos if not str(info[4][0]).startswith(_LOOPBACK)), "") or name


def reachable(address: str | None) -> str:
    """``--local-addr`` without the brackets of an IPv6 address.

    Raises:
        UsageError: this host cannot resolve the name, so no worker could connect to it.
    """
    found = (address or "").strip("[]")
    if found:
        try:
            socket.getaddrinfo(found, None)
        except (socket.gaierror, UnicodeError) as error:
            if getattr(error, "errno", None) != socket.EAI_AGAIN:
                raise UsageError(
                    f"--local-addr: {found!r} does not resolve on this host; expected a name or address at which "
                    "other nodes reach this host"
                ) from error
    return found
