"""Incidents, told from the log: what happened, what was decided and why, how long each part took, what was lost.

Phases, in seconds. Each begins where the one before it ends:

| phase | ends with |
|---|---|
| ``detect`` | the fact that opened the incident, by the master's clock; begins with the root's own ``at.wall`` |
| ``decide`` | the fact that brought the verdict ``take`` of the plan that held |
| ``wait`` | the fact after which other nodes were ready for the places of those that left; training went on meanwhile |
| ``stop`` | the fact after which no worker of the old round ran: ``round.planned``, or the job's end |
| ``rendezvous`` | the fact that fixed the new world (``world.formed``); back-off and waiting for nodes included |
| ``start`` | the fact after which every worker ran (``round.started``), or had obeyed in place (``plan.applied``) |
| ``first_step`` | the fact that resolved it by a completed step; begins where ``start`` ends, loading included |
| ``total`` | the end of the incident; begins with ``detect``, or with ``decide`` if that is not known |

Each phase ends, and the next begins, when the master took in a fact (``Event.time``), so they add up without gap and
without overlap. That clock is one master's monotonic one, laid on the wall clock when its term began.

House rules: a plan that failed, or that only prepared the next one (a checkpoint, a message), counts as deciding, so
the phases of the plan that held add up to the total. A plan that leaves the processes in place has neither ``stop`` nor
``rendezvous``; its ``start`` begins with the verdict.
A decision happens in the turn of its fact and has that fact's time: a ``decide`` of 0.0 says *in the same turn*. What
cannot be known is None, never 0: a source that told no clock, a phase that the incident did not have. ``detect``
compares two clocks. Where they differ by more than ``SKEW``, the source's time is told by its monotonic clock, laid on
the master's: the fact of its boot that came the fastest shows how, and what that one took is not in it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import attrs
from msgspec import structs

from ftcore.events.envelope import Event
from ftcore.events.incident import (
    DepartureBegun,
    Fault,
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.policy import PlanApplied, PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.worker import FaultObserved, StepTimes, WorkerFailed
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.faults.classify import signal_name
from ftcore.ids import SECOND
from ftcore.policies.chain import left_out
from ftcore.replay.reading import fold_recorded
from ftcore.replay.timeline import STEPS_MAX, Step
from ftcore.states.model import JobState, Report
from ftcore.wording import moment, sentence

SKEW: Final = SECOND
"""Wall clocks that differ by more are not compared."""

CLOCKED_MAX: Final = 64
"""Facts of a boot that are remembered to know its clock."""


@attrs.frozen(kw_only=True)
class Phases:
    """Seconds; None: not known. See the module's table."""

    detect: float | None = None
    decide: float | None = None
    wait: float | None = None
    stop: float | None = None
    rendezvous: float | None = None
    start: float | None = None
    first_step: float | None = None
    total: float | None = None


@attrs.frozen(kw_only=True)
class Place:
    """Where it began.

    Args:
        node: the node; None for a request.
        rank: the global rank; None if it was no single rank's.
    """

    node: str | None
    rank: int | None


@attrs.frozen(kw_only=True)
class Asked:
    """A policy's answer.

    Args:
        name: the policy.
        verdict: ``take`` or ``pass``; what the job is not able to do passes in every incident, though it is an event of
            the first one only.
        reason: why.
    """

    name: str
    verdict: str
    reason: str


@attrs.frozen(kw_only=True)
class Failure:
    """One process or node that failed, in the words of torchrun's failure record.

    Args:
        rank: global rank; None for a whole node.
        local_rank: rank on its node; None for a whole node.
        node: the node.
        restart: rounds of the run before the one that failed.
        exitcode: exit code, negative for a signal; None if no process of the job is known to have ended.
        message: the exception from the error file, else the signal, else the last line of output.
        py_callstack: the traceback from the error file, or None.
        raised: when the exception was raised, by the error file, nanoseconds since the epoch; or None.
        time: when its agent noticed, nanoseconds since the epoch; on the master's clock if the agent told none, or its
            clock differs from the master's.
        seq: the fact in the log.
        last: the last steps of the node's workers before it, if it is the fact that tells of them.
    """

    rank: int | None
    local_rank: int | None
    node: str
    restart: int
    exitcode: int | None
    message: str | None
    py_callstack: str | None
    raised: int | None
    time: int
    seq: int
    last: tuple[StepTimes, ...] = ()


@attrs.frozen(kw_only=True)
class Incident:
    """One incident; the JSON of ``ftctl incidents`` and ``ftctl explain`` (``class`` instead of ``cls``).

    Args:
        id: its identity in the job.
        kind: ``fault``, ``warning`` (training survives it by itself), ``request`` (somebody's wish) or ``opportunity``.
        cls: class of the taxonomy, by the last reading of the evidence.
        detail: the finer distinction.
        summary: one line.
        nodes, ranks: what is named by it, the culprit first.
        root: where it began.
        opened: nanoseconds since the epoch, the master's clock.
        closed: likewise; None while it is open.
        run: the job's run.
        revisions: readings that made the chain start again.
        resolved_by: the policy that brought the outcome; None if none did (yet).
        outcome: as ``incident.resolved`` says, or ``exhausted``; None while it is open.
        policies: every answer, in order.
        phases: seconds.
        steps_lost: completed steps that had to be done again; None if not known.
        state: state of the incident machine.
        failures: what failed, the first failure first.
        timeline: what was done about it beyond a plain restart, and what came of that, in order.
        first_seq, last_seq: of the events that belong to it.
    """

    id: str
    kind: str
    cls: str
    detail: str
    summary: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    root: Place
    opened: int
    closed: int | None
    run: int
    revisions: int
    resolved_by: str | None
    outcome: str | None
    policies: tuple[Asked, ...]
    phases: Phases
    steps_lost: int | None
    state: str
    failures: tuple[Failure, ...]
    timeline: tuple[Step, ...]
    first_seq: int
    last_seq: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, under the names of the contract; moments as ``words.moment`` has them."""
        fields = attrs.asdict(self)
        fields["failures"] = [_with_moments(failure, "raised", "time") for failure in fields["failures"]]
        return {
            ("class" if key == "cls" else key): value
            for key, value in _with_moments(fields, "opened", "closed").items()
        }


def _with_moments(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for key, value in fields.items():
        told |= moment(key, value) if key in names else {key: value}
    return told


@attrs.define(kw_only=True)
class _Case:
    """An incident under way: the events that its story is made of."""

    id: str
    run: int
    first: int
    opening: Event
    fault: Fault
    kind: str
    revision: int = 1
    asked: list[Asked] = attrs.field(factory=list)
    left_out: set[str] = attrs.field(factory=set)
    failed: dict[tuple[int, str], tuple[Event, Failure]]
    took: Event | None = None
    steps: list[Step] = attrs.field(factory=list)
    departed: Event | None = None
    applied: Event | None = None
    planned: Event | None = None
    formed: Event | None = None
    started: Event | None = None
    closing: Event | None = None
    end: IncidentResolved | IncidentExhausted | None = None
    state: str = ""
    last: int = 0

    def begin_plan(self, took: Event | None) -> None:
        """A policy took it; None: its plan is over, and the chain is asked on."""
        self.took, self.departed, self.applied = took, None, None
        self.planned, self.formed, self.started = None, None, None


class Explainer:
    """A reader that collects incidents; ``incidents()`` tells of those that began so far, in order."""

    def __init__(self) -> None:
        self._state = JobState()
        self._cases: list[_Case] = []
        self._open: _Case | None = None
        self._fact: Event | None = None
        self._failed: dict[tuple[int, str], tuple[Event, Failure]] = {}
        self._clocks: dict[str, deque[int]] = {}

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        state = self._state
        fold_recorded(state, event)
        event = self._on_one_clock(event)
        if event.kind is Kind.FACT or self._fact is None:
            self._fact = event
        for report in reversed(state.reports):
            if report.seq != event.seq:
                break
            restart = max(0, report.round - state.round_first)
            self._failed[report.seq, report.node] = (event, _failure(event, report, restart))
        if event.incident is not None:
            self._decided(event, self._fact)
        self._done(event)

    def _on_one_clock(self, event: Event) -> Event:
        """A fact with its source's time on the master's clock, if the source's own wall clock differs from that."""
        at = event.at
        if at is None or not at.boot:
            return event
        ahead = self._clocks.setdefault(at.boot, deque(maxlen=CLOCKED_MAX))
        ahead.append(event.time - at.mono)
        wall = at.mono + min(ahead)
        return event if abs(wall - at.wall) <= SKEW else structs.replace(event, at=structs.replace(at, wall=wall))

    def _done(self, event: Event) -> None:
        """Note what was done: what names the incident, and what comes while it is open and names none."""
        case = self._cases[-1] if self._cases else None
        if case is None or len(case.steps) == STEPS_MAX:
            return
        its_own = event.incident == case.id or (event.incident is None and self._open is case)
        if its_own and (what := sentence(event.data)):
            at = (event.time - case.opening.time) / SECOND
            case.steps.append(Step(seq=event.seq, type=event.type, after_s=at, what=what))

    def incidents(self) -> list[Incident]:
        """Every incident that was opened, oldest first."""
        return [_told(case) for case in self._cases]

    def _decided(self, event: Event, fact: Event) -> None:
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
            self._left_out(case, data.policy)
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
            case.closing, case.end, self._open, self._failed = fact, data, None, {}
            case.state = "resolved" if isinstance(data, IncidentResolved) else "exhausted"

    def _left_out(self, case: _Case, before: str) -> None:
        """Note the policies above one in the chain that were passed over without an event of their own."""
        state = self._state
        if state.incident is None:
            return
        names = [entry.policy for entry in state.chain]
        above = names[: names.index(before)] if before in names else names
        for name, answer in left_out(state.chain, state.incident, state):
            if name in above and name not in case.left_out:
                case.left_out.add(name)
                case.asked.append(Asked(name=name, verdict="pass", reason=answer.reason))

    def _begin(self, event: Event, data: IncidentOpened, fact: Event) -> None:
        assert event.incident is not None
        keys = [(report.seq, report.node) for report in self._state.reports]
        self._failed = {key: self._failed[key] for key in keys}
        case = _Case(
            id=event.incident,
            run=self._state.run,
            first=fact.seq,
            opening=fact,
            fault=data.fault,
            kind=data.kind,
            failed=self._failed,
        )
        self._cases.append(case)
        self._open = case


def _told(case: _Case) -> Incident:
    fault, end = case.fault, case.end
    root = next((told for (seq, _), told in case.failed.items() if seq == fault.root), None)
    return Incident(
        id=case.id,
        kind=case.kind,
        cls=fault.cls,
        detail=fault.detail,
        summary=fault.summary,
        nodes=fault.nodes,
        ranks=fault.ranks,
        root=Place(node=root[1].node, rank=root[1].rank) if root is not None else Place(node=None, rank=None),
        opened=case.opening.time,
        closed=case.closing.time if case.closing is not None else None,
        run=case.run,
        revisions=case.revision,
        resolved_by=end.policy if isinstance(end, IncidentResolved) else None,
        outcome=end.outcome if isinstance(end, IncidentResolved) else "exhausted" if end is not None else None,
        policies=tuple(case.asked),
        phases=_phases(case, root[0] if root is not None else None),
        steps_lost=end.steps_lost if isinstance(end, IncidentResolved) else None,
        state=case.state,
        failures=_in_order(case),
        timeline=tuple(case.steps),
        first_seq=case.first,
        last_seq=case.last,
    )


def _in_order(case: _Case) -> tuple[Failure, ...]:
    """The root first, then by the clock that all share: the boot's, else the master's."""
    told = list(case.failed.values())
    boots = {event.at.boot if event.at is not None else "" for event, _ in told}
    shared = len(boots) == 1 and "" not in boots

    def place(entry: tuple[Event, Failure]) -> tuple[bool, int, int]:
        event, failure = entry
        clock = event.at.mono if shared and event.at is not None else event.time
        return failure.seq != case.fault.root, clock, failure.seq

    return tuple(failure for _, failure in sorted(told, key=place))


def _phases(case: _Case, root: Event | None) -> Phases:
    detect = _lag(root, case.opening)
    ended = isinstance(case.end, IncidentResolved) and case.applied is None
    stopped = case.planned or (case.closing if ended else None)
    stepped = isinstance(case.end, IncidentResolved) and case.end.outcome in ("stepped", "finished")
    total = _between(case.opening, case.closing)
    in_place = case.applied is not None
    return Phases(
        detect=detect,
        decide=_between(case.opening, case.took),
        wait=_between(case.took, case.departed),
        stop=None if in_place else _between(case.departed or case.took, stopped),
        rendezvous=_between(case.planned, case.formed),
        start=_between(case.took, case.applied) if in_place else _between(case.formed, case.started),
        first_step=_between(case.applied or case.started, case.closing) if stepped else None,
        total=None if total is None else round(total + (detect or 0.0), 9),
    )


def _between(first: Event | None, second: Event | None) -> float | None:
    """Seconds from one fact to the other, as the master took them in."""
    return None if first is None or second is None else (second.time - first.time) / SECOND


def _lag(root: Event | None, opening: Event) -> float | None:
    """Seconds from the root by its own clock to the opening by the master's."""
    if root is None or root.at is None or opening.time < root.at.wall:
        return None
    return (opening.time - root.at.wall) / SECOND


def _failure(event: Event, report: Report, restart: int) -> Failure:
    data = event.data
    error = data.error if type(data) is WorkerFailed else None
    return Failure(
        rank=report.rank if report.rank >= 0 else None,
        local_rank=data.local_rank if type(data) is WorkerFailed else None,
        node=report.node,
        restart=restart,
        exitcode=report.exitcode,
        message=_message(report, data),
        py_callstack=error.py_callstack or None if error is not None else None,
        raised=error.timestamp * SECOND if error is not None and error.timestamp is not None else None,
        time=event.at.wall if event.at is not None else event.time,
        seq=report.seq,
        last=data.last if isinstance(data, WorkerFailed | FaultObserved) else (),
    )


def _message(report: Report, data: Any) -> str | None:
    if report.message:
        return report.message
    if report.exitcode is not None and report.exitcode < 0:
        pid = f" received by PID {data.pid}" if type(data) is WorkerFailed else ""
        return f"Signal {-report.exitcode} ({signal_name(-report.exitcode)}){pid}"
    lines: Sequence[str] = [line for line in report.tail.splitlines() if line.strip()]
    return lines[-1].strip() if lines else None
