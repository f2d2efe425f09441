"""On each node, beside the agent: ends the job in order if the host of the batch script is lost.

With ``--no-kill``, a job lives on without its batch script: nothing would stop it before the time limit, and nothing
requeue it. Slurm requeues it when it is asked to. The first nodes look often, later ones rarely: a controller must not
serve a thousand of them. Who sees the loss twice acts:

| the log | then |
|---|---|
| was on the lost host, in the job's own etcd | the job is requeued at once: without its log it cannot recover |
| is elsewhere | training goes on; it is stopped in order and requeued before the time limit, canceled after its end |

A job that Slurm does not requeue is canceled: its nodes would do nothing until the time limit.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ftcore.errors import FtcoreError
from ftcore_slurm import control
from ftcore_slurm.ending import JobEnding, say

POLL_S: Final = 10.0
"""Seconds between two looks of the first nodes; the others' intervals grow by half of it with each place."""

LOOKS: Final = 2
"""In a row, before a deputy acts."""

ENDED: Final = ("succeeded", "failed", "stopped")


class Deputy:
    """One node's.

    Args:
        ending: how the job ends.
        place: the node's place in the step, from 0.
        lead_s: seconds before the time limit at which the job is stopped.
        owns_log: the job's log is on the host of the batch script.
    """

    def __init__(self, ending: JobEnding, place: int, lead_s: float, *, owns_log: bool) -> None:
        self._ending, self._lead_s, self._owns_log = ending, lead_s, owns_log
        self._poll_s = POLL_S * (1 + max(0, place - 1) / 2)
        self._missed = 0

    async def run(self) -> int:
        """Look until Slurm ends this process."""
        batch_host = ""
        while True:
            try:
                nodes = await control.nodes_of(self._ending.number)
                batch_host = batch_host or (await control.incarnation_of(self._ending.number))[1]
                is_lost = bool(nodes) and batch_host not in nodes
                self._missed = self._missed + 1 if is_lost else 0
                if self._missed >= LOOKS:
                    await self._act(batch_host)
            except FtcoreError:
                pass  # the controller is away: nothing can be asked for
            await asyncio.sleep(self._poll_s)

    async def _act(self, lost: str) -> None:
        why = f"the host of its batch script, {lost}, is lost"
        if self._owns_log:
            await self._requeue(why, {}, last_resort=True)
            return
        status = await self._ending.status()
        if status.get("state") in ENDED:
            say(f"{why}, and the job has ended: {status['state']}")
            await control.ask("scancel", self._ending.number)
            return
        left_s = await control.seconds_left(self._ending.number)
        if left_s is not None and left_s <= self._lead_s:
            await self._ending.stop(f"{left_s:.0f} s before its time limit", self._lead_s / 2)
            await self._requeue(f"its time limit; {why}", await self._ending.status() or status, last_resort=False)

    async def _requeue(self, why: str, status: Mapping[str, Any], *, last_resort: bool) -> None:
        if not await self._ending.requeue(why, status, POLL_S, last_resort=last_resort):
            await control.ask("scancel", self._ending.number)
