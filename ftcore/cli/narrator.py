"""Tells the person at the terminal what becomes of the job: one line per turn of its story, from the log."""

import asyncio
import sys
from typing import Any

from ftcore.errors import FtcoreError
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened, IncidentRediagnosed, IncidentResolved
from ftcore.events.job import JobFinished, JobParked
from ftcore.events.master import MasterElected
from ftcore.events.policy import PolicyConsidered
from ftcore.events.world import WorldFormed
from ftcore.ports import EventLog
from ftcore.runtime import tasks


class Narrator:
    """Follows a log and prints to stderr while it is open.

    Args:
        log: the job's log.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._opened: dict[str, int] = {}
        self._elected = 0
        self.finished: JobFinished | None = None

    async def __aenter__(self) -> "Narrator":
        start = await self._log.last_seq()
        self._task = asyncio.create_task(self._run(start))
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await tasks.end([self._task])

    async def _run(self, start: Any) -> None:
        try:
            async for event in self._log.follow(start):
                line = self._line(event)
                if line:
                    print(f"ftcore: {line}", file=sys.stderr, flush=True)
        except (FtcoreError, OSError) as error:
            print(f"ftcore: the log cannot be followed any more: {error}", file=sys.stderr)

    def _line(self, event: Event) -> str:
        data = event.data
        if isinstance(data, WorldFormed):
            return f"round {data.round}: {_count(data.nodes, 'node')}, {_count(data.size, 'rank')}"
        if isinstance(data, IncidentOpened) and event.incident:
            self._opened[event.incident] = event.time
            return f"{event.incident}: {data.fault.summary}" if data.kind == "fault" else f"{data.fault.summary}"
        if isinstance(data, IncidentRediagnosed):
            return f"{event.incident}: now taken to be: {data.fault.summary}"
        if isinstance(data, PolicyConsidered):
            if data.verdict == "pass":
                return f"{event.incident}: {data.policy} passes: {data.reason}"
            wait = f", after a pause of {data.wait_s:g} s" if data.wait_s else ""
            return f"{event.incident}: {data.policy}: {data.reason}{wait}" if data.plan == "restart" else ""
        if isinstance(data, IncidentResolved) and data.outcome != "ended":
            took = (event.time - self._opened.get(event.incident or "", event.time)) / 1e9
            lost = f", {data.steps_lost} steps lost" if data.steps_lost else ""
            return f"{event.incident}: resolved by {data.policy} in {took:.2f} s{lost}"
        if isinstance(data, JobFinished):
            self.finished = data
        if isinstance(data, JobParked):
            return f"stuck: {data.error}; workers go on; see `ftctl status`, then `ftctl resume` or `ftctl stop`"
        if isinstance(data, MasterElected):
            self._elected += 1
            return f"a new master leads (term {event.term})" if self._elected > 1 else ""
        return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
