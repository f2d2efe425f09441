"""``step_pause`` (MindIO's TSP): pause the training at a step boundary, on request or during a disruption.

Processes, process groups and device memory are kept; nothing is restarted. A pause for a disruption ends by itself.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.commands import PauseWorkers, ResumeWorkers
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, says, span
from ftcore.policies.situation import asked_by, disruption
from ftcore.states.disruption import DisruptionPhase
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class StepPauseOptions(Options):
    """Options of ``step_pause``."""

    on: Annotated[
        tuple[Literal["maintenance-notice", "storage-away"], ...],
        says(
            "Disruptions for which the training is paused: maintenance that the platform announces, and storage that "
            "refuses checkpoints."
        ),
    ] = ()
    patience: Annotated[
        float,
        span(
            "How long to wait for the end of a disruption in `on`; then a node under maintenance is drained, or "
            "training goes on.",
            minimum=1,
        ),
    ] = 600.0
    deadline: Annotated[
        float,
        span("Time for every worker to reach a step boundary; then the request fails.", minimum=1),
    ] = 600.0


class StepPause:
    """Pause and resume on request, and for a disruption."""

    name: ClassVar[str] = "step_pause"
    doc: ClassVar[str] = "Pause the training at a step boundary, and resume it, on request or during a disruption."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a request to pause or to resume",
        "takes a disruption whose kind is in `on`: training goes on when it is over; after `patience`, a node under "
        "maintenance is drained, and if no policy drains it, or the storage is unavailable, training goes on as well",
        "passes everything else",
        "passes while no world is formed",
    )
    kinds: ClassVar[tuple[str, ...]] = ("pause", "resume", "disruption")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.PAUSE,)
    options: ClassVar[type[Options]] = StepPauseOptions

    def considers(self, incident: IncidentState, job: JobState, options: StepPauseOptions) -> Verdict:
        """Take the requests pause and resume, and disruptions."""
        request = incident.fault.detail
        is_request = incident.kind == "request" and request in ("pause", "resume")
        found = disruption(incident, job)
        if not is_request and (found is None or found.kind not in options.on):
            reason = "not a disruption in `on`" if found is not None else "not a request to pause or to resume"
            return Pass(reason=reason)
        if job.rounds.world is None:
            return Pass(reason="no workers are running")
        round_ = job.rounds.world.round
        pause, resume = PauseWorkers(round=round_), ResumeWorkers(round=round_)  # type: ignore[arg-type]
        if is_request or found is None:
            terms = Terms(command=pause, then="pause") if request == "pause" else Terms(command=resume, then="resolve")
            reason = asked_by(incident, job)
        elif found.phase is not DisruptionPhase.ASKED:
            return Pass(reason=f"{found.subject} was awaited for {format_duration(options.patience)}")
        else:
            terms = Terms(command=pause, then="pause", patience_s=options.patience)
            reason = f"training waits until {found.subject} is over, at most {format_duration(options.patience)}"
        return Take(plan=PlanKind.IN_PLACE, reason=reason, grace_s=0.0, deadline_s=options.deadline, terms=terms)
