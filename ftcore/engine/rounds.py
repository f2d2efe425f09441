"""Rounds: from the stop of the old round to the first steps of the new one, and the end of the job.

Each ``advance_*`` function returns whether it decided anything.
"""

from ftcore.commands import ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.checkpoints import awaits_manifest, awaits_newer
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
    order_surplus_stop,
    release_of,
)
from ftcore.engine.ending import finish
from ftcore.engine.handover import rescue
from ftcore.engine.health import check_again, check_first, check_needed
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionDone
from ftcore.events.incident import IncidentEscalated, IncidentResolved
from ftcore.events.job import DataSkipped, JobFinished, JobRolledBack, RateLowered
from ftcore.events.node import NodeQuarantined
from ftcore.events.world import MEMBERS_PER_EVENT, RoundPlanned, RoundStarted, WorldFormed, WorldMembers
from ftcore.ids import Round
from ftcore.policies.base import PlanKind
from ftcore.states import timers
from ftcore.states.buddies import choose_buddies
from ftcore.states.membership import NodeState
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import ACTIVE, OUTGOING, NodePhase
from ftcore.states.phases import awaits_outcome, is_acting, is_deferred
from ftcore.states.rate import lr_factor
from ftcore.states.resume import resume_of
from ftcore.states.revisions import NEWER_FIRST, SIZE_BEFORE, follows
from ftcore.states.world import batch_of, digest, next_size, usable
from ftcore.wording import plural


def advance_actions(turn: Turn) -> bool:
    """Complete the actions that all addressed nodes have answered."""
    done = [ordered.effect for ordered in turn.state.orders.open.values() if not ordered.waiting]
    for effect in done:
        turn.emit(ActionDone(effect=effect))
    return bool(done)


def advance_assembling(turn: Turn) -> bool:
    """Plan the first round: as soon as the maximum number of nodes has joined, or the minimum after the join window."""
    state, spec = turn.state, turn.state.spec
    if spec is None:
        return False
    count = usable(state.membership.available(), spec)
    if not count or (count < usable(spec.nodes_max, spec) and timers.is_running(state, timers.JoinTimer())):
        return False
    if usable(state.membership.ready(), spec) < count:
        checking = check_first(turn)
        if checking is not None:
            return checking
    turn.emit(RoundPlanned(round=next_round(state), wait_s=0.0, want=count, window_s=0.0, give_up_s=0.0))
    return True


def advance_recovering(turn: Turn) -> bool:
    """After all workers of the old round have stopped: plan the next round, or end the job."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not is_acting(incident):
        return False
    plan = incident.plan_in_force()
    if plan.kind not in (PlanKind.RESTART, PlanKind.END):
        return False
    if plan.terms.survivors == "park" and order_rest_stop(turn, incident):
        return True
    if state.membership.count(*ACTIVE) and not _stop_unanswered(state, incident):
        return False
    if plan.ending is not None:
        ending = plan.ending
        turn.emit(IncidentResolved(policy=plan.policy, outcome="ended"), incident=incident.id)
        finish(turn, JobFinished(outcome=ending.outcome, exit_code=ending.exit_code, reason=plan.reason), incident.id)
        return True
    rescuing = rescue(turn, incident)
    if rescuing is not None:
        return rescuing
    if timers.is_running(state, timers.DiagnosisTimer()):
        return False
    if plan.terms.replace and plan.order is None and order_replacements(turn, incident):
        return True
    if plan.order is not None and plan.order.effect in state.orders.open:
        return False  # no node is released before the platform has accepted the launch of its replacement
    if order_deletions(turn, incident):
        return True
    if _exclude(turn, incident):
        return True
    checking = check_again(turn, incident)
    return _plan_round(turn, incident) if checking is None else checking


def _exclude(turn: Turn, incident: IncidentState) -> bool:
    """Quarantine and release the nodes that the plan excludes."""
    state, plan = turn.state, incident.plan_in_force()
    terms = plan.terms
    new = [name for name in terms.quarantine if name not in state.membership.quarantined]
    for name in new:
        turn.emit(NodeQuarantined(node=name, reason=incident.fault.summary), incident=incident.id)
    found = (state.membership.nodes.get(name) for name in terms.exclude)
    outgoing = [node for node in found if node is not None and node.alive and node.phase not in OUTGOING]
    if outgoing:
        order_release(turn, tuple(node.node for node in outgoing), plan.reason, incident.id)
    return bool(new or outgoing)


def _plan_round(turn: Turn, incident: IncidentState) -> bool:
    state, plan = turn.state, incident.plan_in_force()
    terms = plan.terms
    assert state.spec is not None
    timing = state.spec.timing
    if terms.skip_after is not None:
        _skip(turn, incident, terms.skip_after)
    if terms.rollback_to is not None:
        if terms.rollback_to not in state.training.checkpoints and follows(state, NEWER_FIRST):
            reason = f"the checkpoint of step {terms.rollback_to} was removed for a newer one meanwhile"
            turn.emit(IncidentEscalated(policy=plan.policy, reason=reason), incident=incident.id)
            return True
        rolled = JobRolledBack(step=terms.rollback_to, before=incident.progress, reason=plan.reason)
        turn.emit(rolled, incident=incident.id)
        if terms.skip:
            _skip(turn, incident, terms.rollback_to)
        if terms.lr_factor != 1.0:
            before = lr_factor(state)
            lowered = RateLowered(
                policy=plan.policy,
                step=terms.rollback_to,
                factor=before * terms.lr_factor,
                before=before,
                reason=incident.fault.summary,
            )
            turn.emit(lowered, incident=incident.id)
    world = state.rounds.world
    last = len(world.members) if world is not None else usable(state.spec.nodes_max, state.spec)
    window_s, give_up_s = timing.join_window_s, timing.return_window_s
    if terms.patience_s is not None:
        window_s = give_up_s = terms.patience_s
    turn.emit(
        RoundPlanned(
            round=next_round(state),
            wait_s=plan.wait_s,
            want=min(terms.want or last, state.spec.nodes_max),
            window_s=window_s,
            give_up_s=give_up_s,
        ),
        incident=incident.id,
    )
    return True


def _skip(turn: Turn, incident: IncidentState, step: int) -> None:
    terms = incident.plan_in_force().terms
    skipped = DataSkipped(step=step, amount=terms.skip, unit=terms.skip_unit, reason=incident.fault.summary)
    turn.emit(skipped, incident=incident.id)


def _stop_unanswered(state: JobState, incident: IncidentState) -> bool:
    """Whether the job ends and its orders to stop have expired: then it does not wait for nodes that did not answer."""
    stopping = any(isinstance(ordered.command, StopWorkers) for ordered in state.orders.open.values())
    return incident.plan_in_force().kind == PlanKind.END and not stopping


def advance_forming(turn: Turn) -> bool:
    """Form the world of the planned round once nodes and store are ready and the back-off is over."""
    state, plan, spec = turn.state, turn.state.rounds.planned, turn.state.spec
    if plan is None or spec is None:
        return False
    incident = state.incident.id if state.incident is not None else None
    avoided = _avoided(state)
    if timers.is_running(state, timers.BackoffTimer(plan.round)):
        return False
    if state.membership.count(*ACTIVE):
        return order_stop(turn, spec.timing.stop_grace_s, incident)
    if order_store(turn, Round(plan.round), incident, avoided):
        return True
    ready = state.membership.ready() - sum(1 for name in avoided if name not in state.membership.unchecked)
    window = timers.is_running(state, timers.WindowTimer(plan.round))
    if state.membership.available() - len(avoided) < plan.want and window:
        return _give_up(turn, plan.round, plan.want)
    checking = check_needed(turn, plan.want - ready)
    if checking is not None:
        return checking
    count = usable(ready, spec)
    if count < plan.want and (not count or window):
        return _give_up(turn, plan.round, plan.want)
    if plan.round not in state.rounds.stores:
        return False
    world = coming_world(state, {*state.membership.unchecked, *avoided})
    assert len(world) == count
    resume, buddies = resume_of(state, world), choose_buddies(state, world)
    if follows(state, NEWER_FIRST) and awaits_newer(state, resume):
        return False
    last = state.rounds.world
    before = {member.node for member in last.members} if last is not None else set()
    size_before = last.size if last is not None and follows(state, SIZE_BEFORE) else 0
    after = {member.node for member in world}
    for first in range(0, len(world), MEMBERS_PER_EVENT):
        chunk = slice(first, first + MEMBERS_PER_EVENT)
        turn.emit(WorldMembers(round=plan.round, members=world[chunk], buddies=buddies[chunk]), incident=incident)
    turn.emit(
        WorldFormed(
            round=plan.round,
            nodes=len(world),
            size=sum(member.slots for member in world),
            digest=digest(world),
            joined=tuple(sorted(after - before))[:NAMES_MAX],
            gone=tuple(sorted(before - after))[:NAMES_MAX],
            store=state.rounds.stores[plan.round],
            resume=resume,
            batch=batch_of(spec, world),
            size_before=size_before,
            persist_every=chosen.steps if (chosen := state.training.saved.pace.chosen) is not None else 0,
        ),
        incident=incident,
    )
    order(turn, StartWorkers(round=Round(plan.round)), (), spec.timing.start_timeout_s, incident=incident)
    order_surplus_stop(turn, spec.timing.stop_grace_s, incident)
    return True


def _avoided(state: JobState) -> tuple[str, ...]:
    """Nodes that could be in the next world, but that the plan avoids."""
    plan = state.incident.plan if state.incident is not None else None
    if plan is None or plan.kind != PlanKind.RESTART:
        return ()
    found = (state.membership.nodes.get(name) for name in plan.terms.avoid)
    return tuple(node.node for node in found if node is not None and node.alive and node.phase not in OUTGOING)


def _give_up(turn: Turn, round_: int, want: int) -> bool:
    """Escalate the incident if the plan's nodes did not come back in time."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not is_acting(incident) or timers.is_running(state, timers.ReturnTimer(round_)):
        return False
    reason = _too_few(state, state.membership.available() - len(_avoided(state)), want)
    turn.emit(IncidentEscalated(policy=incident.plan_in_force().policy, reason=reason), incident=incident.id)
    return True


def _too_few(state: JobState, available: int, want: int) -> str:
    """How many nodes the plan waited for, and with how many the job could continue."""
    assert state.spec is not None
    waited = f"it waited for {plural(want, 'node')}, and {available} {'is' if available == 1 else 'are'} there"
    if count := usable(available, state.spec):
        return f"{waited}; with {count} the job may go on, if a policy below makes the world smaller"
    return f"{waited}; the job needs at least {next_size(state.spec, available)}"


def advance_starting(turn: Turn) -> bool:
    """Record the start of the round once the workers of all members run or have finished."""
    state = turn.state
    if state.rounds.world is None:
        return False
    up = (NodePhase.RUNNING, NodePhase.FINISHED)
    if state.membership.count(*up) < len(state.rounds.world.members):
        return False
    present = members(state)
    if len(present) < len(state.rounds.world.members) or any(node.phase not in up for node in present):
        return False
    incident = state.incident.id if state.incident is not None else None
    turn.emit(RoundStarted(round=state.rounds.world.round), incident=incident)
    return True


def advance_verifying(turn: Turn) -> bool:
    """Resolve the incident when its outcome is known; escalate it when its deadline has expired."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not awaits_outcome(incident) or state.rounds.world is None:
        return False
    round_ = state.rounds.world.round
    reported = state.rounds.world.stepped + state.membership.count(NodePhase.FINISHED)
    settled = not timers.is_running(state, timers.SettleTimer(round_))
    plan = incident.plan_in_force()
    late = plan.deadline_s > 0 and not timers.is_running(state, timers.OutcomeTimer(round_))
    if not settled and not late and reported < len(state.rounds.world.members):
        return False
    present = members(state)
    stepped = [node for node in present if node.stepped is not None]
    finished = [node for node in present if node.phase is NodePhase.FINISHED]
    if len(finished) == len(present):
        outcome = "finished"
    elif len(set(map(id, stepped)) | set(map(id, finished))) == len(present) or (settled and stepped):
        outcome = "stepped"
    elif settled and not state.training.reports_steps:
        outcome = "settled"
    elif late:
        reason = f"no step was completed in {plan.deadline_s:g} s"
        turn.emit(IncidentEscalated(policy=plan.policy, reason=reason), incident=incident.id)
        return True
    else:
        return False
    resolved = IncidentResolved(policy=plan.policy, outcome=outcome, steps_lost=_steps_lost(state, incident, stepped))
    turn.emit(resolved, incident=incident.id)
    return True


def _steps_lost(state: JobState, incident: IncidentState, stepped: list[NodeState]) -> int | None:
    """Steps completed before the incident that must be repeated; None if steps are not absolute."""
    if not (incident.absolute and state.training.step_absolute and incident.progress is not None and stepped):
        return None
    first = min(node.stepped for node in stepped if node.stepped is not None)
    return max(0, incident.progress - (first - 1))


def advance_finished(turn: Turn) -> bool:
    """End the job as succeeded once the workers of all members have ended with code 0."""
    state, incident = turn.state, turn.state.incident
    if (incident is not None and not is_deferred(incident)) or state.rounds.world is None:
        return False
    if state.membership.count(NodePhase.FINISHED) < len(state.rounds.world.members) or awaits_manifest(state):
        return False
    for member in state.rounds.world.members:
        node = state.membership.current(member.node, member.incarnation)
        if node is None or node.phase is not NodePhase.FINISHED:
            return False
    if incident is not None:
        policy = incident.plan_in_force().policy
        turn.emit(IncidentResolved(policy=policy, outcome="ended"), incident=incident.id)
    finish(turn, JobFinished(outcome="succeeded", exit_code=0, reason="every worker ended with code 0"))
    return True


def advance_release(turn: Turn) -> bool:
    """Order all nodes of an ended job to leave."""
    state = turn.state
    releases = [ordered for ordered in state.orders.open.values() if isinstance(ordered.command, ReleaseNode)]
    if sum(len(ordered.waiting) for ordered in releases) == len(state.membership.places):
        return False
    released = {name for ordered in releases for name in ordered.waiting}
    names = tuple(node.node for node in state.membership.alive() if node.node not in released)
    if not names:
        return False
    command = release_of(state)
    order(turn, command, names, None)
    return True


def advance_outgoing(turn: Turn) -> bool:
    """Order quarantined nodes to leave, including those that come back."""
    state = turn.state
    if not state.membership.count(NodePhase.QUARANTINED):
        return False
    released = {name for o in state.orders.open.values() if isinstance(o.command, ReleaseNode) for name in o.waiting}
    unwanted = (node.node for node in state.membership.alive() if node.phase is NodePhase.QUARANTINED)
    names = tuple(name for name in unwanted if name not in released)
    if not names:
        return False
    reasons = ", ".join(f"{name}: {state.membership.quarantined[name]}" for name in names[:NAMES_MAX])
    order_release(turn, names, f"quarantined: {reasons}", None)
    return True
