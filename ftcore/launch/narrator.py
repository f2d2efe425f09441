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
from ftcore.events.upkeep import ArchiveExtended, ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.events.worker import StandstillJudged, WorkersWentOn
from ftcore.events.world import WorldFormed
from ftcore.ids import Seq
from ftcore.launch.hints import completed
from ftcore.policies.abilities import LACKS
from ftcore.policies.words import NAMES_SHOWN, clean, duration, judged, plural
from ftcore.ports import EventLog
from ftcore.runtime import tasks

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
        wait = f", after a pause of {data.wait_s:g} s" if data.wait_s else ""
        return f"{data.policy}: {data.reason}{wait}" if data.plan in ("restart", "in_place") else ""

    def _deferred(self, event: Event, data: DepartureDeferred) -> str:
        leave = "leaves once its replacement is" if len(data.nodes) == 1 else "leave once their replacements are"
        patience = duration(data.patience_s)
        return f"{', '.join(data.nodes[:NAMES_SHOWN])} {leave} ready, training goes on; waits up to {patience}"

    def _departed(self, event: Event, data: DepartureBegun) -> str:
        return f"{_names(data.ready)} ready" if data.ready else "no other node is ready in time"

    def _escalated(self, event: Event, data: IncidentEscalated) -> str:
        return f"{data.policy} did not succeed: {data.reason}"

    def _continued(self, event: Event, data: IncidentContinued) -> str:
        return f"{data.policy} has saved the state; the next policies are asked" if data.outcome == "saved" else ""

    def _resolved(self, event: Event, data: IncidentResolved) -> str:
        if data.outcome == "ended":
            return ""
        opened, _ = self._opened.get(event.incident or "", (event.time, ""))
        took = (event.time - opened) / 1e9
        fulfilled = {
            "paused": "training waits at a step boundary; go on with: ftctl resume",
            "resumed": "training goes on",
            "saved": "a checkpoint is saved",
        }.get(data.outcome)
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
        why = f": {data.why}" if data.why else ""
        return f"{data.who} asks for {data.command}{f' of {data.node}' if data.node else ''}{why}"

    def _ordered(self, event: Event, data: ActionOrdered) -> str:
        if isinstance(data.command, ReplaceNodes):
            return f"the platform is to launch another for {', '.join(data.command.nodes[:NAMES_SHOWN])}"
        if isinstance(data.command, CheckHealth) and data.command.stage == 1:
            nodes = data.nodes or tuple(node for group in data.command.groups for node in group)
            what = f"checked before round {data.command.round}: devices, links, configuration"
            return f"{_names(nodes)} {what}; up to {duration(data.command.within_s)} a stage"
        if not isinstance(data.command, ReleaseNode) or data.command.outcome != "released":
            return ""
        self.released.update(data.nodes)
        return f"{_names(data.nodes)} released: {data.command.reason}"

    def _joined(self, event: Event, data: NodeJoined) -> str:
        self.released.discard(data.node)
        return ""

    def _quarantined(self, event: Event, data: NodeQuarantined) -> str:
        self.released.add(data.node)
        return f"{data.node} is kept out of this job from now on: {data.reason}"

    def _stands(self, event: Event, data: StandstillJudged) -> str:
        if data.verdict == "hang":
            return f"stacks of the workers: {data.stacks}" if data.stacks else ""  # the incident tells the rest
        if data.cause == "finished":
            return f"{data.message}; workers are left alone until the ceiling for hangs"
        stacks = f"; stacks: {data.stacks}" if data.stacks else ""
        return f"no step is completed, workers are left alone: {data.message}{stacks}"

    def _went_on(self, event: Event, data: WorkersWentOn) -> str:
        return f"steps are completed again, after {duration(data.gap_s)}"

    def _judged(self, event: Event, data: HealthJudged) -> str:
        if not (data.ill or data.links or data.apart or data.differing or data.note):
            return f"{plural(data.nodes, 'node')} checked: all healthy"
        return f"health: {judged(data)}"

    def _rolled_back(self, event: Event, data: JobRolledBack) -> str:
        return f"training goes back to the checkpoint of step {data.step}: {data.reason}"

    def _skipped(self, event: Event, data: DataSkipped) -> str:
        return f"{data.amount} {data.unit} of data after step {data.step} are left out: {data.reason}"

    def _alerted(self, event: Event, data: AlertSent) -> str:
        return "" if data.ok else f"people could not be told (alert of event {data.alert}): {data.error}"

    def _not_archived(self, event: Event, data: ArchiveFailed) -> str:
        self._archive_fails = True
        return f"the log is not archived, so nothing is taken out of it: {data.error}"

    def _archived(self, event: Event, data: ArchiveExtended) -> str:
        failed, self._archive_fails = self._archive_fails, False
        return f"the log is archived in {data.archive} again" if failed else ""

    def _low_on_space(self, event: Event, data: SpaceRanLow) -> str:
        return f"the log's store {'was full' if data.full else 'is nearly full'}; training goes on, make room"

    def _has_space(self, event: Event, data: SpaceRecovered) -> str:
        return "the log's store has room again"

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
        DepartureBegun: _departed,
        IncidentEscalated: _escalated,
        IncidentContinued: _continued,
        IncidentResolved: _resolved,
        IncidentExhausted: _exhausted,
        OperatorCommanded: _commanded,
        ActionOrdered: _ordered,
        NodeJoined: _joined,
        NodeQuarantined: _quarantined,
        HealthJudged: _judged,
        StandstillJudged: _stands,
        WorkersWentOn: _went_on,
        JobRolledBack: _rolled_back,
        DataSkipped: _skipped,
        AlertSent: _alerted,
        ArchiveFailed: _not_archived,
        ArchiveExtended: _archived,
        SpaceRanLow: _low_on_space,
        SpaceRecovered: _has_space,
        JobFinished: _finished,
        JobParked: _parked,
        LogContradicted: _contradicted,
        MasterElected: _leads,
    }


def _names(several: tuple[str, ...]) -> str:
    more = len(several) - NAMES_SHOWN
    names = ", ".join(several[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{names} {'is' if len(several) == 1 else 'are'}"
