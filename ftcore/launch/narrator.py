"""Tells the person at the terminal what becomes of the job: one line per turn of its story, from the log."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from ftcore.commands import CheckHealth, ReleaseNode, ReplaceNodes
from ftcore.engine.nan import NAN_TITLE
from ftcore.errors import FtcoreError
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.health import HealthJudged
from ftcore.events.incident import (
    DepartureBegun,
    DepartureDeferred,
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import DataSkipped, JobFinished, JobParked, JobRolledBack, LogContradicted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeQuarantined
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AlertRaised, AlertSent, PolicyConsidered
from ftcore.events.retention import ArchiveExtended, ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.events.worker import StandstillJudged, WorkersWentOn
from ftcore.events.world import WorldFormed
from ftcore.ids import Seq
from ftcore.launch.hints import completed
from ftcore.policies.abilities import LACKS
from ftcore.ports import EventLog
from ftcore.runtime import tasks
from ftcore.wording import (
    DONE,
    back_off,
    be,
    because,
    clean,
    format_elapsed,
    judged,
    named,
    plural,
    sentence,
    stacks_in,
)

_WISHES = {"paused": "pause", "resumed": "resume", "saved": "checkpoint"}
"""What an operator asked for, by the outcome of an incident that fulfils it."""

AGAIN_S = 1.0
"""Pause before a log that could not be followed is followed again."""


class Narrator:
    """Follows a log and prints to stderr while it is open.

    Args:
        log: the job's log.
        job: its name; commands that are named in a line get it.
        store: URL of its store, for the same purpose; None: ``ftctl`` finds it by itself.

    Attributes:
        finished: how the run ended; None before.
        formed: a world was formed.
        released: nodes that were told to leave while the job goes on, or are kept out, and have not joined again.
        on_admitted: called with the name of each node that an operator admits again.
    """

    def __init__(self, log: EventLog, *, job: str, store: str | None = None) -> None:
        self._log = log
        self._job = job
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._opened: dict[str, tuple[int, str]] = {}
        self._elected = 0
        self._archive_fails = False
        self._asked = 0
        self._taken_for = ""
        self.finished: JobFinished | None = None
        self.formed = False
        self.released: set[str] = set()
        self.on_admitted: Callable[[str], None] = lambda _node: None

    async def __aenter__(self) -> "Narrator":
        start = await self._log.last_seq()
        self._task = asyncio.create_task(self._run(start))
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await tasks.end([self._task])

    async def _run(self, start: Seq) -> None:
        """A log that was deleted or restored is followed again from where it ends then: the run's end is awaited."""
        said = ""
        while True:
            try:
                async for event in self._log.follow(start):
                    start = event.seq
                    line = self.line(event)
                    if line:
                        print(f"ftcore: {clean(line)}", file=sys.stderr, flush=True)
            except (FtcoreError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    print(f"ftcore: the log cannot be followed: {error}", file=sys.stderr)
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(FtcoreError, OSError):
                start = min(start, await self._log.last_seq())

    def line(self, event: Event) -> str:
        """What is told of an event; empty: nothing."""
        tell = self._tellers.get(type(event.data))
        line = tell(self, event, event.data) if tell is not None else ""
        named = event.incident in self._opened and event.type.startswith(("departure.", "incident.", "policy."))
        line = completed(line, self._store, self._job)
        return f"{event.incident}: {line}" if line and named else line

    # -- a line each

    def _formed(self, event: Event, data: WorldFormed) -> str:
        self.formed = True
        return f"round {data.round}: {plural(data.nodes, 'node')}, {plural(data.size, 'rank')}"

    def _incident(self, event: Event, data: IncidentOpened) -> str:
        assert event.incident is not None
        self._opened[event.incident] = (event.time, data.kind)
        self._taken_for = data.fault.summary
        if data.fault.root == self._asked:
            return ""  # the wish itself was told
        word = {"warning": "warning: ", "opportunity": "opportunity: "}.get(data.kind, "")
        return f"{word}{data.fault.summary}"

    def _rediagnosed(self, event: Event, data: IncidentRediagnosed) -> str:
        opened, _ = self._opened.get(event.incident or "", (event.time, ""))
        self._opened[event.incident or ""] = (opened, data.kind)
        before, self._taken_for = self._taken_for, data.fault.summary
        if data.fault.root == self._asked or before == data.fault.summary:
            return ""
        return f"now taken to be: {data.fault.summary}"

    def _nan(self, event: Event, data: AlertRaised) -> str:
        """An alert of its own; those of incidents and of the run's end say what is told here anyway."""
        return data.text if data.title.endswith(NAN_TITLE) else ""

    def _considered(self, event: Event, data: PolicyConsidered) -> str:
        _, kind = self._opened.get(event.incident or "", (0, ""))
        if data.verdict == "pass" and kind == "fault" and data.reason.startswith(LACKS):
            return ""  # as it would at every fault; `ftctl explain` has it
        if data.verdict == "pass":
            return f"{data.policy} passes: {data.reason}"
        takes = f"{data.policy}: {data.reason}{back_off(data.wait_s, ', ')}"
        return takes if data.plan in ("restart", "in_place") else ""

    def _deferred(self, event: Event, data: DepartureDeferred) -> str:
        return f"{sentence(data)}, for up to {format_elapsed(data.patience_s)}"

    def _continued(self, event: Event, data: IncidentContinued) -> str:
        return sentence(data) if data.outcome == "saved" else ""

    def _resolved(self, event: Event, data: IncidentResolved) -> str:
        if data.outcome == "ended":
            return ""
        opened, _ = self._opened.get(event.incident or "", (event.time, ""))
        took = (event.time - opened) / 1e9
        fulfilled = DONE.get(_WISHES.get(data.outcome, ""))
        lost = f", {plural(data.steps_lost, 'step')} lost" if data.steps_lost else ""
        return fulfilled or f"resolved by {data.policy} in {took:.2f} s{lost}"

    def _exhausted(self, event: Event, data: IncidentExhausted) -> str:
        _, kind = self._opened.get(event.incident or "", (0, ""))
        return "" if kind in ("fault", "") else "no policy takes it; training goes on as before"

    def _commanded(self, event: Event, data: OperatorCommanded) -> str:
        self._asked = event.seq
        if data.command == "admit":
            self.released.discard(data.node)
            self.on_admitted(data.node)
        whom = f" of {data.node}" if data.node else ""
        return f"{data.who} asks for {data.command}{whom}{because(data.why)}"

    def _ordered(self, event: Event, data: ActionOrdered) -> str:
        if isinstance(data.command, ReplaceNodes):
            return sentence(data)
        if isinstance(data.command, CheckHealth) and data.command.stage == 1:
            nodes = data.nodes or tuple(node for group in data.command.groups for node in group)
            what = f"checked before round {data.command.round}: devices, links, configuration"
            return f"{named(nodes)} {be(nodes)} {what}; up to {format_elapsed(data.command.within_s)} a stage"
        if not isinstance(data.command, ReleaseNode) or data.command.outcome != "released":
            return ""
        self.released.update(data.nodes)
        return sentence(data)

    def _joined(self, event: Event, data: NodeJoined) -> str:
        self.released.discard(data.node)
        return ""

    def _quarantined(self, event: Event, data: NodeQuarantined) -> str:
        self.released.add(data.node)
        return sentence(data)

    def _stands(self, event: Event, data: StandstillJudged) -> str:
        if data.verdict == "hang":
            return f"stacks of the workers: {data.stacks}" if data.stacks else ""  # the incident tells the rest
        if data.cause == "finished":
            return f"{data.message}; workers are left alone until the ceiling for hangs"
        return f"no step is completed, workers are left alone: {data.message}{stacks_in(data)}"

    def _judged(self, event: Event, data: HealthJudged) -> str:
        if not (data.ill or data.links or data.apart or data.differing or data.note):
            return f"{plural(data.nodes, 'node')} checked: all healthy"
        return f"health: {judged(data)}"

    def _alerted(self, event: Event, data: AlertSent) -> str:
        return "" if data.ok else sentence(data)

    def _as_everywhere(self, event: Event, data: object) -> str:
        return sentence(data)

    def _not_archived(self, event: Event, data: ArchiveFailed) -> str:
        self._archive_fails = True
        return f"the log is not archived, so nothing is taken out of it: {data.error}"

    def _archived(self, event: Event, data: ArchiveExtended) -> str:
        failed, self._archive_fails = self._archive_fails, False
        return f"the log is archived in {data.archive} again" if failed else ""

    def _low_on_space(self, event: Event, data: SpaceRanLow) -> str:
        return f"{sentence(data)}; training goes on, make room"

    def _finished(self, event: Event, data: JobFinished) -> str:
        self.finished = data
        return ""

    def _parked(self, event: Event, data: JobParked) -> str:
        return f"stuck: {data.error}; workers go on; see `ftctl status`, then `ftctl resume` or `ftctl stop`"

    def _contradicted(self, event: Event, data: LogContradicted) -> str:
        return f"stuck: {data.reason}"

    def _leads(self, event: Event, data: MasterElected) -> str:
        self._elected += 1
        return f"a new master leads (term {event.term})" if self._elected > 1 else ""

    _tellers: ClassVar[dict[type[Any], Callable[["Narrator", Event, Any], str]]] = {
        WorldFormed: _formed,
        IncidentOpened: _incident,
        IncidentRediagnosed: _rediagnosed,
        AlertRaised: _nan,
        PolicyConsidered: _considered,
        DepartureDeferred: _deferred,
        DepartureBegun: _as_everywhere,
        IncidentEscalated: _as_everywhere,
        IncidentContinued: _continued,
        IncidentResolved: _resolved,
        IncidentExhausted: _exhausted,
        OperatorCommanded: _commanded,
        ActionOrdered: _ordered,
        NodeJoined: _joined,
        NodeQuarantined: _quarantined,
        HealthJudged: _judged,
        StandstillJudged: _stands,
        WorkersWentOn: _as_everywhere,
        JobRolledBack: _as_everywhere,
        DataSkipped: _as_everywhere,
        AlertSent: _alerted,
        ArchiveFailed: _not_archived,
        ArchiveExtended: _archived,
        SpaceRanLow: _low_on_space,
        SpaceRecovered: _as_everywhere,
        JobFinished: _finished,
        JobParked: _parked,
        LogContradicted: _contradicted,
        MasterElected: _leads,
    }
