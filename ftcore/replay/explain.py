"""Incidents, read from the event log: what happened, each decision and its reason, durations of phases, lost steps.

Phases, in seconds. Each begins where the previous one ends:

| phase | ends with |
|---|---|
| ``detect`` | the fact that opened the incident; begins with the fault, or the last step (``phases.py``) |
| ``decide`` | the fact that brought the verdict ``take`` of the plan that held |
| ``wait`` | the fact after which replacements were ready for the nodes that leave; training went on meanwhile |
| ``stop`` | the fact after which no worker of the old round ran, or all waited: ``round.planned``, or the job's end |
| ``rendezvous`` | the fact that fixed the new world (``world.formed``); back-off and waiting for nodes included |
| ``start`` | the fact after which every worker ran (``round.started``), or had obeyed in place (``plan.applied``) |
| ``first_step`` | the fact that resolved it by a completed step; begins where ``start`` ends, loading included |
| ``total`` | the end of the incident; begins with ``detect``, or with ``decide`` if ``detect`` is not known |

A phase ends, and the next one begins, when the master received a fact (``Event.time``), so phases have no gap and no
overlap. That clock is the monotonic clock of one master, aligned with the wall clock when its term began.

House rules: a plan that failed, or that only prepared the next one (a checkpoint, an alert), counts as ``decide``, so
the phases of the plan that succeeded add up to the total. A plan ``in_place`` has neither ``stop`` nor
``rendezvous``; its ``start`` begins with the verdict.
A decision is made in the turn of its fact and has that fact's time: a ``decide`` of 0.0 means *in the same turn*.
Unknown values are None, never 0: a source that reported no clock, a phase that the incident did not have. The
``detect`` of a hang is the length of the standstill. Any other ``detect`` compares two clocks. If they differ by more
than ``SKEW``, the source's time is computed from its monotonic clock. The offset to the master's clock is that of the
fact of the same boot with the least delay; that delay is not corrected.
"""

from collections import deque
from typing import Final

import msgspec
from msgspec import structs

from ftcore.events.envelope import Event
from ftcore.events.incident import (
    DepartureBegun,
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobProgressed
from ftcore.events.policy import AlertRaised, AlertSent, PlanApplied, PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.worker import StandstillJudged, WorkerFailed, WorkersFinished, WorkersStood, WorkersStopped
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.faults.failure import Failure, failure_of
from ftcore.ids import SECOND
from ftcore.policies.chain import skipped_for_lack
from ftcore.replay.hang import HangingRanks, ranks_of
from ftcore.replay.incident_events import Asked, FaultOrigin, Incident, IncidentEvents, incident_of
from ftcore.replay.reading import fold_recorded
from ftcore.replay.saved_incidents import IncidentRestorer, IncidentSaver, SavedIncidents
from ftcore.replay.timeline import STEPS_MAX, Step
from ftcore.states.evidence import REPORTS_MAX
from ftcore.states.model import JobState
from ftcore.wording import sentence

__all__ = ["Asked", "Explainer", "FaultOrigin", "Incident", "SavedExplainer", "restore_explainer", "save_explainer"]

SKEW: Final = SECOND
"""Wall clocks that differ by more nanoseconds are not compared."""

FURTHER_MAX: Final = 10_000
"""Failures without a report that are kept of one incident."""

CLOCKED_MAX: Final = 64
"""Facts of a boot that are kept to estimate its clock offset."""


class SavedExplainer(msgspec.Struct, frozen=True, kw_only=True):
    """An ``Explainer``; incidents, events and failures by their places in ``incidents``."""

    state: JobState
    incidents: SavedIncidents
    open: int | None
    pause: int | None
    fact: int | None
    failed: int
    finished: list[FaultOrigin]
    further: int
    alerts: dict[int, int]
    clocks: dict[str, list[int]]
    hang: tuple[int, tuple[HangingRanks, ...]] | None


class Explainer:
    """A reader that collects incidents; ``incidents()`` returns those that were opened so far.

    Args:
        keep: the newest incidents to keep, at least 1; None: all.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._state = JobState()
        self._keep = keep
        self._cases: list[IncidentEvents] = []
        self._open: IncidentEvents | None = None
        self._pause: IncidentEvents | None = None
        self._fact: Event | None = None
        self._failed: dict[tuple[int, str], tuple[Event, Failure]] = {}
        self._finished: dict[FaultOrigin, None] = {}
        self._further: list[FaultOrigin] = []
        self._alerts: dict[int, IncidentEvents] = {}
        self._clocks: dict[str, deque[int]] = {}
        self._hang: tuple[int, tuple[HangingRanks, ...]] | None = None
        """The newest hang, with the fact that shows it."""

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        state = self._state
        fold_recorded(state, event)
        if type(event.data) is JobProgressed and self._open is None and self._pause is None and event.at is None:
            self._fact = event  # no incident, no report, no clock
            return
        event = self._on_one_clock(event)
        if event.kind is Kind.FACT or self._fact is None:
            self._fact = event
        for report in reversed(state.evidence.reports):
            if report.seq != event.seq:
                break
            restart = max(0, report.round - state.rounds.first)
            self._failed[report.seq, report.node] = (event, failure_of(event, report, restart))
        if type(event.data) is WorkerFailed:
            self._note_further(event.data, event.seq)
        self._note_finished(event)
        if type(event.data) is StandstillJudged and type(self._fact.data) is WorkersStood:
            self._hang = (self._fact.seq, ranks_of(self._fact.data, event.data))
        if event.incident is not None:
            self._note_decision(event, self._fact)
        if type(event.data) is JobFinished and self._cases and self._cases[-1].closing is self._fact:
            self._cases[-1].job_ended = event.data.outcome
        if self._pause is not None and state.requests.paused_for is None:
            self._pause.unpaused, self._pause = self._fact, None
        self._note_step(event)

    def _on_one_clock(self, event: Event) -> Event:
        """The fact with its source's time converted to the master's clock, if the two wall clocks differ."""
        at = event.at
        if at is None or not at.boot:
            return event
        ahead = self._clocks.setdefault(at.boot, deque(maxlen=CLOCKED_MAX))
        ahead.append(event.time - at.mono)
        wall = at.mono + min(ahead)
        return event if abs(wall - at.wall) <= SKEW else structs.replace(event, at=structs.replace(at, wall=wall))

    def _note_further(self, data: WorkerFailed, seq: int) -> None:
        """Note a failure for whose report there was no room."""
        reports, world = self._state.evidence.reports, self._state.rounds.world
        full = len(reports) >= REPORTS_MAX and all(report.seq != seq for report in reports)
        if full and world is not None and world.round == data.round and len(self._further) < FURTHER_MAX:
            self._further.append(FaultOrigin(node=data.node, rank=data.rank))

    def _note_finished(self, event: Event) -> None:
        """Note the ranks of the round that ended with code 0."""
        data = event.data
        if type(data) is WorldFormed:
            self._finished = {}
            return
        if type(data) is not WorkersStopped and type(data) is not WorkersFinished:
            return
        world = self._state.rounds.world
        if world is not None and world.round == data.round:
            seat = world.seat(data.node)
            if seat is None or (type(data) is WorkersStopped and not data.finished):
                return
            member = world.members[seat]
            own = data.finished if type(data) is WorkersStopped else range(member.slots)
            ended = dict.fromkeys(FaultOrigin(node=data.node, rank=member.base_rank + local) for local in own)
            self._finished |= ended
            if self._open is not None:
                self._open.finished |= ended

    def _note_step(self, event: Event) -> None:
        """Add an event to the timeline of its incident.

        An event without an incident belongs to the open one; the result of an alert to the incident of the alert.
        """
        case = self._cases[-1] if self._cases else None
        if type(event.data) is AlertSent:
            case = self._alerts.pop(event.data.alert, self._open)
        elif case is not None and event.incident != case.id and (event.incident is not None or self._open is not case):
            case = None
        if case is None or len(case.steps) == STEPS_MAX:
            return
        if type(event.data) is AlertRaised:
            self._alerts[event.seq] = case
        if what := sentence(event.data):
            at = (event.time - case.opening.time) / SECOND
            case.steps.append(Step(seq=event.seq, type=event.type, after_s=at, what=what))

    def incidents(self) -> list[Incident]:
        """Every incident that was opened, oldest first."""
        return [incident_of(case) for case in self._cases]

    def newest(self) -> Incident | None:
        """The incident that was opened last; None: none was opened."""
        return incident_of(self._cases[-1]) if self._cases else None

    @property
    def state(self) -> JobState:
        """The folded state after the last event, not to be changed."""
        return self._state

    def _note_decision(self, event: Event, fact: Event) -> None:
        data = event.data
        if type(data) is IncidentOpened:
            self._begin(event, data, fact)
        case = self._open
        if case is None or event.incident != case.id:
            return
        case.last = event.seq
        case.state = str(self._state.incident.phase) if self._state.incident is not None else case.state
        if type(data) is IncidentRediagnosed:
            if data.revision > case.revision:
                case.left_out = set()
            case.fault, case.kind, case.revision = data.fault, data.kind, data.revision
        elif type(data) is PolicyConsidered:
            self._note_skipped(case, data.policy)
            case.asked.append(Asked(name=data.policy, verdict=data.verdict, reason=data.reason))
            if data.verdict == "take":
                case.begin_plan(fact)
        elif isinstance(data, IncidentContinued | IncidentEscalated):
            case.begin_plan(None)
        elif type(data) is DepartureBegun:
            case.departed = fact
        elif type(data) is PlanApplied:
            case.applied = fact
        elif type(data) is RoundPlanned:
            case.planned = fact
        elif type(data) is WorldFormed:
            case.formed = fact
        elif type(data) is RoundStarted:
            case.started = fact
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            case.closing, case.end, self._open, self._failed, self._further = fact, data, None, {}, []
            case.state = "resolved" if isinstance(data, IncidentResolved) else "exhausted"
            if isinstance(data, IncidentResolved) and data.outcome == "paused":
                self._pause = case

    def _note_skipped(self, case: IncidentEvents, before: str) -> None:
        """Note the policies above ``before`` in the chain that were skipped without an event."""
        state = self._state
        if state.incident is None:
            return
        names = [entry.policy for entry in state.policy.chain]
        above = names[: names.index(before)] if before in names else names
        for name, answer in skipped_for_lack(state.policy.chain, state.incident, state):
            if name in above and name not in case.left_out:
                case.left_out.add(name)
                case.asked.append(Asked(name=name, verdict="pass", reason=answer.reason))

    def _begin(self, event: Event, data: IncidentOpened, fact: Event) -> None:
        assert event.incident is not None
        keys = [(report.seq, report.node) for report in self._state.evidence.reports]
        self._failed = {key: self._failed[key] for key in keys}
        case = IncidentEvents(
            id=event.incident,
            run=self._state.run,
            first=fact.seq,
            opening=fact,
            fault=data.fault,
            kind=data.kind,
            failed=self._failed,
            finished=dict(self._finished),
            further=self._further,
            hang=self._hang[1] if self._hang is not None and self._hang[0] == fact.seq else (),
        )
        self._cases.append(case)
        if self._keep is not None:
            del self._cases[: -self._keep]
        self._open = case


def save_explainer(explainer: Explainer) -> SavedExplainer:
    """An explainer as a record, to continue from; only one that keeps all incidents can be saved."""
    saver = IncidentSaver()
    for case in explainer._cases:
        saver.case(case)
    places = {id(case): place for place, case in enumerate(explainer._cases)}
    fact, failed, further = explainer._fact, saver.failed(explainer._failed), saver.further(explainer._further)
    return SavedExplainer(
        state=explainer._state,
        open=None if explainer._open is None else places[id(explainer._open)],
        pause=None if explainer._pause is None else places[id(explainer._pause)],
        fact=None if fact is None else saver.event(fact),
        failed=failed,
        finished=list(explainer._finished),
        further=further,
        alerts={seq: places[id(case)] for seq, case in explainer._alerts.items()},
        clocks={boot: list(ahead) for boot, ahead in explainer._clocks.items()},
        hang=explainer._hang,
        incidents=saver.saved(),
    )


def restore_explainer(saved: SavedExplainer) -> Explainer:
    """The explainer of a record.

    Raises:
        LogCorrupt, IndexError: the record contradicts itself.
    """
    found, explainer = IncidentRestorer(saved.incidents), Explainer()
    explainer._state = saved.state
    explainer._cases = found.cases
    explainer._open = None if saved.open is None else found.cases[saved.open]
    explainer._pause = None if saved.pause is None else found.cases[saved.pause]
    explainer._fact = None if saved.fact is None else found.events[saved.fact]
    explainer._failed, explainer._further = found.failed[saved.failed], found.further[saved.further]
    explainer._finished = dict.fromkeys(saved.finished)
    explainer._alerts = {seq: found.cases[place] for seq, place in saved.alerts.items()}
    explainer._hang = saved.hang
    explainer._clocks = {boot: deque(ahead, maxlen=CLOCKED_MAX) for boot, ahead in saved.clocks.items()}
    return explainer
