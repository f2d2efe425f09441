"""Decisions: what follows from a fact, given the folded state. Pure.

A turn first opens or amends the incident (``notice.py``). Then it advances the plan (``plans.py``: ask the chain, begin
the plan; ``rounds.py``: stop, form, start, verify, end) until no function decides anything more. Advancing depends on
the folded state alone, so a new master continues exactly where its predecessor stopped.
"""

from collections.abc import Callable

from ftcore.commands import ReleaseNode
from ftcore.engine.checkpoints import advance_commit, warn_of_failed_save, warn_of_false_replicas
from ftcore.engine.departure import advance_deferred
from ftcore.engine.dispatch import NAMES_MAX
from ftcore.engine.ending import end_given_up, finish
from ftcore.engine.handover import advance_hold
from ftcore.engine.health import advance_spares, judge_health
from ftcore.engine.nan import warn_of_nan
from ftcore.engine.notice import notice, notice_calm
from ftcore.engine.plans import advance_consult, advance_plan
from ftcore.engine.queues import serve_queues
from ftcore.engine.rounds import (
    advance_actions,
    advance_assembling,
    advance_finished,
    advance_forming,
    advance_outgoing,
    advance_recovering,
    advance_release,
    advance_starting,
    advance_verifying,
)
from ftcore.engine.save_interval import advance_interval
from ftcore.engine.standstill import judge_standstill
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionFailed
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentResolved
from ftcore.events.job import JobFinished, JobUnparked
from ftcore.events.operator import OperatorCommanded
from ftcore.states import phases, timers
from ftcore.states.job import JobPhase
from ftcore.states.model import ActionState, JobState


def turn(state: JobState, fact: Event) -> list[Event]:
    """Fold a fact and decide what follows from it.

    Args:
        state: the folded state before the fact; changed in place, speculatively (see ``engine/turn.py``).
        fact: the fact, sequenced.

    Returns:
        The group to append: the fact, then its decisions.
    """
    this_turn = Turn(state, fact)
    decide(this_turn)
    return this_turn.events


def decide(turn: Turn) -> None:
    """Decide everything that follows from the turn's fact."""
    state = turn.state
    if phases.is_stuck(state):
        _decide_stuck(turn)
        return
    _expire(turn)
    end_given_up(turn)
    judge_health(turn)
    judge_standstill(turn)
    warn_of_nan(turn)
    warn_of_failed_save(turn)
    warn_of_false_replicas(turn)
    serve_queues(turn)
    notice(turn, turn.fact.seq)
    _advance(turn)


def _advance(turn: Turn) -> None:
    while any(advance(turn) for advance in _ADVANCE_IN[turn.state.phase]):
        assert len(turn.events) < 100_000, "a turn does not end"


def _decide_stuck(turn: Turn) -> None:
    data = turn.fact.data
    if isinstance(data, OperatorCommanded) and data.command == "resume":
        turn.emit(JobUnparked(who=data.who))
        _catch_up(turn)
    elif isinstance(data, OperatorCommanded) and data.command == "stop":
        incident = turn.state.incident
        if incident is not None:
            turn.emit(IncidentResolved(policy=data.command, outcome="ended"), incident=incident.id)
        finish(
            turn,
            JobFinished(outcome="stopped", exit_code=data.exit_code, reason=f"{data.who} stopped a stuck job"),
            incident.id if incident is not None else None,
        )
        advance_release(turn)


def _catch_up(turn: Turn) -> None:
    """Decide what was left open while the job was stuck: facts were folded then, but nothing was decided."""
    state = turn.state
    for ordered in list(state.orders.open.values()):
        if not isinstance(ordered.command, ReleaseNode) and not timers.is_running(
            state, timers.ActionTimer(ordered.effect)
        ):
            _fail(turn, ordered)
    judge_health(turn)
    notice(turn, 0)
    _advance(turn)


def _expire(turn: Turn) -> None:
    """Fail an action whose deadline has expired."""
    data = turn.fact.data
    timer = timers.parse(data.key) if isinstance(data, DeadlineExpired) else None
    if isinstance(timer, timers.ActionTimer):
        ordered = turn.state.orders.open.get(timer.effect)
        if ordered is not None and not timers.is_running(turn.state, timer):
            _fail(turn, ordered)


def _fail(turn: Turn, ordered: ActionState) -> None:
    names = ", ".join(list(ordered.waiting)[:NAMES_MAX])
    turn.emit(ActionFailed(effect=ordered.effect, reason=f"no answer in time from {names}"))


def _advance_calm(turn: Turn) -> bool:
    """Open the request or opportunity that waited for the end of another incident."""
    if turn.state.incident is not None or turn.state.requests.stop is not None:
        return False
    before = len(turn.events)
    notice_calm(turn)
    return len(turn.events) > before


ADVANCES: tuple[tuple[Callable[[Turn], bool], phases.JobCondition], ...] = (
    (advance_commit, phases.is_under_way),
    (advance_consult, phases.decides),
    (advance_plan, phases.decides),
    (advance_hold, phases.decides),
    (advance_deferred, phases.is_running),
    (advance_recovering, phases.plans_rounds),
    (advance_assembling, phases.is_assembling),
    (advance_forming, phases.is_forming),
    (advance_starting, phases.is_starting),
    (advance_verifying, phases.decides),
    (advance_spares, phases.checks_standbys),
    (advance_finished, phases.is_running),
    (advance_outgoing, phases.is_under_way),
    (advance_release, phases.has_ended),
    (advance_actions, phases.decides),
    (advance_interval, phases.is_running),
    (_advance_calm, phases.is_up),
)
"""Called in this order, each only in the phases of its condition; after a decision, from the start again."""

_ADVANCE_IN = {
    phase: tuple(advance for advance, condition in ADVANCES if phase in condition.phases) for phase in JobPhase
}
