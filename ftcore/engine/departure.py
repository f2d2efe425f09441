"""Departures: nodes that still train leave once others are ready for their places, so nobody waits for a launch.

A plan that takes a node out of a healthy job has the platform launch first, and stops no worker until enough nodes
stand by that have joined, passed the health check that is due, and can fork their workers at once.

House rules: nothing waits for a departure: a fault, or the end of the run, comes first, and finds the launch under way.
It is deferred no longer than the plan waits for newcomers; then the plan has failed, unless it launches none. An
operator who holds the job holds the departure too. What is asked after every fact looks at no list of all nodes.
"""

from collections.abc import Collection

from ftcore.engine.dispatch import (
    NAMES_MAX,
    next_round,
    order_park,
    order_replacements,
    order_stop,
    order_store,
)
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionSuperseded
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentEscalated
from ftcore.policies.situation import everyone_lives, is_alive, left
from ftcore.states import timers
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_deferred
from ftcore.states.revisions import READY_FIRST, follows
from ftcore.states.world import usable
from ftcore.wording import format_duration, listed


def begin_round(turn: Turn, known: IncidentState) -> None:
    """Stop or park the workers for the plan's round, and have its store opened."""
    state, terms = turn.state, known.terms
    if terms.survivors == "park":
        order_park(turn, known)
    else:
        order_stop(turn, known.grace_s, known.id)
    if known.wait_s == 0:
        order_store(turn, next_round(state), known.id, (*terms.exclude, *terms.avoid))


def defer(turn: Turn, known: IncidentState) -> bool:
    """Let the job train on until others are ready, if the plan takes healthy nodes out and others can come.

    Returns:
        Whether it does; else the workers are to be stopped now.
    """
    state, terms = turn.state, known.terms
    if not follows(state, READY_FIRST) or not _is_of_healthy_nodes(state, known):
        return False
    want = _wanted(state, known)
    if not terms.replace and not _ready(state, known) < want <= _there(state, known):
        return False
    if terms.replace and not known.effect:
        order_replacements(turn, known, keep=True)
    assert state.spec is not None
    patience_s = state.spec.timing.return_window_s if terms.patience_s is None else terms.patience_s
    turn.emit(DepartureDeferred(nodes=terms.exclude, want=want, patience_s=patience_s), incident=known.id)
    return True


def advance_deferred(turn: Turn) -> bool:
    """Begin a deferred departure when its newcomers are ready; give it up when they do not come."""
    state, known = turn.state, turn.state.incident
    if known is None or not is_deferred(known) or state.held:
        return False
    if known.refused:
        if known.effect in state.actions:
            turn.emit(ActionSuperseded(effect=known.effect, reason=known.refused), incident=known.id)
        turn.emit(IncidentEscalated(policy=known.taken, reason=known.refused), incident=known.id)
    elif known.effect in state.actions:
        return False  # no node leaves before the platform has accepted the launch
    elif _ready(state, known) >= _wanted(state, known):
        _depart(turn, known, _standing_by(state, known))
    elif timers.is_running(state, timers.Departure()):
        return False
    elif known.terms.replace:
        turn.emit(IncidentEscalated(policy=known.taken, reason=_in_vain(state, known)), incident=known.id)
    else:
        _depart(turn, known, ())
    return True


def _depart(turn: Turn, known: IncidentState, ready: tuple[str, ...]) -> None:
    turn.emit(DepartureBegun(nodes=known.terms.exclude, ready=ready), incident=known.id)
    begin_round(turn, known)


def _is_of_healthy_nodes(state: JobState, known: IncidentState) -> bool:
    """Whether the plan takes out nodes that train, of a job that does not wait for anything."""
    if known.kind not in ("request", "warning") or state.paused_for is not None or state.count(NodePhase.PAUSED):
        return False
    terms = known.terms
    leaving = any(is_alive(state, name) for name in terms.exclude)
    return leaving and terms.rollback_to is None and everyone_lives(state)


def _wanted(state: JobState, known: IncidentState) -> int:
    assert state.world is not None
    return known.terms.want or len(state.world.members)


def _there(state: JobState, known: IncidentState) -> int:
    """Nodes of the largest world without those that leave, of all that have joined."""
    return _usable(state, left(state, _without(known)))


def _ready(state: JobState, known: IncidentState) -> int:
    """Nodes of the largest world without those that leave, of those that could start at once."""
    without = _without(known)
    awaited = {*state.unchecked, *state.cold}.difference(without)
    return _usable(state, left(state, without) - len(awaited))


def _usable(state: JobState, count: int) -> int:
    return usable(count, state.spec) if state.spec is not None else 0


def _without(known: IncidentState) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known.terms.exclude, *known.terms.avoid)))


def _standing_by(state: JobState, known: IncidentState) -> tuple[str, ...]:
    awaited: Collection[str] = {*state.unchecked, *state.cold, *_without(known)}
    free = (node.node for node in state.alive() if node.phase is NodePhase.STANDBY)
    return tuple(name for name in free if name not in awaited)[:NAMES_MAX]


def _in_vain(state: JobState, known: IncidentState) -> str:
    """What was waited for, and how far it came."""
    waited = state.time - known.deferred
    why = [
        f"{listed(names)} {what}"
        for names, what in (
            (tuple(state.unchecked), "not checked"),
            (tuple(name for name in state.cold if name not in state.unchecked), "not warm"),
        )
        if names
    ]
    there = f" ({'; '.join(why)})" if why else ""
    patience = format_duration(round(waited / 1e9))
    return f"no node was ready for the place of {listed(known.terms.exclude)} in {patience}{there}"
