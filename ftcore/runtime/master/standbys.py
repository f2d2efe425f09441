"""The standbys of a leader: where they serve, as agents are told.

An agent whose host is cut off from the log's store, and from nothing else, cannot ask it who leads. So a standby tells
the leader its address now and then, the leader tells the agents, and an agent that has lost its master and finds no
store calls the standbys: one of them leads by then, or knows who does.

House rule: an address is only a place to ask. Who serves there proves itself as every master does.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ftcore.errors import FtcoreError
from ftcore.ids import seconds
from ftcore.ports import Transport
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.client import stand_by
from ftcore.runtime.wire.security import Security
from ftcore.states.model import MasterState

ANNOUNCE_S = 2.0
"""How often a standby tells the leader its address."""

FORGET_S = 10.0
"""An address that was not told for so long is not handed on any more."""

STANDBYS_MAX = 16
"""More addresses help no agent."""


class Standbys:
    """The addresses that a leader knows."""

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where standbys serve, sorted."""
        return tuple(sorted(self._heard))

    def heard(self, address: str, mono_ns: int) -> bool:
        """A standby told its address; returns whether it is new."""
        new = address not in self._heard
        if new and len(self._heard) >= STANDBYS_MAX:
            return False
        self._heard[address] = mono_ns
        return new

    def forget(self, mono_ns: int) -> bool:
        """Drop those that are silent; returns whether any was."""
        gone = [address for address, heard in self._heard.items() if mono_ns - heard > seconds(FORGET_S)]
        for address in gone:
            del self._heard[address]
        return bool(gone)


async def announce(
    transport: Transport, job: str, address: str, security: Security, leader: Callable[[], MasterState | None]
) -> None:
    """Tell whoever leads, again and again, where this standby serves; never ends by itself.

    Args:
        transport: how the leader is reached.
        job: the job.
        address: the address at which this standby serves.
        security: what is shown to the leader.
        leader: who led last, as the log says.
    """
    while True:
        known = leader()
        if known is not None and known.address != address:
            with contextlib.suppress(FtcoreError):
                word = frames.Standby(protocol=frames.PROTOCOL, job=job, address=address)
                await stand_by(transport, known.address, word, security=security, timeout_s=ANNOUNCE_S)
        await asyncio.sleep(ANNOUNCE_S)
