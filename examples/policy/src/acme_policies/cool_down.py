"""``acme_cool_down``: lets overheated machines cool down before the workers start again.

An immediate restart would fail again, and another machine of the same row is equally hot. The rule in ``rules.py``
recognizes overheating and sets the fault's detail.
"""

from typing import Annotated, ClassVar

from acme_policies.rules import TOO_HOT
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import Options, number, span
from ftcore.states.model import IncidentState, JobState


class CoolDownOptions(Options):
    """Options of the policy file."""

    rest: Annotated[float, span("How long to wait.", maximum=86400)] = 300.0
    max_rests: Annotated[int, number("Rests allowed in `window`.", minimum=1, maximum=100)] = 3
    window: Annotated[float, span("The time over which rests are counted.", minimum=1)] = 86400.0
    deadline: Annotated[float, span("Time for the first step after the restart.", maximum=86400)] = 1800.0


class CoolDown:
    """Wait, then restart."""

    name: ClassVar[str] = "acme_cool_down"
    doc: ClassVar[str] = "Let overheated machines cool down, then start the workers again."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault that the board controller attributes to heat",
        "passes when `max_rests` in `window` are spent: the cooling is then broken",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = CoolDownOptions

    def considers(self, incident: IncidentState, job: JobState, options: CoolDownOptions) -> Verdict:
        """Take faults from overheating."""
        if incident.fault.detail != TOO_HOT:
            return Pass(reason="no evidence of overheating")
        why = spent(job, self.name, options.max_rests, options.window, "rests")
        if why:
            return Pass(reason=why)
        count = attempts(job, self.name, options.window) + 1
        return Take(
            plan=PlanKind.RESTART,
            reason=f"overheated: rest {count} of {options.max_rests}, {options.rest:g} s",
            grace_s=10.0,
            wait_s=options.rest,
            deadline_s=options.deadline,
        )
