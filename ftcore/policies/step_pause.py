"""``step_pause`` (MindIO's TSP): training waits at a step boundary when asked to, and goes on when asked to.

Processes, groups and device memory stay; nothing is restarted in either direction.
"""

from typing import Annotated, ClassVar

from ftcore.commands import PauseWorkers, ResumeWorkers
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, span
from ftcore.policies.situation import asked_by
from ftcore.states.model import IncidentState, JobState


class StepPauseOptions(Options):
    """What ``step_pause`` may be told."""

    deadline: Annotated[
        float,
        span("Time for every worker to reach a step boundary; then the request has failed and is dropped.", minimum=1),
    ] = 600.0


class StepPause:
    """Pause and resume on request."""

    name: ClassVar[str] = "step_pause"
    doc: ClassVar[str] = "Hold the training at a step boundary when somebody asks for it, and let it go on."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a request to pause or to resume",
        "passes everything else",
        "passes while there is no world whose workers could wait",
    )
    kinds: ClassVar[tuple[str, ...]] = ("pause", "resume")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.PAUSE,)
    options: ClassVar[type[Options]] = StepPauseOptions

    def considers(self, incident: IncidentState, job: JobState, options: StepPauseOptions) -> Verdict:
        """Take the requests pause and resume."""
        wish = incident.fault.detail
        if incident.kind != "request" or wish not in ("pause", "resume"):
            return Pass(reason="nobody asked to pause or to resume")
        if job.world is None:
            return Pass(reason="no workers run that could wait")
        round_ = job.world.round
        command = PauseWorkers(round=round_) if wish == "pause" else ResumeWorkers(round=round_)  # type: ignore[arg-type]
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=asked_by(incident, job),
            grace_s=0.0,
            deadline_s=options.deadline,
            terms=Terms(command=command, then="pause" if wish == "pause" else "resolve"),
        )
