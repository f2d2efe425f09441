"""Plans: ask the chain, begin the plan of the policy that took the incident, and carry out plans in place.

Each ``advance_*`` function returns whether it decided anything. Plans that form a new round continue in ``rounds.py``.
"""

from ftcore.commands import ADVISER, AskPolicy, PauseWorkers, SaveCheckpoint, StartWorkers, tag_of
from ftcore.engine.checkpoints import awaits_manifest, has_storage, order_persist
from ftcore.engine.departure import defer
from ftcore.engine.dispatch import at_boundary, first_order, order, order_in_place, order_resume, order_stop, supersede
from ftcore.engine.ending import finish
from ftcore.engine.handover import begin_round
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionSuperseded
from ftcore.events.incident import IncidentContinued, IncidentEscalated, IncidentExhausted, IncidentResolved
from ftcore.events.job import JobFinished
from ftcore.events.policy import AlertRaised, PlanApplied, PolicyConsidered, Terms
from ftcore.policies.base import Ability, Ask, PlanKind, Take, Verdict
from ftcore.policies.chain import consult
from ftcore.policies.situation import all_workers_alive, registers_state, title
from ftcore.states.model import IncidentState, JobState, PlanOrder, TakenPlan
from ftcore.states.phases import awaits_verdict, is_acting, is_recovering
from ftcore.states.revisions import BEGUN_FROM, FOUND_BY_ALL, STARTED_FIRST, follows

_PLAIN = Terms()

REVISIONS_MAX = 32
"""Limit of an incident's revisions, in addition to one per member; beyond it the incident is exhausted."""

_FULFILLED = {
    "pause_workers": "paused",
    "resume_workers": "resumed",
    "save_checkpoint": "saved",
}


def advance_consult(turn: Turn) -> bool:
    """Ask the chain about an incident that has no plan."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not awaits_verdict(incident):
        return False
    if state.requests.held and incident.kind == "fault":
        return False  # an operator holds recoveries
    if incident.kind == "fault" and _awaits_starts(state):
        return False
    if any(isinstance(ordered.command, AskPolicy) for ordered in state.orders.open.values()):
        return False  # the answer of a policy of another package is pending
    if incident.revision > REVISIONS_MAX + (len(state.rounds.world.members) if state.rounds.world is not None else 0):
        _exhaust(turn, incident)
        return True
    for answer in consult(state.policy.chain, incident, state):
        if isinstance(answer.verdict, Ask):
            question = AskPolicy(policy=answer.policy, incident=incident.id, revision=incident.revision)
            order(turn, question, (ADVISER,), answer.verdict.within_s, incident=incident.id)
            return True
        turn.emit(_considered(answer.policy, answer.verdict, incident), incident=incident.id)
        if isinstance(answer.verdict, Take):
            _begin(turn, incident)
            return True
    _exhaust(turn, incident)
    return True


def _awaits_starts(state: JobState) -> bool:
    """Whether workers are still being started that could then leave their round and wait: starting them takes no time.

    Without that wait, a fault at the beginning of a round would cost all processes.
    """
    if not follows(state, STARTED_FIRST) or not state.can(Ability.RETRY):
        return False
    return any(isinstance(each.command, StartWorkers) and each.waiting for each in state.orders.open.values())


def _considered(policy: str, verdict: Verdict, incident: IncidentState) -> PolicyConsidered:
    if not isinstance(verdict, Take):
        return PolicyConsidered(
            policy=policy,
            verdict="pass",
            reason=verdict.reason,
            revision=incident.revision,
            again_s=verdict.again_s,
            at_commit=verdict.at_commit,
            lacks=verdict.lacks,
        )
    return PolicyConsidered(
        policy=policy,
        verdict="take",
        reason=verdict.reason,
        revision=incident.revision,
        plan=str(verdict.plan),
        grace_s=verdict.grace_s,
        deadline_s=verdict.deadline_s,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        wait_s=verdict.wait_s,
        attempt=verdict.attempt,
        terms=verdict.terms if verdict.terms != _PLAIN else None,
    )


def _exhaust(turn: Turn, incident: IncidentState) -> None:
    """No policy took the incident: a fault fails the job, a request to stop ends it, anything else is dropped."""
    tried = ", ".join(dict.fromkeys(incident.tried)) or "no policy could be tried"
    kind, summary = incident.kind, incident.fault.summary
    turn.emit(IncidentExhausted(reason=tried), incident=incident.id)
    if kind == "fault":
        finish(turn, JobFinished(outcome="failed", exit_code=1, reason=f"{summary}; tried: {tried}"), incident.id)
    elif (stop := turn.state.requests.stop) is not None and incident.fault.root == stop.seq:
        reason = f"{summary}; tried: {tried}"
        finish(turn, JobFinished(outcome="stopped", exit_code=stop.exit_code, reason=reason), incident.id)


def _begin(turn: Turn, incident: IncidentState) -> None:
    """Begin the plan of the policy that took the incident."""
    state, plan = turn.state, incident.plan_in_force()
    terms = plan.terms
    supersede(turn, incident)
    if plan.kind == PlanKind.TELL:
        turn.emit(
            AlertRaised(severity=terms.severity, title=f"{state.job}: {title(incident, state)}", text=terms.alert),
            incident=incident.id,
        )
        turn.emit(IncidentContinued(policy=plan.policy, outcome="told"), incident=incident.id)
    elif plan.kind == PlanKind.IN_PLACE:
        assert terms.command is not None, plan.policy
        if not order_in_place(turn, incident, first_order(state, terms.command)):
            turn.emit(IncidentEscalated(policy=plan.policy, reason="no member has live workers"), incident=incident.id)
    elif plan.kind == PlanKind.RESTART:
        if not defer(turn, incident):
            begin_round(turn, incident)
    else:
        order_stop(turn, plan.grace_s, incident.id)


def advance_plan(turn: Turn) -> bool:
    """Advance a plan that waits for the answers to its own order."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not is_acting(incident):
        return False
    plan = incident.plan_in_force()
    ordered = plan.order
    if ordered is None:
        return False
    if ordered.refused and not _is_refusal_tolerated(state, plan, ordered):
        pausing = state.orders.open[ordered.effect].waiting if ordered.effect in state.orders.open else None
        if ordered.effect in state.orders.open:
            turn.emit(ActionSuperseded(effect=ordered.effect, reason=ordered.refused), incident=incident.id)
        stopped = isinstance(plan.terms.command, PauseWorkers) or ordered.finds
        if stopped and state.requests.paused_for is None:
            order_resume(turn, None if ordered.finds else pausing)
        turn.emit(IncidentEscalated(policy=plan.policy, reason=ordered.refused), incident=incident.id)
        return True
    if plan.kind != PlanKind.IN_PLACE or ordered.effect in state.orders.open or not is_recovering(state):
        return False
    policy, terms = plan.policy, plan.terms
    assert terms.command is not None
    if ordered.finds:
        if isinstance(terms.command, SaveCheckpoint) and not all_workers_alive(state):
            reason = "a node was lost before all ranks could stop at one step boundary"
            turn.emit(IncidentEscalated(policy=policy, reason=reason), incident=incident.id)
            return True
        if not ordered.boundary or not order_in_place(turn, incident, at_boundary(terms.command, ordered.boundary)):
            turn.emit(
                IncidentEscalated(policy=policy, reason="no worker reaches a step boundary"), incident=incident.id
            )
        return True
    if _must_persist(state, plan):
        why_not = order_persist(turn, incident)
        if why_not:
            turn.emit(IncidentEscalated(policy=policy, reason=ordered.refused or why_not), incident=incident.id)
        ordered = plan.order
        if why_not or (ordered is not None and ordered.effect in state.orders.open):
            return True
    if ordered is not None and ordered.saved_step is not None and awaits_manifest(state, ordered.saved_step):
        return False
    done = _FULFILLED[tag_of(terms.command)]
    turn.emit(PlanApplied(policy=policy, then=terms.then), incident=incident.id)
    if terms.then == "continue":
        turn.emit(IncidentContinued(policy=policy, outcome=done), incident=incident.id)
    else:
        turn.emit(IncidentResolved(policy=policy, outcome=done), incident=incident.id)
    return True


def _is_refusal_tolerated(state: JobState, plan: TakenPlan, ordered: PlanOrder) -> bool:
    """Whether the plan goes on without the node that refused its order: it can save nothing, others may hold enough.

    A step boundary must be found by all ranks: one that has not answered may have passed it.
    """
    finds = ordered.finds and follows(state, FOUND_BY_ALL)
    return follows(state, BEGUN_FROM) and not finds and _must_persist(state, plan)


def _must_persist(state: JobState, plan: TakenPlan) -> bool:
    """Whether the surviving ranks have only staged their state: a script that lacks ranks cannot save by itself.

    A node that has nothing to stage, such as one whose worker died before it registered its state, refuses: what the
    others hold decides.
    """
    stages = isinstance(plan.terms.command, SaveCheckpoint) and not (plan.order is not None and plan.order.persists)
    return stages and registers_state(state) and (has_storage(state) or follows(state, BEGUN_FROM))
