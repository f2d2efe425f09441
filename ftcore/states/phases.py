"""What holds in which phase of a job and of its open incident: a table whose entries are the predicates that all ask.

House rule: engine and master compare no phase themselves. A new distinction is a new condition in ``JOB_CONDITIONS`` or
``INCIDENT_CONDITIONS``, from which the reference page of the job's flow is written.
"""

import attrs

from ftcore.states.incident import IncidentPhase
from ftcore.states.job import ENDED, LIVING, JobPhase
from ftcore.states.model import IncidentState, JobState

P = JobPhase
I = IncidentPhase  # noqa: E741  (as in the table of incidents)


@attrs.frozen
class JobCondition:
    """A condition of a job that its phase alone decides.

    Args:
        name: the predicate's name.
        doc: what it means.
        phases: where it holds.
    """

    name: str
    doc: str
    phases: tuple[JobPhase, ...]

    def __call__(self, state: JobState) -> bool:
        """Whether it holds for the job."""
        return state.phase in self.phases


@attrs.frozen
class IncidentCondition:
    """A condition of an incident that its phase alone decides.

    Args:
        name: the predicate's name.
        doc: what it means.
        phases: where it holds.
    """

    name: str
    doc: str
    phases: tuple[IncidentPhase, ...]

    def __call__(self, incident: IncidentState | None) -> bool:
        """Whether it holds for the incident; false without one."""
        return incident is not None and incident.phase in self.phases


decides = JobCondition(
    "decides", "The chain is asked, orders are closed, and outcomes are verified.", (*LIVING, *ENDED)
)
is_under_way = JobCondition("is_under_way", "The master decides, and sends quarantined nodes away.", LIVING)
is_assembling = JobCondition(
    "is_assembling", "The first round is planned once enough nodes have joined.", (P.ASSEMBLING,)
)
plans_rounds = JobCondition(
    "plans_rounds", "A plan that was taken leads to the next round or to the end.", (P.RECOVERING, P.CHECKING)
)
is_recovering = JobCondition("is_recovering", "A plan in place may complete.", (P.RECOVERING,))
is_forming = JobCondition("is_forming", "The planned round's world is formed.", (P.FORMING,))
is_starting = JobCondition("is_starting", "The round starts once the workers of every member run.", (P.STARTING,))
is_running = JobCondition(
    "is_running",
    "Opportunities are taken up, deferred departures begin, and the run succeeds when every worker has ended.",
    (P.RUNNING,),
)
is_paused = JobCondition("is_paused", "Training waits for an operator's `resume`.", (P.PAUSED,))
is_up = JobCondition(
    "is_up", "Requests and warnings open an incident; `pause` pauses the workers.", (P.RUNNING, P.PAUSED)
)
opens_faults = JobCondition(
    "opens_faults", "Reports of faults open an incident.", (P.FORMING, P.STARTING, P.RUNNING, P.PAUSED)
)
checks_standbys = JobCondition(
    "checks_standbys", "Nodes in standby are checked while the members go on.", (P.STARTING, P.RUNNING, P.PAUSED)
)
watches_standstills = JobCondition(
    "watches_standstills", "A standstill of the members is a fact.", (P.RUNNING, P.RECOVERING)
)
is_stuck = JobCondition(
    "is_stuck", "Facts are recorded; only an operator's `resume` or `stop` is decided about.", (P.STUCK,)
)
has_ended = JobCondition(
    "has_ended", "No fact opens an incident, nodes are released, and another run may begin.", ENDED
)

awaits_verdict = IncidentCondition("awaits_verdict", "The chain is asked.", (I.OPEN, I.DIAGNOSING, I.ESCALATING))
is_acting = IncidentCondition("is_acting", "The plan is carried out.", (I.ACTING,))
is_deferred = IncidentCondition(
    "is_deferred", "The plan was taken, and the job trains on until others are ready.", (I.DEFERRED,)
)
awaits_outcome = IncidentCondition("awaits_outcome", "The plan's outcome is awaited.", (I.VERIFYING,))
has_plan = IncidentCondition(
    "has_plan", "A plan is in force, and may be escalated past.", (I.ACTING, I.DEFERRED, I.VERIFYING)
)
is_open = IncidentCondition(
    "is_open", "It is not over.", tuple(phase for phase in I if phase not in (I.RESOLVED, I.EXHAUSTED))
)

JOB_CONDITIONS = (
    decides,
    is_under_way,
    is_assembling,
    plans_rounds,
    is_recovering,
    is_forming,
    is_starting,
    is_running,
    is_paused,
    is_up,
    opens_faults,
    checks_standbys,
    watches_standstills,
    is_stuck,
    has_ended,
)
"""The table: every condition of a job."""

INCIDENT_CONDITIONS = (awaits_verdict, is_acting, is_deferred, awaits_outcome, has_plan, is_open)
"""The table: every condition of an incident."""


def has_run(state: JobState) -> bool:
    """Whether a run was submitted and has not ended."""
    return state.run > 0 and not has_ended(state)


def has_left(state: JobState) -> bool:
    """Whether the run has ended, and all of its nodes have left."""
    return has_ended(state) and not state.places
