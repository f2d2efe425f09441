"""``stop``: end the job and say what to fix; the mandatory end of every chain."""

from typing import Annotated, ClassVar

from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, span
from ftcore.policies.situation import facts, interrupted, unreadable, unreadable_file
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState


class StopOptions(Options):
    """What ``stop`` may be told."""

    grace: Annotated[float, span("Time between TERM and KILL, for workers to save.")] = 30.0


@declares(Trait.ENDS)
class Stop:
    """End the job: on request, or because nothing else took the fault."""

    name: ClassVar[str] = "stop"
    doc: ClassVar[str] = "End the job and say what to fix; takes every fault that reaches it."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes the request to stop",
        "takes every fault that no entry above took, or that their plans did not end",
        "takes what began as a wish or a warning, if the plan for it stopped workers and nobody could start them again",
        "passes other requests: what nobody can carry out is dropped, and the training goes on",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "stop", "interrupted")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = StopOptions

    def considers(self, incident: IncidentState, job: JobState, options: StopOptions) -> Verdict:
        """Take it, unless it is a wish other than to stop."""
        if incident.kind == "request" and job.stop is not None:
            why = f": {job.stop.why}" if job.stop.why else ""
            return Take(
                plan=PlanKind.END,
                reason=f"{job.stop.who} asked for it{why}",
                grace_s=options.grace,
                outcome="stopped",
                exit_code=job.stop.exit_code,
            )
        if incident.kind != "fault" and not interrupted(incident, job):
            return Pass(reason="no reason to end the job: it goes on without")
        fault, what = incident.fault, ""
        if unreadable(incident):
            what = f"{unreadable_file(incident, job)} cannot be read: "
        return Take(
            plan=PlanKind.END,
            reason=f"{what}{fault.summary} ({fault.cls}); {facts(incident).advice}",
            grace_s=options.grace,
            outcome="failed",
            exit_code=1,
        )
