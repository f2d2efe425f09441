"""``stop``: end the job and say what to fix; the mandatory last entry of every chain."""

from typing import Annotated, ClassVar

from ftcore.faults.taxonomy import CLASSES, CUT, UNREADABLE
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, span
from ftcore.policies.situation import advice, class_of, facts, interrupted, title, unreadable, unreadable_file
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState


class StopOptions(Options):
    """Options of ``stop``."""

    grace: Annotated[float, span("Time between TERM and KILL, for workers to save.")] = 30.0


@declares(Trait.ENDS)
class Stop:
    """End the job: on request, or because no other policy took the fault."""

    name: ClassVar[str] = "stop"
    doc: ClassVar[str] = "End the job and say what to fix; takes every fault that reaches it."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes the request to stop",
        "takes every fault that no entry above took, or that their plans did not resolve",
        "takes any other incident whose plan stopped the workers, if no policy could start them again",
        "passes other requests: a request that no policy can carry out is dropped, and the training continues",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "stop", "interrupted")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = StopOptions

    def considers(self, incident: IncidentState, job: JobState, options: StopOptions) -> Verdict:
        """Take every incident except requests other than stop, unless the training is interrupted."""
        if incident.kind == "request" and job.requests.stop is not None:
            why = f": {job.requests.stop.why}" if job.requests.stop.why else ""
            return Take(
                plan=PlanKind.END,
                reason=f"{job.requests.stop.who} asked for it{why}",
                grace_s=options.grace,
                outcome="stopped",
                exit_code=job.requests.stop.exit_code,
            )
        if incident.kind != "fault" and not interrupted(incident, job):
            return Pass(reason="no reason to end the job: the training continues")
        fault, cause = incident.fault, ""
        if unreadable(incident):
            cause = f"{unreadable_file(incident, job)} cannot be read: "
        known = facts(incident)
        earlier = known if known in (UNREADABLE, CUT) else CLASSES[class_of(incident)]
        return Take(
            plan=PlanKind.END,
            reason=f"{cause}{fault.summary} ({title(incident, job)}); {advice(incident, job, earlier)}",
            grace_s=options.grace,
            outcome="failed",
            exit_code=1,
        )
