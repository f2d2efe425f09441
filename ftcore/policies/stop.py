"""``stop``: end the job and say what to fix; the mandatory end of every chain."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.policies.base import Ability, Option, PlanKind, Take, Verdict
from ftcore.states.model import IncidentState, JobState


class Stop:
    """End the job: on request, or because nothing else took the incident."""

    name: ClassVar[str] = "stop"
    doc: ClassVar[str] = "End the job and say what to fix; takes whatever reaches it."
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[Mapping[str, Option]] = {
        "grace": Option(default=30, kind="duration", doc="Time between TERM and KILL, for workers to save."),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take it."""
        if incident.kind == "request" and job.stop is not None:
            why = f": {job.stop.why}" if job.stop.why else ""
            return Take(
                plan=PlanKind.END,
                reason=f"{job.stop.who} asked for it{why}",
                grace_s=options["grace"],
                outcome="stopped",
                exit_code=job.stop.exit_code,
            )
        fault = incident.fault
        return Take(
            plan=PlanKind.END,
            reason=f"{fault.summary} ({fault.cls}); {CLASSES[FaultClass(fault.cls)].advice}",
            grace_s=options["grace"],
            outcome="failed",
            exit_code=1,
        )
