"""Handlers of incidents and verdicts."""

from ftcore.commands import AskPolicy, ResumeWorkers
from ftcore.events import incident, policy
from ftcore.events.envelope import Event
from ftcore.events.policy import Terms
from ftcore.ids import seconds
from ftcore.states import timers
from ftcore.states.evidence import Repeat
from ftcore.states.faultkey import fault_key, is_of_no_node, is_same
from ftcore.states.fold import disruptions, pace
from ftcore.states.fold.base import (
    Changes,
    advised,
    advised_nothing,
    not_launched,
    on,
    step_incident,
    step_job,
)
from ftcore.states.incident import INCIDENT
from ftcore.states.model import HISTORY_MAX, IncidentState, JobState, PlanOrder, RunEnding, TakenPlan
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_deferred, is_paused, is_running
from ftcore.states.revisions import DISRUPTIONS, NO_CULPRIT, WORKERS_WAIT, follows

ATTEMPTS_MAX = 1024
"""Attempts kept per policy; a policy file with a larger budget is refused."""


@on(incident.IncidentOpened)
def _incident_opened(state: JobState, event: Event, data: incident.IncidentOpened, changes: Changes) -> None:
    step_job(state, "incident.opened", changes)
    assert event.incident is not None
    if data.kind == "opportunity":
        state.history.offered = event.seq
    state.incidents += 1
    state.incident = IncidentState(
        id=event.incident,
        kind=data.kind,
        phase=INCIDENT.initial,  # type: ignore[arg-type]
        fault=data.fault,
        revision=data.revision,
        opened=event.time,
        round=state.rounds.world.round if state.rounds.world is not None else 0,
        progress=state.training.step,
        absolute=state.training.step_absolute,
    )
    state.training.saved.pace.sample = None
    disruptions.step_root(state, data.fault.root, "incident.opened", changes)
    if data.kind != "fault":
        return  # requests, warnings and opportunities do not count as faults
    pace.failed(state, event.time)
    _count_culprit(state, event, state.incident, data.fault)
    repeat = state.evidence.repeat
    repeat.before = (repeat.key, repeat.count)
    _count_repeat(state, data.fault)


def _count_culprit(state: JobState, event: Event, known: IncidentState, fault: incident.Fault) -> None:
    known.counted = fault.nodes[0] if fault.nodes and not is_of_no_node(fault) else ""
    if known.counted:
        times = state.evidence.node_faults.setdefault(known.counted, [])
    elif follows(state, NO_CULPRIT):
        times = state.evidence.other_faults
    else:
        return
    times.append(event.time)
    del times[:-HISTORY_MAX]


def _recount_culprit(state: JobState, event: Event, known: IncidentState, fault: incident.Fault) -> None:
    """Move the fault count to the node of the new diagnosis; a fault of a new round keeps the earlier count as well."""
    evidence = state.evidence
    new_round = bool(evidence.reports) and evidence.reports[-1].round > known.round
    times = evidence.node_faults.get(known.counted) if known.counted else evidence.other_faults
    if times and not new_round and (known.counted or times[-1] >= known.opened):  # an operator may clear a node's count
        times.pop()
    _count_culprit(state, event, known, fault)


def _count_repeat(state: JobState, fault: incident.Fault) -> None:
    repeat = state.evidence.repeat
    repeat.key = fault_key(fault)
    repeat.count = repeat.before[1] + 1 if is_same(repeat.key, repeat.before[0]) else 1


@on(incident.IncidentRediagnosed)
def _incident_rediagnosed(state: JobState, event: Event, data: incident.IncidentRediagnosed, changes: Changes) -> None:
    open_incident = state.incident
    if open_incident is None:
        return
    if data.revision == open_incident.revision:
        step_incident(state, "incident.rediagnosed/detail", changes)
        if data.kind == "fault" and data.fault.nodes[:1] != open_incident.fault.nodes[:1]:
            _recount_culprit(state, event, open_incident, data.fault)
    else:
        deferred, repeat = is_deferred(open_incident), state.evidence.repeat
        step_incident(state, "incident.rediagnosed/worse", changes)
        step_job(state, "incident.rediagnosed", changes)
        tried = not deferred and was_tried(state, open_incident)
        if tried or open_incident.kind != "fault":
            repeat.before = (repeat.key, repeat.count)
        if not tried:
            _take_back(state, open_incident)
        if state.evidence.reports and state.evidence.reports[-1].round > open_incident.round:
            repeat.before = (repeat.key, repeat.count)  # the fault of the new round counts as a further repeat
        if data.kind == "fault" and data.fault.root != open_incident.fault.root:
            _recount_culprit(state, event, open_incident, data.fault)
        if data.kind == "fault" and open_incident.kind != "fault":
            pace.failed(state, event.time)
            disruptions.step_root(state, open_incident.fault.root, "incident.rediagnosed/fault", changes)
        open_incident.kind = data.kind
        if state.rounds.world is not None:
            open_incident.round = state.rounds.world.round
        open_incident.asked, open_incident.answers = [], {}
        _forget_plan(state, open_incident)
    open_incident.fault, open_incident.revision = data.fault, data.revision
    if data.kind == "fault":
        _count_repeat(state, data.fault)


def was_tried(state: JobState, open_incident: IncidentState) -> bool:
    """Whether the plan in force led to a new round or failed before it."""
    newest = state.evidence.reports[-1] if state.evidence.reports else None
    return newest is None or newest.round > open_incident.round or newest.type == "action.failed"


def _take_back(state: JobState, open_incident: IncidentState) -> None:
    """Refund the budget and back-off of a plan that a new diagnosis replaced before it was tried."""
    plan = open_incident.plan
    if plan is not None and plan.kind in ("restart", "in_place"):
        state.history.attempts[plan.policy].pop()
        state.history.streak -= _restarts(plan.kind, plan.terms)


def _restarts(plan: str, terms: Terms) -> bool:
    """Whether a plan counts for the back-off of restarts: it ends processes."""
    return plan == "restart" and terms.survivors != "park"


def _forget_plan(state: JobState, open_incident: IncidentState) -> None:
    open_incident.plan = None
    _forget_outcome(state)


def _forget_outcome(state: JobState) -> None:
    timers.cancel_of_plan(state)
    state.rounds.planned = None


@on(incident.IncidentEscalated)
def _incident_escalated(state: JobState, event: Event, data: incident.IncidentEscalated, changes: Changes) -> None:
    deferred = is_deferred(state.incident)
    open_incident = step_incident(state, "incident.escalated", changes)
    step_job(state, "incident.escalated", changes)
    if open_incident is not None:
        if deferred and open_incident.plan is not None:
            if open_incident.plan.order is not None:  # a replacement that joins later stays in standby
                not_launched(state, open_incident.plan.order.effect)
            state.history.streak -= _restarts(open_incident.plan.kind, open_incident.plan.terms)  # nothing stopped
        open_incident.tried.append(data.policy)
        _forget_plan(state, open_incident)


@on(incident.DepartureDeferred)
def _departure_deferred(state: JobState, event: Event, data: incident.DepartureDeferred, changes: Changes) -> None:
    open_incident = step_incident(state, "departure.deferred", changes)
    step_job(state, "departure.deferred", changes)
    if open_incident is not None and open_incident.plan is not None:
        open_incident.plan.deferred_at = event.time
    timers.start(state, timers.DepartureTimer(), event.time, data.patience_s)


@on(incident.DepartureBegun)
def _departure_begun(state: JobState, event: Event, data: incident.DepartureBegun, changes: Changes) -> None:
    open_incident = step_incident(state, "departure.begun", changes)
    step_job(state, "departure.begun", changes)
    if open_incident is not None and open_incident.plan is not None:
        open_incident.plan.deferred_at = None
    timers.cancel(state, timers.DepartureTimer())


@on(incident.IncidentContinued)
def _incident_continued(state: JobState, event: Event, data: incident.IncidentContinued, changes: Changes) -> None:
    open_incident = step_incident(state, "incident.continued", changes)
    if open_incident is not None:
        open_incident.saved = open_incident.saved or data.outcome == "saved"
        state.history.applied[data.policy] = event.time
        _forget_plan(state, open_incident)


@on(policy.PlanApplied)
def _plan_applied(state: JobState, event: Event, data: policy.PlanApplied, changes: Changes) -> None:
    open_incident = state.incident
    if open_incident is None:
        return
    state.history.applied[data.policy] = event.time
    command = open_incident.plan.terms.command if open_incident.plan is not None else None
    if data.then == "continue":
        step_incident(state, "plan.applied", changes)
        step_job(state, "plan.applied/continue", changes)
        return
    request = state.requests.pending
    if data.then == "pause" and request is not None and request.seq == open_incident.fault.root:
        disruptions.keep_paused(state, request)  # a newer request may have replaced the pause
    elif data.then == "pause" and follows(state, DISRUPTIONS):
        patience_s = open_incident.plan.terms.patience_s if open_incident.plan is not None else None
        disruptions.paused(state, event, data.policy, patience_s, changes)
    elif isinstance(command, ResumeWorkers):
        disruptions.resumed(state, "plan.applied/resume", changes)
    step_incident(state, "plan.applied", changes)
    pauses = data.then == "pause" and (_waits(state) or not follows(state, WORKERS_WAIT))
    step_job(state, f"plan.applied/{'paused' if pauses else _where_to(state)}", changes)


def _where_to(state: JobState) -> str:
    """``paused`` or ``on``: the phase of the job after an incident that ended without a new round."""
    known = state.incident
    pausing = known is not None and (
        (known.kind, known.fault.detail) == ("request", "pause")
        or (bool(known.tried) and disruptions.is_asked(state, known.fault.root))
    )
    requests, waits = state.requests, _waits(state)
    if follows(state, WORKERS_WAIT) and not waits:
        return "on"
    paused = requests.paused_for is not None or (waits and (not pausing or requests.resume is not None))
    return "paused" if paused else "on"


def _waits(state: JobState) -> bool:
    """Whether a worker waits at a step boundary."""
    return state.membership.count(NodePhase.PAUSED) > 0


@on(incident.IncidentResolved)
def _incident_resolved(state: JobState, event: Event, data: incident.IncidentResolved, changes: Changes) -> None:
    step_incident(state, "incident.resolved", changes)
    where = f"/{_where_to(state)}" if data.outcome == "released" else ""
    step_job(state, f"incident.resolved{where}", changes)
    if is_running(state):
        pace.training_began(state, event.time)
    _forget_outcome(state)
    _close(state)
    state.history.streak = 0
    if data.outcome == "stepped":
        state.training.resume_step = None
    if data.outcome in ("stepped", "settled", "finished") and state.evidence.repeat.key.endswith("@None"):
        state.evidence.repeat = Repeat()  # the fault was before the first step, which is now completed


@on(incident.IncidentExhausted)
def _incident_exhausted(state: JobState, event: Event, data: incident.IncidentExhausted, changes: Changes) -> None:
    open_incident = step_incident(state, "incident.exhausted", changes)
    if open_incident is None or open_incident.kind == "fault":
        step_job(state, "incident.exhausted", changes)
    else:
        step_job(state, f"incident.exhausted/{_where_to(state)}", changes)
    _forget_outcome(state)
    _close(state)


def _close(state: JobState) -> None:
    known, requests = state.incident, state.requests
    if known is not None:
        if requests.pending is not None and known.kind == "request" and known.fault.root == requests.pending.seq:
            requests.pending = None
        if known.kind != "opportunity":
            state.history.offered = 0
        goes_on = known.kind == "fault" or (not is_paused(state) and follows(state, DISRUPTIONS))
        if goes_on and requests.pending is None:
            requests.pending = requests.paused_for  # pause the job again in its new round
        if requests.resume is not None and known.fault.root == requests.resume.seq:
            requests.resume = None
    state.incident = None
    state.evidence.reports = []


def _await_diagnosis(state: JobState, event: Event, open_incident: IncidentState) -> None:
    """Delay the replacement of nodes until all nodes at fault had time to show."""
    assert state.spec is not None
    patience_s = state.spec.timing.diagnosis_s
    if open_incident.opened + seconds(patience_s) > event.time:
        timers.start(state, timers.DiagnosisTimer(), open_incident.opened, patience_s)


@on(policy.PolicyAnswered)
def _policy_answered(state: JobState, event: Event, data: policy.PolicyAnswered, changes: Changes) -> None:
    ordered = state.orders.open.get(data.effect)
    if ordered is not None and isinstance(ordered.command, AskPolicy):
        advised(state, ordered, data)


@on(policy.PolicyFaulted)
def _policy_faulted(state: JobState, event: Event, data: policy.PolicyFaulted, changes: Changes) -> None:
    ordered = state.orders.open.get(data.effect)
    if ordered is not None and isinstance(ordered.command, AskPolicy):
        advised_nothing(state, ordered, f"was asked and failed: {data.error}")


def _launch_under_way(state: JobState, terms: Terms) -> PlanOrder | None:
    """The earlier order that already launches replacements for all nodes that the plan replaces; None if none does."""
    effects = {state.membership.launched.get(name, "") for name in terms.replace}
    effect = effects.pop() if len(effects) == 1 else ""
    return PlanOrder(effect=effect) if effect else None


@on(policy.PolicyConsidered)
def _policy_considered(state: JobState, event: Event, data: policy.PolicyConsidered, changes: Changes) -> None:
    open_incident = step_incident(state, f"policy.considered/{data.verdict}", changes)
    if open_incident is None:
        return
    open_incident.asked.append(data.policy)
    if data.lacks:
        state.abilities.lacking[data.policy] = data.lacks
    if data.verdict != "take":
        if data.again_s > 0:
            timers.start(state, timers.OfferTimer(), event.time, data.again_s)
        state.history.at_commit = state.history.at_commit or data.at_commit
        return
    terms = data.terms if data.terms is not None else Terms()
    ends = data.plan == "end"
    open_incident.plan = TakenPlan(
        policy=data.policy,
        kind=data.plan,
        terms=terms,
        reason=data.reason,
        taken_at=event.seq,
        grace_s=data.grace_s,
        wait_s=data.wait_s,
        deadline_s=data.deadline_s,
        ending=RunEnding(outcome=data.outcome, exit_code=data.exit_code) if ends else None,
        order=_launch_under_way(state, terms),
    )
    if open_incident.kind == "fault" and (terms.replace or terms.quarantine):
        _await_diagnosis(state, event, open_incident)
    times = state.history.attempts.setdefault(data.policy, [])
    times.append(event.time)
    del times[:-ATTEMPTS_MAX]
    if _restarts(data.plan, terms):
        state.history.streak += 1
