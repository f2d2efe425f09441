"""A platform of your own.

A platform launches nodes, and reports what happens to them. The master calls it when a policy replaces a node. [Write
a platform adapter](../../how-to/write-a-platform.md) has the rules and the tests of a complete one; here a machine
room is a list of names.
"""

import asyncio
from collections.abc import AsyncIterator

import ftcore
from ftcore.errors import Refused, Unreachable, UsageError


class Room:
    """An ``ftcore.Platform``: machines of one room."""

    def __init__(self, machines: int) -> None:
        self.free = machines
        self.launched: dict[str, str] = {}
        self.reports: asyncio.Queue[ftcore.PlatformEvent] = asyncio.Queue()

    async def capacity(self) -> int | None:
        return self.free

    async def launch(self, request: ftcore.LaunchRequest) -> None:
        if request.effect in self.launched:
            return  # the master asks again after a failover
        if self.free < request.count:
            raise Refused(f"{self.free} machines are free, {request.count} are needed")
        self.free -= request.count
        place = request.replaces.ordinal if request.replaces is not None else None
        self.launched[request.effect] = f"{' '.join(request.argv)} --node-rank {place}"
        self.reports.put_nowait(ftcore.CapacityChanged(free=self.free))

    async def delete(self, place: ftcore.Occupant, grace_s: float) -> None:
        self.reports.put_nowait(ftcore.NodeEnded(node=place.node, reason="powered off", pid=place.pid))

    async def cordon(self, place: ftcore.Occupant, reason: str) -> None:
        print(f"{place.node} is not used again: {reason}")

    async def watch(self) -> AsyncIterator[ftcore.PlatformEvent]:
        yield ftcore.CapacityChanged(free=self.free)
        while True:
            yield await self.reports.get()

    async def close(self) -> None:
        pass

    def announce(self, node: str) -> None:
        """What an operator of the room plans."""
        self.reports.put_nowait(ftcore.MaintenanceAnnounced(node=node, reason="new fan", within_s=60.0))
        self.reports.put_nowait(ftcore.MaintenanceOver(node=node, reason="cancelled"))
        self.reports.put_nowait(ftcore.NodeWarned(node=node, reason="new mainboard", within_s=600.0))


def opened(url: str, job: str) -> ftcore.Platform:
    """Open ``room:MACHINES``; what ``ADAPTER`` gives the master."""
    return Room(int(url.partition(":")[2]))


def check(url: str) -> None:
    if not url.partition(":")[2].isdigit():
        raise UsageError(f"{url}: expected room:MACHINES, for example room:4")


ADAPTER = ftcore.PlatformAdapter(open=opened, check=check)
"""The entry point ``room`` of the group ``ftcore.platforms`` names this object."""


async def main() -> None:
    ADAPTER.check("room:1")
    platform = ADAPTER.open("room:1", "job")
    lost = ftcore.Occupant(node="m1", pid=4711, ordinal=1)
    request = ftcore.LaunchRequest(effect="job/7/0", argv=("ftrun", "train.py"), replaces=lost)
    await platform.launch(request)
    await platform.launch(request)  # repeated: launches nothing
    await platform.delete(lost, grace_s=30.0)
    await platform.cordon(lost, "ECC errors")
    assert isinstance(platform, Room)
    print(platform.launched)
    platform.announce("m0")
    events = platform.watch()
    for _ in range(6):
        print(await anext(events))
    await platform.close()

    local = ftcore.open_platform("local:/run/user/launcher.sock", "job")  # the adapter by the URL's scheme
    try:
        await local.capacity()  # opening it did not connect
    except Unreachable as error:
        print(error)
    await local.close()


asyncio.run(main())
