"""An incident as it is read from the event log, and what is shown of it; ``explain.py`` defines its phases."""

from typing import Any

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.incident import Fault, IncidentExhausted, IncidentResolved
from ftcore.faults.failure import Failure, in_order
from ftcore.faults.taxonomy import FaultClass
from ftcore.replay.hang import HangingRanks
from ftcore.replay.phases import Phases, between, detect_s
from ftcore.replay.timeline import Step
from ftcore.wording import timestamp_fields


@attrs.frozen(kw_only=True)
class FaultOrigin:
    """Where an incident began.

    Args:
        node: the node; None for a request.
        rank: the global rank; None if it was not a single rank.
    """

    node: str | None
    rank: int | None


@attrs.frozen(kw_only=True)
class Asked:
    """A policy's answer.

    Args:
        name: the policy.
        verdict: ``take`` or ``pass``. A policy that lacks an ability passes in every incident, but the log has an
            event for it only in the first one.
        reason: why.
    """

    name: str
    verdict: str
    reason: str


@attrs.frozen(kw_only=True)
class Incident:
    """One incident; the JSON of ``ftctl incidents`` and ``ftctl explain`` (``class`` instead of ``cls``).

    Args:
        id: its id in the job.
        kind: ``fault``, ``warning`` (training survives it by itself), ``request`` (of an operator) or ``opportunity``.
        cls: class of the taxonomy, by the last diagnosis.
        detail: the subclass.
        summary: one line.
        nodes, ranks: nodes and ranks involved, the root first.
        root: where it began.
        opened: nanoseconds since the epoch, the master's clock.
        closed: likewise; None while it is open.
        run: the job's run.
        revisions: diagnoses that made the chain start again.
        resolved_by: the policy that resolved it; None if none did (yet).
        outcome: that of ``incident.resolved``, or ``exhausted``; None while it is open.
        policies: every answer, in order.
        phases: durations in seconds.
        steps_lost: completed steps that had to be computed again; None if not known.
        in_place: a plan was carried out without stopping the workers.
        job_ended: outcome of the job, if it ended with the incident; else None.
        paused_s: of a pause: seconds from its end to the end of the pause; None while it lasts.
        state: state of the incident machine.
        failures: failed workers and nodes, the first failure first.
        ended_early: of class ``collateral``: ranks that ended with code 0 before others failed, which may be the cause.
        hang: which ranks hang and which wait for them; empty: it is no hang, or that is not known.
        further: workers that failed after so many others that the diagnosis did without their reports.
        timeline: actions beyond a plain restart, and their results, in order.
        first_seq, last_seq: of the events that belong to it.
    """

    id: str
    kind: str
    cls: str
    detail: str
    summary: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    root: FaultOrigin
    opened: int
    closed: int | None
    run: int
    revisions: int
    resolved_by: str | None
    outcome: str | None
    policies: tuple[Asked, ...]
    phases: Phases
    steps_lost: int | None
    in_place: bool
    job_ended: str | None
    paused_s: float | None
    state: str
    failures: tuple[Failure, ...]
    ended_early: tuple[FaultOrigin, ...]
    hang: tuple[HangingRanks, ...]
    further: tuple[FaultOrigin, ...]
    timeline: tuple[Step, ...]
    first_seq: int
    last_seq: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; times as ``wording.timestamp_fields`` writes them."""
        fields = msgspec.to_builtins(self)
        fields["failures"] = [_with_timestamps(failure, "raised", "time") for failure in fields["failures"]]
        return {
            ("class" if key == "cls" else key): value
            for key, value in _with_timestamps(fields, "opened", "closed").items()
        }


def _with_timestamps(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key, value in fields.items():
        converted |= timestamp_fields(key, value) if key in names else {key: value}
    return converted


@attrs.define(kw_only=True)
class IncidentEvents:
    """The events of an incident, as far as they were read."""

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
    finished: dict[FaultOrigin, None]
    further: list[FaultOrigin]
    hang: tuple[HangingRanks, ...] = ()
    took: Event | None = None
    steps: list[Step] = attrs.field(factory=list)
    departed: Event | None = None
    applied: Event | None = None
    planned: Event | None = None
    formed: Event | None = None
    started: Event | None = None
    closing: Event | None = None
    end: IncidentResolved | IncidentExhausted | None = None
    unpaused: Event | None = None
    job_ended: str | None = None
    state: str = ""
    last: int = 0

    def begin_plan(self, took: Event | None) -> None:
        """Note the fact of a ``take``, or None when the plan is over and the chain goes on."""
        self.took, self.departed, self.applied = took, None, None
        self.planned, self.formed, self.started = None, None, None


def incident_of(case: IncidentEvents) -> Incident:
    """What is shown of an incident."""
    fault, end = case.fault, case.end
    root = next((failed for (seq, _), failed in case.failed.items() if seq == fault.root), None)
    return Incident(
        id=case.id,
        kind=case.kind,
        cls=fault.cls,
        detail=fault.detail,
        summary=fault.summary,
        nodes=fault.nodes,
        ranks=fault.ranks,
        root=FaultOrigin(node=root[1].node, rank=root[1].rank)
        if root is not None
        else FaultOrigin(node=None, rank=None),
        opened=case.opening.time,
        closed=case.closing.time if case.closing is not None else None,
        run=case.run,
        revisions=case.revision,
        resolved_by=end.policy if isinstance(end, IncidentResolved) else None,
        outcome=end.outcome if isinstance(end, IncidentResolved) else "exhausted" if end is not None else None,
        policies=tuple(case.asked),
        phases=_phases(case, root[0] if root is not None else None),
        steps_lost=end.steps_lost if isinstance(end, IncidentResolved) else None,
        in_place=case.applied is not None,
        job_ended=case.job_ended,
        paused_s=between(case.closing, case.unpaused),
        state=case.state,
        failures=in_order(case.failed.values(), fault.root),
        further=tuple(case.further),
        ended_early=tuple(case.finished) if fault.cls == FaultClass.COLLATERAL else (),
        hang=case.hang,
        timeline=tuple(case.steps),
        first_seq=case.first,
        last_seq=case.last,
    )


def _phases(case: IncidentEvents, root: Event | None) -> Phases:
    detect = detect_s(root, case.opening)
    ended = isinstance(case.end, IncidentResolved) and case.applied is None
    stopped = case.planned or (case.closing if ended else None)
    stepped = isinstance(case.end, IncidentResolved) and case.end.outcome in ("stepped", "finished")
    total = between(case.opening, case.closing)
    in_place = case.applied is not None
    return Phases(
        detect=detect,
        decide=between(case.opening, case.took),
        wait=between(case.took, case.departed),
        stop=None if in_place else between(case.departed or case.took, stopped),
        rendezvous=between(case.planned, case.formed),
        start=between(case.took, case.applied) if in_place else between(case.formed, case.started),
        first_step=between(case.applied or case.started, case.closing) if stepped else None,
        total=None if total is None else round(total + (detect or 0.0), 9),
    )
