"""The end of a job: record it, and raise an alert if the chain asks for one."""

import msgspec

from ftcore.engine.nan import nan_note
from ftcore.engine.turn import Turn
from ftcore.events.incident import IncidentEscalated, IncidentExhausted
from ftcore.events.job import JobFinished
from ftcore.events.node import NodeGaveUp
from ftcore.policies.alerting import end_alert
from ftcore.states.phases import has_ended, has_plan


def finish(turn: Turn, finished: JobFinished, incident: str | None = None) -> None:
    """End the job.

    Args:
        turn: the current turn.
        finished: the outcome.
        incident: the incident that caused the end, if any.
    """
    finished = msgspec.structs.replace(finished, reason=finished.reason + nan_note(turn.state))
    alert = end_alert(turn.state, finished)
    if alert is not None:
        turn.emit(alert, incident=incident)
    turn.emit(finished)


def end_given_up(turn: Turn) -> None:
    """End the job as failed if the turn's fact is that a node's launcher gave up; no plan can override that."""
    data, state = turn.fact.data, turn.state
    if (
        not isinstance(data, NodeGaveUp)
        or has_ended(state)
        or not state.membership.current(data.node, data.incarnation)
    ):
        return
    incident, reason = state.incident, f"{data.node} gave up: {data.reason}"
    if incident is not None:
        if has_plan(incident):
            turn.emit(IncidentEscalated(policy=incident.plan_in_force().policy, reason=reason), incident=incident.id)
        turn.emit(IncidentExhausted(reason=reason), incident=incident.id)
    finish(
        turn,
        JobFinished(outcome="failed", exit_code=data.exit_code, reason=reason),
        incident.id if incident is not None else None,
    )
