"""The machine of a job.

House rules: facts never move a job by themselves; decisions do. So the job is where the master put it, and a reader
of the log sees why. ``stuck`` is entered when a fact cannot be folded, or when a node contradicts the log: workers are
left running and nothing more is decided until an operator acts. So one fact cannot kill one master after another, and
no world begins beside one that the log does not know.
"""

from enum import StrEnum

from ftcore.states.table import Guard, Ignored, Machine, Row, rows


class JobPhase(StrEnum):
    """Where a job is."""

    ASSEMBLING = "assembling"
    """Waiting for enough nodes for its first world."""
    CHECKING = "checking"
    """The nodes check their health before a round is planned: the first one, or one of a recovery."""
    FORMING = "forming"
    """A round is planned: waiting for its nodes, its store and the back-off."""
    STARTING = "starting"
    """The world is fixed; the members start their workers."""
    RUNNING = "running"
    """Every member's workers run."""
    PAUSED = "paused"
    """Every worker waits at a step boundary, because somebody asked for it."""
    RECOVERING = "recovering"
    """An incident is open, and its plan has led neither to a new round nor to a step yet."""
    STUCK = "stuck"
    """A fact could not be folded, or a node contradicts the log; workers run on, an operator is needed."""
    SUCCEEDED = "succeeded"
    """All workers ended with code 0."""
    FAILED = "failed"
    """Policies gave up."""
    STOPPED = "stopped"
    """An operator ended it; it can be resumed."""


P = JobPhase
LIVING = (P.ASSEMBLING, P.CHECKING, P.FORMING, P.STARTING, P.RUNNING, P.PAUSED, P.RECOVERING)
ENDED = (P.SUCCEEDED, P.FAILED, P.STOPPED)
_MOVING = (P.CHECKING, P.FORMING, P.STARTING, P.RUNNING, P.PAUSED, P.RECOVERING)

_ELSEWHERE = (P.FORMING, P.STARTING, P.RUNNING, P.PAUSED)
_NOT_CHECKING = tuple(phase for phase in LIVING if phase is not P.CHECKING)
_BESIDE = "newcomers are checked beside what goes on"


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
        Ignored("action.ordered/check_health", _ELSEWHERE, _BESIDE),
        Ignored("health.judged/first", _NOT_CHECKING, _BESIDE),
        Ignored("health.judged/again", _NOT_CHECKING, _BESIDE),
        Ignored("incident.resolved", tuple(P), "the job moved on when its round started or it ended"),
        Ignored("job.parked", (P.STUCK,), "already stuck; the fact is kept in the event all the same"),
        Ignored("log.contradicted", (P.STUCK,), "already stuck; what contradicts the log is kept in the event"),
        Ignored("log.contradicted", ENDED, "nothing is decided after the end; the master lets no new run begin"),
        Ignored("incident.exhausted", tuple(P), "the job.finished that follows says it"),
        Ignored("plan.applied/continue", (P.RECOVERING,), "the chain goes on"),
    ),
    guards={f"was {phase}": _was(phase) for phase in LIVING},
)
