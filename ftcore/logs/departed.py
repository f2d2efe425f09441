"""Whether the process behind an address is gone, told by its own kernel.

A lease is over when nobody has renewed it for long enough; a process that was killed need not be waited for so long.
Whoever wants to know holds a connection to it: the kernel closes that when the process dies, and refuses the next one
at once. A frozen process keeps its connections, and one behind a dead wire says nothing: for those the lease decides.

House rules: only who has once been reached can be found gone, so an address that is wrong, or that only others can
reach, proves nothing. Nothing is sent.
"""

import asyncio
import contextlib

REACH_S = 2.0
"""Seconds for a connection to be accepted."""

AGAIN_S = 0.1
"""Seconds between two looks at a process that closed its connection: it may only have been tired of a silent one."""

REFUSALS = 2
"""So many connections in a row must be refused."""


async def departed(address: str) -> None:
    """Return once the process that serves an address is gone; never, if that cannot be told.

    Args:
        address: gRPC target: ``host:port``, ``[v6]:port`` or ``unix:path``.
    """
    reached = False
    refused = 0
    while refused < REFUSALS:
        try:
            async with asyncio.timeout(REACH_S):
                reader, writer = await _connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            refused += 1
        except OSError:
            refused = 0
        else:
            reached, refused = True, 0
            await _closed(reader, writer)
        if not reached:
            await asyncio.Event().wait()
        await asyncio.sleep(AGAIN_S)


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise OSError(f"{address} is no host:port")
    return await asyncio.open_connection(host.strip("[]"), int(port))


async def _closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for the other end to close, or break."""
    try:
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
