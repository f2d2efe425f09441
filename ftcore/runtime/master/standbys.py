"""The addresses of a leader's standbys.

An agent whose host is partitioned from the log's store only cannot look up the leader there. So standbys announce their
addresses to the leader, and the leader sends them to the agents. An agent that has lost its master and cannot reach the
store connects to the standbys: one of them leads by then, or redirects to the leader.

House rule: an address is only a hint. The process that serves there authenticates itself as every master does.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ftcore.errors import FtcoreError
from ftcore.ids import seconds
from ftcore.ports import Transport
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.client import announce_standby
from ftcore.runtime.wire.security import Security
from ftcore.states.model import MasterState

ANNOUNCE_S = 2.0
"""Interval at which a standby announces its address to the leader."""

FORGET_S = 10.0
"""An address is dropped this long after its last announcement."""

STANDBYS_MAX = 16
"""Limit of addresses that are sent to agents."""


class Standbys:
    """The addresses known to a leader."""

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the standbys, sorted."""
        return tuple(sorted(self._heard))

    def heard(self, address: str, mono_ns: int) -> bool:
        """Note an announcement; returns whether the address is new."""
        new = address not in self._heard
        if new and len(self._heard) >= STANDBYS_MAX:
            return False
        self._heard[address] = mono_ns
        return new

    def forget(self, mono_ns: int) -> bool:
        """Drop silent standbys; returns whether there were any."""
        silent = [address for address, heard in self._heard.items() if mono_ns - heard > seconds(FORGET_S)]
        for address in silent:
            del self._heard[address]
        return bool(silent)


async def announce(
    transport: Transport, job: str, address: str, security: Security, leader: Callable[[], MasterState | None]
) -> None:
    """Announce this standby's address to the leader at intervals; never returns.

    Args:
        transport: connects to the leader.
        job: the job.
        address: the standby's address.
        security: credentials for the leader.
        leader: returns the latest master in the log.
    """
    while True:
        known = leader()
        if known is not None and known.address != address:
            with contextlib.suppress(FtcoreError):
                frame = frames.Standby(protocol=frames.PROTOCOL, job=job, address=address)
                await announce_standby(transport, known.address, frame, security=security, timeout_s=ANNOUNCE_S)
        await asyncio.sleep(ANNOUNCE_S)
