"""Conditions on the phases of a job and of its open incident: a table of predicates.

House rule: engine and master do not compare phases themselves. A new distinction is a new condition here; the reference
page of the job's flow lists all of them.
"""

import attrs

from ftcore.states.incident import IncidentPhase
from ftcore.states.job import ENDED, LIVING, JobPhase
from ftcore.states.model import IncidentState, JobState

P = JobPhase
I = IncidentPhase  # noqa: E741  (as in the table of incidents)


@attrs.frozen
class JobCondition:
    """A condition of a job that depends only on its phase.

    Args:
        name: the predicate's name.
        doc: one sentence for the reference.
        phases: the phases in which it holds.
    """

    name: str
    doc: str
    phases: tuple[JobPhase, ...]

    def __call__(self, state: JobState) -> bool:
        """Whether the condition holds for the job."""
        return state.phase in self.phases


@attrs.frozen
class IncidentCondition:
    """A condition of an incident that depends only on its phase.

    Args:
        name: the predicate's name.
        doc: one sentence for the reference.
        phases: the phases in which it holds.
    """

    name: str
    doc: str
    phases: tuple[IncidentPhase, ...]

    def __call__(self, incident: IncidentState | None) -> bool:
        """Whether the condition holds for the incident; False without an incident."""
        return incident is not None and incident.phase in self.phases


decides = JobCondition(
    "decides", "The chain is asked, orders are closed, and outcomes are verified.", (*LIVING, *ENDED)
)
is_under_way = JobCondition("is_under_way", "The master decides, and releases quarantined nodes.", LIVING)
is_assembling = JobCondition(
    "is_assembling", "The first round is planned once enough nodes have joined.", (P.ASSEMBLING,)
)
plans_rounds = JobCondition(
    "plans_rounds", "The plan of a policy leads to the next round or to the end of the run.", (P.RECOVERING, P.CHECKING)
)
is_recovering = JobCondition("is_recovering", "A plan of kind `in_place` may complete.", (P.RECOVERING,))
is_forming = JobCondition("is_forming", "The planned round's world is formed.", (P.FORMING,))
is_starting = JobCondition("is_starting", "The round starts once the workers of every member run.", (P.STARTING,))
is_running = JobCondition(
    "is_running",
    "Opportunities open an incident, deferred departures begin, and the run succeeds when every worker has exited.",
    (P.RUNNING,),
)
is_paused = JobCondition("is_paused", "Training waits for `resume`, or for the end of a disruption.", (P.PAUSED,))
is_up = JobCondition(
    "is_up", "Requests and warnings open an incident; `pause` pauses the workers.", (P.RUNNING, P.PAUSED)
)
opens_faults = JobCondition(
    "opens_faults", "Reports of faults open an incident.", (P.FORMING, P.STARTING, P.RUNNING, P.PAUSED)
)
checks_standbys = JobCondition(
    "checks_standbys", "Nodes in standby are checked while the members continue.", (P.STARTING, P.RUNNING, P.PAUSED)
)
watches_standstills = JobCondition(
    "watches_standstills", "A standstill of the members is judged.", (P.RUNNING, P.RECOVERING)
)
is_stuck = JobCondition(
    "is_stuck", "Facts are recorded; the master acts only on an operator's `resume` or `stop`.", (P.STUCK,)
)
has_ended = JobCondition(
    "has_ended", "No fact opens an incident, nodes are released, and another run may begin.", ENDED
)

awaits_verdict = IncidentCondition("awaits_verdict", "The chain is asked.", (I.OPEN, I.DIAGNOSING, I.ESCALATING))
is_acting = IncidentCondition("is_acting", "The plan is carried out.", (I.ACTING,))
is_deferred = IncidentCondition(
    "is_deferred", "A policy took it, and the job trains until replacements are ready.", (I.DEFERRED,)
)
awaits_outcome = IncidentCondition("awaits_outcome", "The plan's outcome is awaited.", (I.VERIFYING,))
has_plan = IncidentCondition(
    "has_plan", "A plan is in force and may be escalated.", (I.ACTING, I.DEFERRED, I.VERIFYING)
)
is_open = IncidentCondition(
    "is_open",
    "It is neither resolved nor exhausted.",
    tuple(phase for phase in I if phase not in (I.RESOLVED, I.EXHAUSTED)),
)


def has_run(state: JobState) -> bool:
    """Whether a run was submitted and has not ended."""
    return state.run > 0 and not has_ended(state)


def has_left(state: JobState) -> bool:
    """Whether the run has ended, and all of its nodes have left."""
    return has_ended(state) and not state.membership.places
