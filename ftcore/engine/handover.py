"""Handover: what the workers of a round that a plan ends leave to the next round. Pure.

A plan that ends a healthy round (growth, a drain, an eviction) first has all workers stop at one step boundary and save
there in memory, if the script registered its state. They are stopped where they wait, so no step is lost: the next
round resumes with the step after it.

Shards in the memory of a node that the plan takes out would be lost with it. If the nodes that stay do not hold that
state, and no checkpoint on storage is as new, they are written to storage before the node is released.

House rules: a plan never fails because of its handover. If the workers cannot be held, they are stopped where they are,
and the next round resumes from what was saved before.
"""

from collections.abc import Collection

from ftcore.commands import FindBoundary, SaveCheckpoint
from ftcore.engine.checkpoints import awaits_manifest, persist
from ftcore.engine.dispatch import (
    FIND_DEADLINE_S,
    coming_world,
    members,
    newest_round,
    next_round,
    order,
    order_park,
    order_stop,
    order_store,
)
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionSuperseded
from ftcore.events.world import Member
from ftcore.policies.situation import all_workers_alive, hands_over
from ftcore.states.model import IncidentState, JobState
from ftcore.states.phases import is_acting
from ftcore.states.resume import at_risk
from ftcore.states.revisions import HANDOVER, follows

HOLD_S = 300.0
"""Longest time in seconds for all ranks to reach their step boundary and to save there."""

RESCUE_S = 300.0
"""Longest time in seconds for which a node that leaves waits until its shards are on storage."""


def begin_round(turn: Turn, incident: IncidentState) -> None:
    """Hold the workers at a step boundary, or stop them at once if they cannot hand their state over there."""
    state, terms = turn.state, incident.plan_in_force().terms
    goes_on = terms.rollback_to is None and terms.survivors == "stop"
    if incident.kind == "fault" or not goes_on or not hands_over(state):
        _stop_round(turn, incident)
        return
    names = tuple(node.node for node in members(state))
    order(turn, FindBoundary(round=newest_round(state)), names, FIND_DEADLINE_S, incident=incident.id)


def advance_hold(turn: Turn) -> bool:
    """Order the save at the boundary that was found; stop the workers when it is made, or impossible."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not is_acting(incident):
        return False
    hold = incident.plan_in_force().hold
    if hold is None or (hold.effect in state.orders.open and not hold.refused):
        return False
    if hold.effect in state.orders.open:
        turn.emit(ActionSuperseded(effect=hold.effect, reason=hold.refused), incident=incident.id)
    if hold.finds and hold.boundary and not hold.refused and all_workers_alive(state):
        command = SaveCheckpoint(round=newest_round(state), boundary=hold.boundary, hold=True)
        names = tuple(node.node for node in members(state))
        order(turn, command, names, HOLD_S, incident=incident.id)
        return True
    return _stop_round(turn, incident)


def _stop_round(turn: Turn, incident: IncidentState) -> bool:
    """Stop or park the workers, and order the store of the plan's round; returns whether anything was ordered."""
    state, plan = turn.state, incident.plan_in_force()
    terms, issued = plan.terms, turn.state.orders.issued
    if terms.survivors == "park":
        order_park(turn, incident)
    else:
        order_stop(turn, plan.grace_s, incident.id)
    if plan.wait_s == 0:
        order_store(turn, next_round(state), incident.id, (*terms.exclude, *terms.avoid))
    return state.orders.issued > issued


def rescue(turn: Turn, incident: IncidentState) -> bool | None:
    """Order what only leaving nodes hold to be written to storage; the workers have stopped.

    Returns:
        Whether this decided something; None: nothing needs to be written any more.
    """
    state, plan = turn.state, incident.plan_in_force()
    if not follows(state, HANDOVER) or state.spec is None or not state.spec.checkpoints:
        return None
    if plan.terms.rollback_to is not None:  # what the nodes hold is newer, and is left behind
        return None
    if plan.rescue:
        return False if plan.rescue in state.orders.open or awaits_manifest(state) else None
    out = [name for name in plan.terms.exclude if name in state.membership.nodes]
    if not any(state.membership.nodes[name].alive for name in out):
        return None
    lost = at_risk(state, coming_world(state, plan.terms.exclude) or _rest(state, out))
    if lost is None:
        return None
    persist(turn, lost, RESCUE_S, incident.id)
    return True


def _rest(state: JobState, out: Collection[str]) -> list[Member]:
    """The living members of the world that stay."""
    seats = state.rounds.world.members if state.rounds.world is not None else ()
    living = [seat for seat in seats if state.membership.current(seat.node, seat.incarnation) is not None]
    return [seat for seat in living if seat.node not in out]
