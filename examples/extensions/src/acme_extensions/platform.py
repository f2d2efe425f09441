"""``acme:MACHINES``: the machines of a room, as nodes."""

import asyncio
from collections.abc import AsyncIterator

from ftcore import CapacityChanged, LaunchRequest, Occupant, Platform, PlatformAdapter, PlatformEvent
from ftcore.errors import Refused, UsageError


class Room:
    """A room without spare machines reports its capacity and declines every request."""

    def __init__(self, machines: int) -> None:
        self._machines = machines

    async def capacity(self) -> int | None:
        """Machines that are free."""
        return self._machines

    async def launch(self, request: LaunchRequest) -> None:
        """Decline."""
        raise Refused("this room starts no machine by itself")

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """Nothing to do: a node that was given up ends by itself."""

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Nothing to do: no machine is launched."""

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """Report the capacity, which never changes."""
        yield CapacityChanged(free=self._machines)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to release."""


def machines(url: str) -> int:
    """The number in the URL."""
    text = url.partition(":")[2]
    if not text.isdigit():
        raise UsageError(f"{url}: expected acme:MACHINES, for example acme:4")
    return int(text)


def opened(url: str, job: str) -> Platform:
    """Open the room of a job."""
    return Room(machines(url))


ADAPTER = PlatformAdapter(open=opened, check=machines)
