"""Handlers of events of incidents and of verdicts."""

from ftcore.events import incident, policy
from ftcore.events.envelope import Event
from ftcore.states.faultkey import fault_key, is_same
from ftcore.states.fold.base import (
    Changes,
    on,
    step_incident,
    step_job,
)
from ftcore.states.incident import INCIDENT
from ftcore.states.model import (
    IncidentState,
    JobState,
    Repeat,
)

_ROUND_DEADLINES = ("backoff/", "window/", "return/", "settle/", "outcome/")

ATTEMPTS_MAX = 1024
"""Attempts remembered per policy; a budget larger than this is refused when the policy file is read."""


@on(incident.IncidentOpened)
def _incident_opened(state: JobState, event: Event, data: incident.IncidentOpened, changes: Changes) -> None:
    step_job(state, "incident.opened", changes)
    assert event.incident is not None
    state.incidents += 1
    state.incident = IncidentState(
        id=event.incident,
        kind=data.kind,
        phase=INCIDENT.initial,  # type: ignore[arg-type]
        fault=data.fault,
        revision=data.revision,
        opened=event.time,
        round=state.world.round if state.world is not None else 0,
        progress=state.step,
        absolute=state.step_absolute,
    )
    repeat = state.repeat
    repeat.before = (repeat.key, repeat.count)
    _count_repeat(state, data.fault)


def _count_repeat(state: JobState, fault: incident.Fault) -> None:
    repeat = state.repeat
    repeat.key = fault_key(fault)
    repeat.count = repeat.before[1] + 1 if is_same(repeat.key, repeat.before[0]) else 1


@on(incident.IncidentRediagnosed)
def _incident_rediagnosed(state: JobState, event: Event, data: incident.IncidentRediagnosed, changes: Changes) -> None:
    open_incident = state.incident
    if open_incident is None:
        return
    if data.revision == open_incident.revision:
        step_incident(state, "incident.rediagnosed/detail", changes)
    else:
        step_incident(state, "incident.rediagnosed/worse", changes)
        step_job(state, "incident.rediagnosed", changes)
        if _was_tried(state, open_incident):
            state.repeat.before = (state.repeat.key, state.repeat.count)
        else:
            _take_back(state, open_incident)
        if state.reports and state.reports[-1].round > open_incident.round:
            state.repeat.before = (state.repeat.key, state.repeat.count)  # the new round's fault is the next in the row
        open_incident.kind = data.kind
        if state.world is not None:
            open_incident.round = state.world.round
        open_incident.asked, open_incident.taken, open_incident.plan = [], "", ""
        _forget_outcome(state)
    open_incident.fault, open_incident.revision = data.fault, data.revision
    _count_repeat(state, data.fault)


def _was_tried(state: JobState, open_incident: IncidentState) -> bool:
    """Whether the plan in force got as far as a new round, or failed on the way to it."""
    newest = state.reports[-1] if state.reports else None
    return newest is None or newest.round > open_incident.round or newest.type == "action.failed"


def _take_back(state: JobState, open_incident: IncidentState) -> None:
    """A plan that a better reading replaces before it was tried costs neither budget nor back-off."""
    if open_incident.plan == "restart":
        state.attempts[open_incident.taken].pop()
        state.streak -= 1


def _forget_outcome(state: JobState) -> None:
    for key in [key for key in state.deadlines if key.startswith(_ROUND_DEADLINES)]:
        del state.deadlines[key]
    state.plan = None


@on(incident.IncidentEscalated)
def _incident_escalated(state: JobState, event: Event, data: incident.IncidentEscalated, changes: Changes) -> None:
    open_incident = step_incident(state, "incident.escalated", changes)
    step_job(state, "incident.escalated", changes)
    if open_incident is not None:
        open_incident.tried.append(data.policy)
        open_incident.taken, open_incident.plan = "", ""
        _forget_outcome(state)


@on(incident.IncidentResolved)
def _incident_resolved(state: JobState, event: Event, data: incident.IncidentResolved, changes: Changes) -> None:
    step_incident(state, "incident.resolved", changes)
    step_job(state, "incident.resolved", changes)
    _forget_outcome(state)
    state.incident = None
    state.reports = []
    state.streak = 0
    if data.outcome in ("stepped", "settled", "finished") and state.repeat.key.endswith("@None"):
        state.repeat = Repeat()  # it failed before its first step; now it has made one


@on(incident.IncidentExhausted)
def _incident_exhausted(state: JobState, event: Event, data: incident.IncidentExhausted, changes: Changes) -> None:
    step_incident(state, "incident.exhausted", changes)
    step_job(state, "incident.exhausted", changes)
    _forget_outcome(state)
    state.incident = None
    state.reports = []


@on(policy.PolicyConsidered)
def _policy_considered(state: JobState, event: Event, data: policy.PolicyConsidered, changes: Changes) -> None:
    open_incident = step_incident(state, f"policy.considered/{data.verdict}", changes)
    if open_incident is None:
        return
    open_incident.asked.append(data.policy)
    if data.verdict != "take":
        return
    open_incident.taken, open_incident.plan, open_incident.reason = data.policy, data.plan, data.reason
    open_incident.grace_s, open_incident.wait_s = data.grace_s, data.wait_s
    open_incident.deadline_s = data.deadline_s
    open_incident.outcome, open_incident.exit_code = data.outcome, data.exit_code
    times = state.attempts.setdefault(data.policy, [])
    times.append(event.time)
    del times[:-ATTEMPTS_MAX]
    if data.plan == "restart":
        state.streak += 1
