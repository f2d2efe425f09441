"""Departures: a node that still trains leaves after its replacement is ready, so the job does not wait for a launch.

A plan that takes a node out of a healthy job first has the platform launch a replacement. It stops no worker until
enough standby nodes have joined, passed their health check, and can fork workers at once.

- A fault, or the end of the run, takes precedence over a departure; the launch continues.
- A departure is deferred for at most the plan's patience. Then the plan has failed, unless it launches no node.
- If an operator holds the job, the departure is held as well.
- The checks after every fact do not scan all nodes.
"""

from collections.abc import Collection

from ftcore.engine.dispatch import NAMES_MAX, order_replacements
from ftcore.engine.handover import begin_round
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionSuperseded
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentEscalated
from ftcore.policies.situation import all_workers_alive, is_alive, nodes_left
from ftcore.states import timers
from ftcore.states.model import IncidentState, JobState, TakenPlan
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_deferred
from ftcore.states.revisions import READY_FIRST, follows
from ftcore.states.world import usable
from ftcore.wording import format_duration, listed


def defer(turn: Turn, incident: IncidentState) -> bool:
    """Defer the plan until replacements are ready, if it takes out healthy nodes and replacements are possible.

    Returns:
        Whether the plan is deferred; if not, the workers must be stopped now.
    """
    state, plan = turn.state, incident.plan_in_force()
    terms = plan.terms
    if not follows(state, READY_FIRST) or not _is_of_healthy_nodes(state, incident):
        return False
    want = _wanted(state, incident)
    if not terms.replace and not _ready(state, incident) < want <= _joined(state, incident):
        return False
    if terms.replace and plan.order is None:
        order_replacements(turn, incident, keep=True)
    assert state.spec is not None
    patience_s = state.spec.timing.return_window_s if terms.patience_s is None else terms.patience_s
    turn.emit(DepartureDeferred(nodes=terms.exclude, want=want, patience_s=patience_s), incident=incident.id)
    return True


def advance_deferred(turn: Turn) -> bool:
    """Begin a deferred departure when the replacements are ready; fail the plan when its patience is over."""
    state, incident = turn.state, turn.state.incident
    if incident is None or not is_deferred(incident) or state.requests.held:
        return False
    plan = incident.plan_in_force()
    launch = plan.order
    if launch is not None and launch.refused:
        if launch.effect in state.orders.open:
            turn.emit(ActionSuperseded(effect=launch.effect, reason=launch.refused), incident=incident.id)
        turn.emit(IncidentEscalated(policy=plan.policy, reason=launch.refused), incident=incident.id)
    elif launch is not None and launch.effect in state.orders.open:
        return False  # no node leaves before the platform has accepted the launch
    elif _ready(state, incident) >= _wanted(state, incident):
        _depart(turn, incident, _standing_by(state, incident))
    elif timers.is_running(state, timers.DepartureTimer()):
        return False
    elif plan.terms.replace:
        turn.emit(IncidentEscalated(policy=plan.policy, reason=_not_ready(state, plan)), incident=incident.id)
    else:
        _depart(turn, incident, ())
    return True


def _depart(turn: Turn, incident: IncidentState, ready: tuple[str, ...]) -> None:
    turn.emit(DepartureBegun(nodes=incident.plan_in_force().terms.exclude, ready=ready), incident=incident.id)
    begin_round(turn, incident)


def _is_of_healthy_nodes(state: JobState, incident: IncidentState) -> bool:
    """Whether the plan takes nodes out of a job that trains normally."""
    if (
        incident.kind not in ("request", "warning")
        or state.requests.paused_for is not None
        or state.membership.count(NodePhase.PAUSED)
    ):
        return False
    terms = incident.plan_in_force().terms
    leaving = any(is_alive(state, name) for name in terms.exclude)
    return leaving and terms.rollback_to is None and all_workers_alive(state)


def _wanted(state: JobState, incident: IncidentState) -> int:
    assert state.rounds.world is not None
    return incident.plan_in_force().terms.want or len(state.rounds.world.members)


def _joined(state: JobState, incident: IncidentState) -> int:
    """Size of the largest world without the leaving nodes, from all nodes that have joined."""
    return _usable(state, nodes_left(state, _without(incident)))


def _ready(state: JobState, incident: IncidentState) -> int:
    """Size of the largest world without the leaving nodes, from nodes that can start at once."""
    without = _without(incident)
    awaited = {*state.membership.unchecked, *state.membership.cold}.difference(without)
    return _usable(state, nodes_left(state, without) - len(awaited))


def _usable(state: JobState, count: int) -> int:
    return usable(count, state.spec) if state.spec is not None else 0


def _without(incident: IncidentState) -> tuple[str, ...]:
    terms = incident.plan_in_force().terms
    return tuple(dict.fromkeys((*terms.exclude, *terms.avoid)))


def _standing_by(state: JobState, incident: IncidentState) -> tuple[str, ...]:
    awaited: Collection[str] = {*state.membership.unchecked, *state.membership.cold, *_without(incident)}
    free = (node.node for node in state.membership.alive() if node.phase is NodePhase.STANDBY)
    return tuple(name for name in free if name not in awaited)[:NAMES_MAX]


def _not_ready(state: JobState, plan: TakenPlan) -> str:
    """Why the deferred plan failed: which replacements were not ready."""
    waited = state.time - plan.deferred_at if plan.deferred_at is not None else 0
    why = [
        f"{listed(names)} {what}"
        for names, what in (
            (tuple(state.membership.unchecked), "not checked"),
            (tuple(name for name in state.membership.cold if name not in state.membership.unchecked), "not warm"),
        )
        if names
    ]
    details = f" ({'; '.join(why)})" if why else ""
    patience = format_duration(round(waited / 1e9))
    return f"no replacement for {listed(plan.terms.exclude)} was ready within {patience}{details}"
