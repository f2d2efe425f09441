"""The machine of a job.

House rules: only decisions change the phase of a job, never facts alone, so the log shows why each change was made.
A job enters ``stuck`` when a fact cannot be folded, or when a node contradicts the log. Its workers keep running, and
the master decides nothing until an operator acts. So one fact cannot crash one master after another, and no world is
formed while another one, unknown to the log, may be training.
"""

from enum import StrEnum

from ftcore.states.table import Guard, Ignored, Machine, Row, rows


class JobPhase(StrEnum):
    """Phases of a job."""

    ASSEMBLING = "assembling"
    """It waits for enough nodes for its first world."""
    CHECKING = "checking"
    """The nodes check their health before a round is planned: the first one, or one of a recovery."""
    FORMING = "forming"
    """A round is planned; it waits for its nodes, its store and the back-off."""
    STARTING = "starting"
    """The world is fixed; the members start their workers."""
    RUNNING = "running"
    """The workers of every member run."""
    PAUSED = "paused"
    """Every worker waits at a step boundary: an operator requested it, or a policy waits for a disruption to end."""
    RECOVERING = "recovering"
    """An incident is open; its plan has not led to a new round or a step yet."""
    STUCK = "stuck"
    """A fact could not be folded, or a node contradicts the log; workers keep running, an operator must act."""
    SUCCEEDED = "succeeded"
    """All workers exited with code 0."""
    FAILED = "failed"
    """A policy ended the run as failed, or no policy could resolve an incident."""
    STOPPED = "stopped"
    """An operator stopped it; it can be resumed by another run."""


P = JobPhase
LIVING = (P.ASSEMBLING, P.CHECKING, P.FORMING, P.STARTING, P.RUNNING, P.PAUSED, P.RECOVERING)
ENDED = (P.SUCCEEDED, P.FAILED, P.STOPPED)
_MOVING = (P.CHECKING, P.FORMING, P.STARTING, P.RUNNING, P.PAUSED, P.RECOVERING)

_WITH_ROUND = (P.FORMING, P.STARTING, P.RUNNING, P.PAUSED)
_NOT_CHECKING = tuple(phase for phase in LIVING if phase is not P.CHECKING)
_STANDBYS_CHECKED = "standby nodes are checked without interrupting the job"


def _was(phase: JobPhase) -> Guard:
    def guard(before_stuck: object) -> bool:
        return before_stuck is phase

    return guard


JOB = Machine(
    name="job",
    doc="A job from its submission to its end, through any number of rounds.",
    states=JobPhase,
    initial=P.ASSEMBLING,
    finals=ENDED,
    table=(
        *rows("job.submitted", ENDED, P.ASSEMBLING),  # another run in the same log
        *rows("action.ordered/check_health", (P.ASSEMBLING, P.RECOVERING, P.CHECKING), P.CHECKING),
        Row("health.judged/first", P.CHECKING, P.ASSEMBLING),
        Row("health.judged/again", P.CHECKING, P.RECOVERING),
        *rows("round.planned", (P.ASSEMBLING, P.RECOVERING), P.FORMING),
        Row("world.formed", P.FORMING, P.STARTING),
        Row("round.started", P.STARTING, P.RUNNING),
        *rows("incident.opened", (P.ASSEMBLING, P.CHECKING, P.FORMING, P.STARTING, P.RUNNING, P.PAUSED), P.RECOVERING),
        *rows("incident.rediagnosed", _MOVING, P.RECOVERING),
        *rows("incident.escalated", _MOVING, P.RECOVERING),
        Row("departure.deferred", P.RECOVERING, P.RUNNING),
        Row("departure.begun", P.RUNNING, P.RECOVERING),
        *rows("plan.applied/on", (P.RECOVERING,), P.RUNNING),
        *rows("plan.applied/paused", (P.RECOVERING,), P.PAUSED),
        *rows("incident.resolved/on", (P.RECOVERING,), P.RUNNING),
        *rows("incident.resolved/paused", (P.RECOVERING,), P.PAUSED),
        *rows("incident.exhausted/on", (P.RECOVERING,), P.RUNNING),
        *rows("incident.exhausted/paused", (P.RECOVERING,), P.PAUSED),
        *rows("job.finished/succeeded", (P.RUNNING, P.STARTING, P.PAUSED), P.SUCCEEDED),
        *rows("job.finished/failed", LIVING, P.FAILED),
        *rows("job.finished/stopped", LIVING, P.STOPPED),
        *rows("job.parked", LIVING, P.STUCK),
        *rows("log.contradicted", LIVING, P.STUCK),
        *(Row("job.unparked", P.STUCK, phase, guard=f"was {phase}") for phase in LIVING),
        Row("job.finished/stopped", P.STUCK, P.STOPPED),
    ),
    ignored=(
        Ignored("action.ordered/check_health", _WITH_ROUND, _STANDBYS_CHECKED),
        Ignored("health.judged/first", _NOT_CHECKING, _STANDBYS_CHECKED),
        Ignored("health.judged/again", _NOT_CHECKING, _STANDBYS_CHECKED),
        Ignored("incident.resolved", tuple(P), "the phase changed when the round started or the run ended"),
        Ignored("job.parked", (P.STUCK,), "already stuck; the event still records the fact"),
        Ignored("log.contradicted", (P.STUCK,), "already stuck; the event still records the contradiction"),
        Ignored("log.contradicted", ENDED, "the run has ended; the master refuses a new run"),
        Ignored("incident.exhausted", tuple(P), "a job.finished follows and changes the phase"),
        Ignored("plan.applied/continue", (P.RECOVERING,), "the chain continues with the next policy"),
    ),
    guards={f"was {phase}": _was(phase) for phase in LIVING},
)
