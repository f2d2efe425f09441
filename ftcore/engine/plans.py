"""Plans: asking the chain, beginning what a policy took, and what leaves the processes in place.

Each ``advance_*`` function returns whether it decided anything. Plans that form a new round go on in ``rounds.py``.
"""

from ftcore.commands import ADVISER, AskPolicy, PauseWorkers, tag_of
from ftcore.engine.departure import begin_round, defer
from ftcore.engine.dispatch import order, order_in_place, order_resume, order_stop, supersede
from ftcore.engine.ending import finish
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionSuperseded
from ftcore.events.incident import IncidentContinued, IncidentEscalated, IncidentExhausted, IncidentResolved
from ftcore.events.job import JobFinished
from ftcore.events.policy import AlertRaised, PlanApplied, PolicyConsidered, Terms
from ftcore.policies.base import Ask, PlanKind, Take, Verdict
from ftcore.policies.chain import consult
from ftcore.states.model import IncidentState
from ftcore.states.phases import awaits_verdict, is_acting, is_recovering

_PLAIN = Terms()

REVISIONS_MAX = 32
"""Readings of one incident that made the chain start again, beside one for each node; more, and nothing helps."""

_FULFILLED = {
    "pause_workers": "paused",
    "resume_workers": "resumed",
    "save_checkpoint": "saved",
    "retry_step": "retried",
}


def advance_consult(turn: Turn) -> bool:
    """Ask the chain about an incident that waits for an answer."""
    state, known = turn.state, turn.state.incident
    if known is None or not awaits_verdict(known):
        return False
    if state.held and known.kind == "fault":
        return False  # an operator wants no recovery to begin
    if any(isinstance(ordered.command, AskPolicy) for ordered in state.actions.values()):
        return False  # a policy that is not ours thinks about it
    if known.revision > REVISIONS_MAX + (len(state.world.members) if state.world is not None else 0):
        _exhaust(turn, known)
        return True
    for answer in consult(state.chain, known, state):
        if isinstance(answer.verdict, Ask):
            question = AskPolicy(policy=answer.policy, incident=known.id, revision=known.revision)
            order(turn, question, (ADVISER,), answer.verdict.within_s, incident=known.id)
            return True
        turn.emit(_considered(answer.policy, answer.verdict, known), incident=known.id)
        if isinstance(answer.verdict, Take):
            _begin(turn, known)
            return True
    _exhaust(turn, known)
    return True


def _considered(policy: str, verdict: Verdict, known: IncidentState) -> PolicyConsidered:
    if not isinstance(verdict, Take):
        return PolicyConsidered(
            policy=policy,
            verdict="pass",
            reason=verdict.reason,
            revision=known.revision,
            again_s=verdict.again_s,
            at_commit=verdict.at_commit,
            lacks=verdict.lacks,
        )
    return PolicyConsidered(
        policy=policy,
        verdict="take",
        reason=verdict.reason,
        revision=known.revision,
        plan=str(verdict.plan),
        grace_s=verdict.grace_s,
        deadline_s=verdict.deadline_s,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        wait_s=verdict.wait_s,
        attempt=verdict.attempt,
        terms=verdict.terms if verdict.terms != _PLAIN else None,
    )


def _exhaust(turn: Turn, known: IncidentState) -> None:
    """Nobody took it: a fault fails the job, a wish that it end ends it, anything else is dropped."""
    tried = ", ".join(dict.fromkeys(known.tried)) or "nothing could be tried"
    kind, summary = known.kind, known.fault.summary
    turn.emit(IncidentExhausted(reason=tried), incident=known.id)
    if kind == "fault":
        finish(turn, JobFinished(outcome="failed", exit_code=1, reason=f"{summary}; tried: {tried}"), known.id)
    elif (stop := turn.state.stop) is not None and known.fault.root == stop.seq:
        reason = f"{summary}; tried: {tried}"
        finish(turn, JobFinished(outcome="stopped", exit_code=stop.exit_code, reason=reason), known.id)


def _begin(turn: Turn, known: IncidentState) -> None:
    """Begin the plan that was just taken."""
    state, terms = turn.state, known.terms
    supersede(turn, known)
    if known.plan == PlanKind.TELL:
        turn.emit(
            AlertRaised(severity=terms.severity, title=f"{state.job}: {known.fault.cls}", text=terms.alert),
            incident=known.id,
        )
        turn.emit(IncidentContinued(policy=known.taken, outcome="told"), incident=known.id)
    elif known.plan == PlanKind.IN_PLACE:
        assert terms.command is not None, known.taken
        if not order_in_place(turn, known, terms.command):
            turn.emit(IncidentEscalated(policy=known.taken, reason="no member has living workers"), incident=known.id)
    elif known.plan == PlanKind.RESTART:
        if not defer(turn, known):
            begin_round(turn, known)
    else:
        order_stop(turn, known.grace_s, known.id)


def advance_plan(turn: Turn) -> bool:
    """Move on a plan that waits for the answers to its own order."""
    state, known = turn.state, turn.state.incident
    if known is None or not is_acting(known) or not known.effect:
        return False
    if known.refused:
        pausing = state.actions[known.effect].waiting if known.effect in state.actions else None
        if known.effect in state.actions:
            turn.emit(ActionSuperseded(effect=known.effect, reason=known.refused), incident=known.id)
        if isinstance(known.terms.command, PauseWorkers) and state.paused_for is None:
            order_resume(turn, pausing)
        turn.emit(IncidentEscalated(policy=known.taken, reason=known.refused), incident=known.id)
        return True
    if known.plan != PlanKind.IN_PLACE or known.effect in state.actions or not is_recovering(state):
        return False
    policy, terms = known.taken, known.terms
    assert terms.command is not None
    done = _FULFILLED[tag_of(terms.command)]
    turn.emit(PlanApplied(policy=policy, then=terms.then), incident=known.id)
    if terms.then == "continue":
        turn.emit(IncidentContinued(policy=policy, outcome=done), incident=known.id)
    elif terms.then != "verify":
        turn.emit(IncidentResolved(policy=policy, outcome=done), incident=known.id)
    return True
