"""Has Slurm drain the nodes that a job has quarantined or lost, with the reason, where this user may do that.

A lost node is drained if it neither comes back nor has a slurmd that can be reached: a job whose agents ended on many
nodes does not take them from others.
"""

import asyncio
from typing import Final

from ftcore import Event
from ftcore.errors import FtcoreError
from ftcore_slurm import control
from ftcore_slurm.ending import say
from ftcore_slurm.environment import host_of
from ftcore_slurm.following import new_events

RETURN_S: Final = 30.0
"""How long a lost node has to come back, as itself or as an agent that was started anew on its host."""


class NodeDrains:
    """Follows a job's log.

    Args:
        store: URL of the log's store.
        job: the job's name.
    """

    def __init__(self, store: str, job: str) -> None:
        self._store, self._job = store, job
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._why: dict[str, str] = {}

    async def run(self) -> None:
        """Follow it until cancelled."""
        try:
            async for event in new_events(self._store, self._job):
                self._handle(event)
        finally:
            for task in self._waiting.values():
                task.cancel()

    def _handle(self, event: Event) -> None:
        node = getattr(event.data, "node", "")
        host = host_of(node) if node else ""
        if event.type == "node.joined" and host in self._waiting:
            self._waiting.pop(host).cancel()
        elif event.type == "operator.commanded" and event.data.why:
            self._why[node] = f": {event.data.why}"
        elif event.type == "node.quarantined":
            self._wait(host, event.data.reason + self._why.pop(node, ""), 0.0)
        elif event.type == "node.lost":
            self._wait(host, f"lost: {event.data.reason}", RETURN_S, unless_reachable=True)

    def _wait(self, host: str, why: str, wait_s: float, *, unless_reachable: bool = False) -> None:
        if host in self._waiting:
            self._waiting.pop(host).cancel()
        work = self._drain(host, f"ftcore {self._job}: {why}", wait_s, unless_reachable)
        self._waiting[host] = asyncio.create_task(work)

    async def _drain(self, host: str, why: str, wait_s: float, unless_reachable: bool) -> None:
        await asyncio.sleep(wait_s)
        try:
            if unless_reachable and not await control.unreachable([host]):
                return
            await control.drain(host, why)
            say(f"Slurm drains {host}: {why}")
        except FtcoreError as error:
            say(f"Slurm does not drain {host}: {error}")
