"""Failure detector for the process that serves an address, faster than the expiry of its lease.

A candidate keeps a connection open to the leader. When the leader's process dies, its kernel closes the connection and
refuses the next one. A frozen process, or one behind a network partition, keeps its connections: then only the lease
decides.

An address that was never reached proves nothing: it may be wrong, or unreachable from here. Nothing is sent.
"""

import asyncio
import contextlib

REACH_S = 2.0
"""Connection timeout in seconds."""

AGAIN_S = 0.1
"""Seconds before reconnecting: a live server, too, may close an idle connection."""

REFUSALS = 2
"""Consecutive refused connections after which the process counts as dead."""


async def departed(address: str) -> None:
    """Wait until the process that serves an address has ended; waits forever if that cannot be detected.

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
        raise OSError(f"{address} is not host:port")
    return await asyncio.open_connection(host.strip("[]"), int(port))


async def _closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the connection ends."""
    try:
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
