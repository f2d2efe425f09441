"""The use of a campaign's time without training."""

from ftcore.policies.base import PlanKind
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import JobState


def lost_use(state: JobState, *, hit: bool, loading: bool) -> str:
    """The use to which time without training is booked, one of ``replay.spans.USES``.

    Args:
        state: the state of the job.
        hit: a fault has happened that the job does not know yet.
        loading: its workers load their state.
    """
    phase, incident = state.phase, state.incident
    if phase in ENDED or phase in (JobPhase.ASSEMBLING, JobPhase.STUCK):
        return "idle"
    if phase is JobPhase.PAUSED:
        return "paused"
    if phase is JobPhase.FORMING:
        missing = state.rounds.planned is not None and len(state.membership.places) < state.rounds.planned.want
        return "idle" if missing else "rendezvous"
    if incident is None:
        return "detect" if hit else "start"
    if incident.plan is None:
        return "decide"
    if loading:
        return "load"
    in_place = incident.plan.kind == PlanKind.IN_PLACE
    return "start" if in_place or phase in (JobPhase.STARTING, JobPhase.RUNNING) else "stop"
