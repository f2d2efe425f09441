"""``acme_rest``: wait before the restart after a fault that heat has caused."""

from typing import Annotated, ClassVar

from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.options import Options, span
from ftcore.states.model import IncidentState, JobState


class RestOptions(Options):
    """Options of the policy file."""

    rest: Annotated[float, span("How long to wait.", maximum=86400)] = 300.0


class Rest:
    """Wait, then restart."""

    name: ClassVar[str] = "acme_rest"
    doc: ClassVar[str] = "Let overheated machines cool down, then start the workers again."
    conditions: ClassVar[tuple[str, ...]] = ("takes a fault that heat has caused",)
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = RestOptions

    def considers(self, incident: IncidentState, job: JobState, options: RestOptions) -> Verdict:
        """Take faults from overheating."""
        if incident.fault.detail != "too-hot":
            return Pass(reason="no evidence of overheating")
        return Take(plan=PlanKind.RESTART, reason="overheated", grace_s=10.0, wait_s=options.rest)
