"""Has Slurm drain the nodes that a job has quarantined or lost, with the reason, where this user may do that.

A lost node is drained if it neither comes back nor has a slurmd that can be reached: a job whose agents ended on many
nodes does not take them from others.
"""

import asyncio
import logging
from typing import Any, Final

from ftcore import Event, open_log
from ftcore.errors import FtcoreError
from ftcore_slurm import control
from ftcore_slurm.ending import say
from ftcore_slurm.platform import host_of

RETURN_S: Final = 30.0
"""How long a lost node has to come back, as itself or as an agent that was started anew on its host."""

RETRY_S: Final = 5.0

logger = logging.getLogger(__name__)


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
        self._seq: Any = 0

    async def run(self) -> None:
        """Follow it until cancelled; a log that is away is tried again."""
        try:
            while True:
                try:
                    await self._follow()
                except FtcoreError as error:
                    logger.debug("the log cannot be followed: %s", error)
                await asyncio.sleep(RETRY_S)
        finally:
            for task in self._waiting.values():
                task.cancel()

    async def _follow(self) -> None:
        log = await open_log(self._store, self._job)
        try:
            self._seq = self._seq or await log.last_seq()
            async for event in log.follow(self._seq):
                self._seq = event.seq
                self._handle(event)
        finally:
            await log.close()

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
            if unless_reachable and await control.is_reachable(host):
                return
            await control.drain(host, why)
            say(f"Slurm drains {host}: {why}")
        except FtcoreError as error:
            say(f"Slurm does not drain {host}: {error}")
