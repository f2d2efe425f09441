"""``step_pause`` (MindIO's TSP): pause the training at a step boundary, and resume it, on request.

Processes, process groups and device memory are kept; nothing is restarted.
"""

from typing import Annotated, ClassVar

from ftcore.commands import PauseWorkers, ResumeWorkers
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, span
from ftcore.policies.situation import asked_by
from ftcore.states.model import IncidentState, JobState


class StepPauseOptions(Options):
    """Options of ``step_pause``."""

    deadline: Annotated[
        float,
        span("Time for every worker to reach a step boundary; then the request fails.", minimum=1),
    ] = 600.0


class StepPause:
    """Pause and resume on request."""

    name: ClassVar[str] = "step_pause"
    doc: ClassVar[str] = "Pause the training at a step boundary, and resume it, on request."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a request to pause or to resume",
        "passes everything else",
        "passes while no world is formed",
    )
    kinds: ClassVar[tuple[str, ...]] = ("pause", "resume")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.PAUSE,)
    options: ClassVar[type[Options]] = StepPauseOptions

    def considers(self, incident: IncidentState, job: JobState, options: StepPauseOptions) -> Verdict:
        """Take the requests pause and resume."""
        request = incident.fault.detail
        if incident.kind != "request" or request not in ("pause", "resume"):
            return Pass(reason="not a request to pause or to resume")
        if job.rounds.world is None:
            return Pass(reason="no workers are running")
        round_ = job.rounds.world.round
        command = PauseWorkers(round=round_) if request == "pause" else ResumeWorkers(round=round_)  # type: ignore[arg-type]
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=asked_by(incident, job),
            grace_s=0.0,
            deadline_s=options.deadline,
            terms=Terms(command=command, then="pause" if request == "pause" else "resolve"),
        )
