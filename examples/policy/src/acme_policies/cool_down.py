"""``acme_cool_down``: machines that got too hot are given time to cool down before the workers start again.

A restart at once would be the next failure, and another machine of the same row would be as hot. What got too hot is
known by the rule in ``rules.py``: it gives the fault its detail.
"""

from typing import Annotated, ClassVar

from acme_policies.rules import TOO_HOT
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import Options, number, span
from ftcore.states.model import IncidentState, JobState


class CoolDownOptions(Options):
    """What a policy file may set."""

    rest: Annotated[float, span("How long is waited.", maximum=86400)] = 300.0
    max_rests: Annotated[int, number("Rests allowed in `window`.", minimum=1, maximum=100)] = 3
    window: Annotated[float, span("The time over which rests are counted.", minimum=1)] = 86400.0
    deadline: Annotated[float, span("Time for the first step after it.", maximum=86400)] = 1800.0


class CoolDown:
    """Wait, then restart."""

    name: ClassVar[str] = "acme_cool_down"
    doc: ClassVar[str] = "Give machines that got too hot time to cool down, then start the workers again."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault that the board controller explains with heat",
        "passes when `max_rests` in `window` are spent: then it is no hot afternoon",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = CoolDownOptions

    def considers(self, incident: IncidentState, job: JobState, options: CoolDownOptions) -> Verdict:
        """Take what is too hot."""
        if incident.fault.detail != TOO_HOT:
            return Pass(reason="nothing says that it was the heat")
        why = spent(job, self.name, options.max_rests, options.window, "rests")
        if why:
            return Pass(reason=why)
        count = attempts(job, self.name, options.window) + 1
        return Take(
            plan=PlanKind.RESTART,
            reason=f"too hot: rest {count} of {options.max_rests}, {options.rest:g} s",
            grace_s=10.0,
            wait_s=options.rest,
            deadline_s=options.deadline,
        )
