"""The end of a job: said in the log, and to people where the chain names somebody to tell."""

import attrs

from ftcore.engine.nan import end_of_nan
from ftcore.engine.turn import Turn
from ftcore.events.incident import IncidentEscalated, IncidentExhausted
from ftcore.events.job import JobFinished
from ftcore.events.node import NodeGaveUp
from ftcore.policies.alerting import word_of_end
from ftcore.states.phases import has_ended, has_plan


def finish(turn: Turn, finished: JobFinished, incident: str | None = None) -> None:
    """End the job.

    Args:
        turn: the turn in which it ends.
        finished: how.
        incident: the incident that ended it, if one did.
    """
    finished = attrs.evolve(finished, reason=finished.reason + end_of_nan(turn.state))
    word = word_of_end(turn.state, finished)
    if word is not None:
        turn.emit(word, incident=incident)
    turn.emit(finished)


def end_given_up(turn: Turn) -> None:
    """End the job as failed if the turn's fact is that a node's launcher gave up: no plan of ours can overrule it."""
    data, state = turn.fact.data, turn.state
    if not isinstance(data, NodeGaveUp) or has_ended(state) or not state.current(data.node, data.incarnation):
        return
    known, reason = state.incident, f"{data.node} gave up: {data.reason}"
    if known is not None:
        if has_plan(known):
            turn.emit(IncidentEscalated(policy=known.taken, reason=reason), incident=known.id)
        turn.emit(IncidentExhausted(reason=reason), incident=known.id)
    finish(
        turn,
        JobFinished(outcome="failed", exit_code=data.exit_code, reason=reason),
        known.id if known is not None else None,
    )
