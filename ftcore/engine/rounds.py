"""Rounds: from the stop of the old one to the first steps of the new one, and the end of the job.

Each ``advance_*`` function returns whether it decided anything.
"""

from ftcore.commands import ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.dispatch import (
    NAMES_MAX,
    coming_world,
    members,
    next_round,
    order,
    order_deletions,
    order_release,
    order_replacements,
    order_rest_stop,
    order_stop,
    order_store,
)
from ftcore.engine.ending import finish
from ftcore.engine.health import check_again, check_first, check_needed
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionDone
from ftcore.events.incident import IncidentEscalated, IncidentResolved
from ftcore.events.job import DataSkipped, JobFinished, JobRolledBack
from ftcore.events.node import NodeQuarantined
from ftcore.events.world import MEMBERS_PER_EVENT, RoundPlanned, RoundStarted, WorldFormed, WorldMembers
from ftcore.ids import Round
from ftcore.policies.base import PlanKind
from ftcore.states import timers
from ftcore.states.model import IncidentState, JobState, NodeState
from ftcore.states.node import ACTIVE, OUTGOING, NodePhase
from ftcore.states.phases import awaits_outcome, is_acting, is_deferred
from ftcore.states.world import digest, next_size, usable
from ftcore.wording import plural


def advance_actions(turn: Turn) -> bool:
    """Close the orders that every addressed node has answered."""
    done = [ordered.effect for ordered in turn.state.actions.values() if not ordered.waiting]
    for effect in done:
        turn.emit(ActionDone(effect=effect))
    return bool(done)


def advance_assembling(turn: Turn) -> bool:
    """Plan the first round once the nodes are there: all at once, or the minimum after the join window."""
    state, spec = turn.state, turn.state.spec
    if spec is None:
        return False
    count = usable(state.available(), spec)
    if not count or (count < usable(spec.nodes_max, spec) and timers.is_running(state, timers.Join())):
        return False
    if usable(state.ready(), spec) < count:
        checking = check_first(turn)
        if checking is not None:
            return checking
    turn.emit(RoundPlanned(round=next_round(state), wait_s=0.0, want=count, window_s=0.0, give_up_s=0.0))
    return True


def advance_recovering(turn: Turn) -> bool:
    """Once no worker of the old round runs any more: plan the next round, or end the job."""
    state, known = turn.state, turn.state.incident
    if known is None or not is_acting(known) or known.plan not in (PlanKind.RESTART, PlanKind.END):
        return False
    if known.terms.survivors == "park" and order_rest_stop(turn, known):
        return True
    if state.count(*ACTIVE) and not _stop_unanswered(state, known):
        return False
    if known.plan == PlanKind.END:
        policy, outcome, code, reason = known.taken, known.outcome, known.exit_code, known.reason
        turn.emit(IncidentResolved(policy=policy, outcome="ended"), incident=known.id)
        finish(turn, JobFinished(outcome=outcome, exit_code=code, reason=reason), known.id)
        return True
    if timers.is_running(state, timers.Diagnosis()):
        return False
    if known.terms.replace and not known.effect and order_replacements(turn, known):
        return True
    if known.effect in state.actions:
        return False  # nobody is let go before the platform has promised somebody else
    if order_deletions(turn, known):
        return True
    if _exclude(turn, known):
        return True
    checking = check_again(turn, known)
    return _plan_round(turn, known) if checking is None else checking


def _exclude(turn: Turn, known: IncidentState) -> bool:
    """Quarantine and release the nodes that the next round must do without."""
    state, terms = turn.state, known.terms
    new = [name for name in terms.quarantine if name not in state.quarantined]
    for name in new:
        turn.emit(NodeQuarantined(node=name, reason=known.fault.summary), incident=known.id)
    found = (state.nodes.get(name) for name in terms.exclude)
    outgoing = [node for node in found if node is not None and node.alive and node.phase not in OUTGOING]
    if outgoing:
        order_release(turn, tuple(node.node for node in outgoing), known.reason, known.id)
    return bool(new or outgoing)


def _plan_round(turn: Turn, known: IncidentState) -> bool:
    state, terms = turn.state, known.terms
    assert state.spec is not None
    timing = state.spec.timing
    if terms.rollback_to is not None:
        rolled = JobRolledBack(step=terms.rollback_to, before=known.progress, reason=known.reason)
        turn.emit(rolled, incident=known.id)
        if terms.skip:
            skipped = DataSkipped(
                step=terms.rollback_to, amount=terms.skip, unit=terms.skip_unit, reason=known.fault.summary
            )
            turn.emit(skipped, incident=known.id)
    last = len(state.world.members) if state.world is not None else usable(state.spec.nodes_max, state.spec)
    window_s, give_up_s = timing.join_window_s, timing.return_window_s
    if terms.patience_s is not None:
        window_s = give_up_s = terms.patience_s
    turn.emit(
        RoundPlanned(
            round=next_round(state),
            wait_s=known.wait_s,
            want=min(terms.want or last, state.spec.nodes_max),
            window_s=window_s,
            give_up_s=give_up_s,
        ),
        incident=known.id,
    )
    return True


def _stop_unanswered(state: JobState, known: IncidentState) -> bool:
    """A job that ends does not wait for a node that did not even answer the order to stop."""
    stopping = any(isinstance(ordered.command, StopWorkers) for ordered in state.actions.values())
    return known.plan == PlanKind.END and not stopping


def advance_forming(turn: Turn) -> bool:
    """Form the planned round's world when its nodes, its store and its back-off are done."""
    state, plan, spec = turn.state, turn.state.plan, turn.state.spec
    if plan is None or spec is None:
        return False
    incident = state.incident.id if state.incident is not None else None
    avoided = _avoided(state)
    if timers.is_running(state, timers.Backoff(plan.round)):
        return False
    if state.count(*ACTIVE):
        return order_stop(turn, spec.timing.stop_grace_s, incident)
    if order_store(turn, Round(plan.round), incident, avoided):
        return True
    ready = state.ready() - sum(1 for name in avoided if name not in state.unchecked)
    window = timers.is_running(state, timers.Window(plan.round))
    if state.available() - len(avoided) < plan.want and window:
        return _give_up(turn, plan.round, plan.want)
    checking = check_needed(turn, plan.want - ready)
    if checking is not None:
        return checking
    count = usable(ready, spec)
    if count < plan.want and (not count or window):
        return _give_up(turn, plan.round, plan.want)
    if plan.round not in state.stores:
        return False
    taken_in = coming_world(state, {*state.unchecked, *avoided})
    assert len(taken_in) == count
    before = {member.node for member in state.world.members} if state.world is not None else set()
    after = {member.node for member in taken_in}
    for first in range(0, len(taken_in), MEMBERS_PER_EVENT):
        chunk = taken_in[first : first + MEMBERS_PER_EVENT]
        turn.emit(WorldMembers(round=plan.round, members=chunk), incident=incident)
    turn.emit(
        WorldFormed(
            round=plan.round,
            nodes=len(taken_in),
            size=sum(member.slots for member in taken_in),
            digest=digest(taken_in),
            joined=tuple(sorted(after - before))[:NAMES_MAX],
            gone=tuple(sorted(before - after))[:NAMES_MAX],
            store=state.stores[plan.round],
        ),
        incident=incident,
    )
    order(turn, StartWorkers(round=Round(plan.round)), (), spec.timing.start_timeout_s, incident=incident)
    return True


def _avoided(state: JobState) -> tuple[str, ...]:
    """Nodes that could be in the next world, and are not to be by the plan that it is formed for."""
    known = state.incident
    if known is None or known.plan != PlanKind.RESTART:
        return ()
    found = (state.nodes.get(name) for name in known.terms.avoid)
    return tuple(node.node for node in found if node is not None and node.alive and node.phase not in OUTGOING)


def _give_up(turn: Turn, round_: int, want: int) -> bool:
    """Escalate past a plan whose nodes did not come back in time."""
    state, known = turn.state, turn.state.incident
    if known is None or not is_acting(known) or timers.is_running(state, timers.Return(round_)):
        return False
    reason = _too_few(state, state.available() - len(_avoided(state)), want)
    turn.emit(IncidentEscalated(policy=known.taken, reason=reason), incident=known.id)
    return True


def _too_few(state: JobState, there: int, want: int) -> str:
    """What a plan waited for in vain, and with how many nodes the job may still go on."""
    assert state.spec is not None
    waited = f"it waited for {plural(want, 'node')}, and {there} {'is' if there == 1 else 'are'} there"
    if count := usable(there, state.spec):
        return f"{waited}; with {count} the job may go on, if a policy below makes the world smaller"
    return f"{waited}; the job needs at least {next_size(state.spec, there)}"


def advance_starting(turn: Turn) -> bool:
    """The round has started when every member's workers run (or are done already)."""
    state = turn.state
    if state.world is None:
        return False
    up = (NodePhase.RUNNING, NodePhase.FINISHED)
    if state.count(*up) < len(state.world.members):
        return False
    present = members(state)
    if len(present) < len(state.world.members) or any(node.phase not in up for node in present):
        return False
    incident = state.incident.id if state.incident is not None else None
    turn.emit(RoundStarted(round=state.world.round), incident=incident)
    return True


def advance_verifying(turn: Turn) -> bool:
    """Resolve the incident when its outcome is there; escalate when its deadline is over."""
    state, known = turn.state, turn.state.incident
    if known is None or not awaits_outcome(known) or state.world is None:
        return False
    round_ = state.world.round
    told = state.world.stepped + state.count(NodePhase.FINISHED)
    settled = not timers.is_running(state, timers.Settle(round_))
    late = known.deadline_s > 0 and not timers.is_running(state, timers.Outcome(round_))
    if not settled and not late and told < len(state.world.members):
        return False
    present = members(state)
    stepped = [node for node in present if node.stepped is not None]
    finished = [node for node in present if node.phase is NodePhase.FINISHED]
    if len(finished) == len(present):
        outcome = "finished"
    elif len(set(map(id, stepped)) | set(map(id, finished))) == len(present) or (settled and stepped):
        outcome = "stepped"
    elif settled and not state.reports_steps:
        outcome = "settled"
    elif late:
        reason = f"no step was completed in {known.deadline_s:g} s"
        turn.emit(IncidentEscalated(policy=known.taken, reason=reason), incident=known.id)
        return True
    else:
        return False
    resolved = IncidentResolved(policy=known.taken, outcome=outcome, steps_lost=_steps_lost(state, known, stepped))
    turn.emit(resolved, incident=known.id)
    return True


def _steps_lost(state: JobState, known: IncidentState, stepped: list[NodeState]) -> int | None:
    """Steps completed before the incident that have to be completed again; None where steps are not absolute."""
    if not (known.absolute and state.step_absolute and known.progress is not None and stepped):
        return None
    first = min(node.stepped for node in stepped if node.stepped is not None)
    return max(0, known.progress - (first - 1))


def advance_finished(turn: Turn) -> bool:
    """The job has succeeded when every member's workers ended with code 0."""
    state, known = turn.state, turn.state.incident
    if (known is not None and not is_deferred(known)) or state.world is None:
        return False
    if state.count(NodePhase.FINISHED) < len(state.world.members):
        return False
    for member in state.world.members:
        node = state.current(member.node, member.incarnation)
        if node is None or node.phase is not NodePhase.FINISHED:
            return False
    if known is not None:
        turn.emit(IncidentResolved(policy=known.taken, outcome="ended"), incident=known.id)
    finish(turn, JobFinished(outcome="succeeded", exit_code=0, reason="every worker ended with code 0"))
    return True


def advance_release(turn: Turn) -> bool:
    """Tell every node of an ended job to leave."""
    state = turn.state
    releases = [ordered for ordered in state.actions.values() if isinstance(ordered.command, ReleaseNode)]
    if sum(len(ordered.waiting) for ordered in releases) == len(state.places):
        return False
    told = {name for ordered in releases for name in ordered.waiting}
    names = tuple(node.node for node in state.alive() if node.node not in told)
    if not names:
        return False
    command = ReleaseNode(outcome=state.outcome, exit_code=state.exit_code, reason=state.reason)
    order(turn, command, names, None)
    return True


def advance_outgoing(turn: Turn) -> bool:
    """Tell quarantined nodes to leave, also those that come back."""
    state = turn.state
    if not state.count(NodePhase.QUARANTINED):
        return False
    told = {name for o in state.actions.values() if isinstance(o.command, ReleaseNode) for name in o.waiting}
    unwanted = (node.node for node in state.alive() if node.phase is NodePhase.QUARANTINED)
    names = tuple(name for name in unwanted if name not in told)
    if not names:
        return False
    reasons = ", ".join(f"{name}: {state.quarantined[name]}" for name in names[:NAMES_MAX])
    order_release(turn, names, f"quarantined: {reasons}", None)
    return True
