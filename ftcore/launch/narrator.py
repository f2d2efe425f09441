"""Prints the progress of a job on standard error: one line for each event of its log that a user needs to see."""

import asyncio
import contextlib
import sys
import time
from typing import Any

from ftcore.engine.turn import MASTER
from ftcore.errors import FtcoreError
from ftcore.events.envelope import Event
from ftcore.ids import Seq
from ftcore.launch.hints import completed
from ftcore.ports import RetainedLog
from ftcore.replay.narration import Narration
from ftcore.runtime import tasks
from ftcore.runtime.log_context import json_line
from ftcore.runtime.log_format import is_json
from ftcore.wording import printable

RETRY_S = 1.0
"""Pause before the log is followed again after an error."""

RETRY_MAX_S = 60.0
"""Longest such pause: it doubles while the error stays the same."""


class Narrator(Narration):
    """Follows a log and prints to stderr, as an async context manager.

    Args:
        log: the job's log.
        job: its name, added to the ``ftctl`` commands in printed lines.
        store: URL of its store, added likewise; None if it is the default store of ``ftctl``.
    """

    def __init__(self, log: RetainedLog, *, job: str, store: str | None = None) -> None:
        super().__init__()
        self._log = log
        self._job = job
        self._store = store
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Narrator":
        start = await self._log.last_seq()
        self._task = asyncio.create_task(self._run(start))
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await tasks.end([self._task])

    async def _run(self, start: Seq) -> None:
        """Print lines until cancelled. A log that was deleted or restored is read anew; old events are not repeated."""
        last_error, pause_s = "", RETRY_S
        newest = printed = 0
        while True:
            try:
                async for event in self._log.follow(start):
                    newest = max(newest, event.time)
                    if event.time > printed:
                        self._print(self.line(event), event)
            except (FtcoreError, OSError) as error:
                pause_s = RETRY_S if str(error) != last_error else min(2 * pause_s, RETRY_MAX_S)
                if str(error) != last_error:
                    last_error = str(error)
                    self._print(f"the event log cannot be read, trying again: {error}")
            printed = newest
            await asyncio.sleep(pause_s)
            with contextlib.suppress(FtcoreError, OSError):
                start = (await self._log.floor()).seq

    def _print(self, line: str, event: Event | None = None) -> None:
        if not line:
            return
        text = f"ftcore: {printable(line)}"
        if is_json():
            fields: dict[str, Any] = {"job": self._job, "round": self._round or None}
            if event is not None:
                fields |= {"incident": event.incident, "seq": event.seq, "type": event.type}
                fields["node"] = _node_of(event)
            level = "warning" if event is None else "info"
            text = json_line(event.time if event is not None else time.time_ns(), level, line, **fields)
        print(text, file=sys.stderr, flush=True)

    def line(self, event: Event) -> str:
        """The line printed for an event; empty if there is none."""
        return completed(super().line(event), self._store, self._job)


def _node_of(event: Event) -> str | None:
    """The node that an event is about, or comes from; None: it is about no single node."""
    fault = getattr(event.data, "fault", None)
    named: str | None = fault.nodes[0] if fault is not None and fault.nodes else getattr(event.data, "node", None)
    return named or (event.source if event.source != MASTER else None)
