"""Handlers of events of incidents and of verdicts."""

from ftcore.commands import AskPolicy, RetryStep
from ftcore.events import incident, policy
from ftcore.events.envelope import Event
from ftcore.events.policy import Terms
from ftcore.ids import seconds
from ftcore.states import timers
from ftcore.states.faultkey import fault_key, is_of_no_node, is_same
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
from ftcore.states.model import (
    HISTORY_MAX,
    IncidentState,
    JobState,
    Repeat,
)
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_deferred

ATTEMPTS_MAX = 1024
"""Attempts remembered per policy; a budget larger than this is refused when the policy file is read."""


@on(incident.IncidentOpened)
def _incident_opened(state: JobState, event: Event, data: incident.IncidentOpened, changes: Changes) -> None:
    step_job(state, "incident.opened", changes)
    assert event.incident is not None
    if data.kind == "opportunity":
        state.offered = event.seq
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
    if data.kind != "fault":
        return  # a wish or a warning is no failure to make progress
    _count_culprit(state, event, state.incident, data.fault)
    repeat = state.repeat
    repeat.before = (repeat.key, repeat.count)
    _count_repeat(state, data.fault)


def _count_culprit(state: JobState, event: Event, known: IncidentState, fault: incident.Fault) -> None:
    known.counted = fault.nodes[0] if fault.nodes and not is_of_no_node(fault) else ""
    if known.counted:
        times = state.node_faults.setdefault(known.counted, [])
        times.append(event.time)
        del times[:-HISTORY_MAX]


def _recount_culprit(state: JobState, event: Event, known: IncidentState, fault: incident.Fault) -> None:
    """A better reading of the same round moves the count from one culprit to the other; a new round's adds to it."""
    anew = bool(state.reports) and state.reports[-1].round > known.round
    times = state.node_faults.get(known.counted)
    if times and not anew:  # none are left of a node that an operator has admitted again since
        times.pop()
    _count_culprit(state, event, known, fault)


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
        if data.kind == "fault" and data.fault.nodes[:1] != open_incident.fault.nodes[:1]:
            _recount_culprit(state, event, open_incident, data.fault)
    else:
        deferred = is_deferred(open_incident)
        step_incident(state, "incident.rediagnosed/worse", changes)
        step_job(state, "incident.rediagnosed", changes)
        tried = not deferred and was_tried(state, open_incident)
        if tried or open_incident.kind != "fault":
            state.repeat.before = (state.repeat.key, state.repeat.count)
        if not tried:
            _take_back(state, open_incident)
        if state.reports and state.reports[-1].round > open_incident.round:
            state.repeat.before = (state.repeat.key, state.repeat.count)  # the new round's fault is the next in the row
        if data.kind == "fault" and data.fault.root != open_incident.fault.root:
            _recount_culprit(state, event, open_incident, data.fault)
        open_incident.kind = data.kind
        if state.world is not None:
            open_incident.round = state.world.round
        open_incident.asked, open_incident.answers = [], {}
        _forget_plan(state, open_incident)
    open_incident.fault, open_incident.revision = data.fault, data.revision
    if data.kind == "fault":
        _count_repeat(state, data.fault)


def was_tried(state: JobState, open_incident: IncidentState) -> bool:
    """Whether the plan in force got as far as a new round, or failed on the way to it."""
    newest = state.reports[-1] if state.reports else None
    return newest is None or newest.round > open_incident.round or newest.type == "action.failed"


def _take_back(state: JobState, open_incident: IncidentState) -> None:
    """A plan that a better reading replaces before it was tried costs neither budget nor back-off."""
    if open_incident.plan in ("restart", "in_place"):
        state.attempts[open_incident.taken].pop()
        state.streak -= open_incident.plan == "restart"


def _forget_plan(state: JobState, open_incident: IncidentState) -> None:
    open_incident.taken, open_incident.plan, open_incident.terms = "", "", Terms()
    open_incident.effect, open_incident.refused = "", ""
    _forget_outcome(state)


def _forget_outcome(state: JobState) -> None:
    timers.cancel_of_plan(state)
    state.plan = None


@on(incident.IncidentEscalated)
def _incident_escalated(state: JobState, event: Event, data: incident.IncidentEscalated, changes: Changes) -> None:
    deferred = is_deferred(state.incident)
    open_incident = step_incident(state, "incident.escalated", changes)
    step_job(state, "incident.escalated", changes)
    if open_incident is not None:
        if deferred:
            not_launched(state, open_incident.effect)  # who comes all the same stands by
            state.streak -= 1  # nothing was interrupted
        open_incident.tried.append(data.policy)
        _forget_plan(state, open_incident)


@on(incident.DepartureDeferred)
def _departure_deferred(state: JobState, event: Event, data: incident.DepartureDeferred, changes: Changes) -> None:
    open_incident = step_incident(state, "departure.deferred", changes)
    step_job(state, "departure.deferred", changes)
    if open_incident is not None:
        open_incident.deferred = event.time
    timers.start(state, timers.Departure(), event.time, data.patience_s)


@on(incident.DepartureBegun)
def _departure_begun(state: JobState, event: Event, data: incident.DepartureBegun, changes: Changes) -> None:
    step_incident(state, "departure.begun", changes)
    step_job(state, "departure.begun", changes)
    timers.cancel(state, timers.Departure())


@on(incident.IncidentContinued)
def _incident_continued(state: JobState, event: Event, data: incident.IncidentContinued, changes: Changes) -> None:
    open_incident = step_incident(state, "incident.continued", changes)
    if open_incident is not None:
        open_incident.saved = open_incident.saved or data.outcome == "saved"
        state.applied[data.policy] = event.time
        _forget_plan(state, open_incident)


@on(policy.PlanApplied)
def _plan_applied(state: JobState, event: Event, data: policy.PlanApplied, changes: Changes) -> None:
    open_incident = state.incident
    if open_incident is None:
        return
    state.applied[data.policy] = event.time
    command = open_incident.terms.command
    if isinstance(command, RetryStep) and command.tolerate:
        state.tolerated.append(command.step)
        del state.tolerated[:-HISTORY_MAX]
    if data.then == "continue":
        step_incident(state, "plan.applied/other", changes)
        step_job(state, "plan.applied/continue", changes)
        return
    if data.then == "pause" and state.request is not None and state.request.seq == open_incident.fault.root:
        state.paused_for = state.request  # unless somebody has asked for something else since
    if data.then == "verify":
        step_incident(state, "plan.applied/verify", changes)
        _expect_steps(state, event, open_incident)
    else:
        step_incident(state, "plan.applied/other", changes)
    step_job(state, f"plan.applied/{'paused' if data.then == 'pause' else _where_to(state)}", changes)


def _where_to(state: JobState) -> str:
    """Whether a job whose incident is over without a new round runs on or is still paused."""
    known = state.incident
    pausing = known is not None and (known.kind, known.fault.detail) == ("request", "pause")
    paused = state.paused_for is not None or (state.count(NodePhase.PAUSED) and not pausing)
    return "paused" if paused else "on"


def _expect_steps(state: JobState, event: Event, open_incident: IncidentState) -> None:
    """From here on a step of every member counts as the plan's outcome."""
    assert state.world is not None and state.spec is not None
    state.world.stepped = 0
    for member in state.world.members:
        found = state.current(member.node, member.incarnation)
        if found is not None:
            found.stepped = None
    timers.start(state, timers.Settle(state.world.round), event.time, state.spec.timing.settle_s)
    if open_incident.deadline_s > 0:
        timers.start(state, timers.Outcome(state.world.round), event.time, open_incident.deadline_s)


@on(incident.IncidentResolved)
def _incident_resolved(state: JobState, event: Event, data: incident.IncidentResolved, changes: Changes) -> None:
    step_incident(state, "incident.resolved", changes)
    where = f"/{_where_to(state)}" if data.outcome == "released" else ""
    step_job(state, f"incident.resolved{where}", changes)
    _forget_outcome(state)
    _close(state)
    state.streak = 0
    if data.outcome == "stepped":
        state.resume_step = None
    if data.outcome in ("stepped", "settled", "finished") and state.repeat.key.endswith("@None"):
        state.repeat = Repeat()  # it failed before its first step; now it has made one


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
    known = state.incident
    if known is not None:
        if state.request is not None and known.kind == "request" and known.fault.root == state.request.seq:
            state.request = None
        if known.kind != "opportunity":
            state.offered = 0
        if known.kind == "fault" and state.paused_for is not None and state.request is None:
            state.request = state.paused_for  # it was paused when the fault came: it shall be so again
    state.incident = None
    state.reports = []


def _await_diagnosis(state: JobState, event: Event, open_incident: IncidentState) -> None:
    """Nodes are given up only when it had time to show how many are at fault."""
    assert state.spec is not None
    patience_s = state.spec.timing.diagnosis_s
    if open_incident.opened + seconds(patience_s) > event.time:
        timers.start(state, timers.Diagnosis(), open_incident.opened, patience_s)


@on(policy.PolicyAnswered)
def _policy_answered(state: JobState, event: Event, data: policy.PolicyAnswered, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    if ordered is not None and isinstance(ordered.command, AskPolicy):
        advised(state, ordered, data)


@on(policy.PolicyFaulted)
def _policy_faulted(state: JobState, event: Event, data: policy.PolicyFaulted, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    if ordered is not None and isinstance(ordered.command, AskPolicy):
        advised_nothing(state, ordered, f"was asked and failed: {data.error}")


def _launch_under_way(state: JobState, terms: Terms) -> str:
    """The order, given while they trained, that all nodes are replaced by that the plan wants replaced; else empty."""
    effects = {state.launched.get(name, "") for name in terms.replace}
    return effects.pop() if len(effects) == 1 else ""


@on(policy.PolicyConsidered)
def _policy_considered(state: JobState, event: Event, data: policy.PolicyConsidered, changes: Changes) -> None:
    open_incident = step_incident(state, f"policy.considered/{data.verdict}", changes)
    if open_incident is None:
        return
    open_incident.asked.append(data.policy)
    if data.lacks:
        state.lacking[data.policy] = data.lacks
    if data.verdict != "take":
        if data.again_s > 0:
            timers.start(state, timers.Offer(), event.time, data.again_s)
        state.at_commit = state.at_commit or data.at_commit
        return
    open_incident.terms = data.terms if data.terms is not None else Terms()
    open_incident.taken_at, open_incident.refused = event.seq, ""
    open_incident.effect = _launch_under_way(state, open_incident.terms)
    open_incident.taken, open_incident.plan, open_incident.reason = data.policy, data.plan, data.reason
    open_incident.grace_s, open_incident.wait_s = data.grace_s, data.wait_s
    open_incident.deadline_s = data.deadline_s
    open_incident.outcome, open_incident.exit_code = data.outcome, data.exit_code
    if open_incident.kind == "fault" and (open_incident.terms.replace or open_incident.terms.quarantine):
        _await_diagnosis(state, event, open_incident)
    times = state.attempts.setdefault(data.policy, [])
    times.append(event.time)
    del times[:-ATTEMPTS_MAX]
    if data.plan == "restart":
        state.streak += 1
