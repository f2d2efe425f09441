"""``acme_cool_down``: machines that got too hot are given time to cool down before the workers start again.

A restart at once would be the next failure, and another machine of the same row would be as hot. What got too hot is
known by the rule in ``rules.py``: it gives the fault its detail.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from acme_policies.rules import TOO_HOT
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.states.model import IncidentState, JobState


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
    options: ClassVar[Mapping[str, Option]] = {
        "rest": Option(default=300, kind="duration", maximum=86400, doc="How long is waited."),
        "max_rests": Option(default=3, kind="int", minimum=1, maximum=100, doc="Rests allowed in `window`."),
        "window": Option(default=86400, kind="duration", minimum=1, doc="The time over which rests are counted."),
        "deadline": Option(default=1800, kind="duration", maximum=86400, doc="Time for the first step after it."),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take what is too hot."""
        if incident.fault.detail != TOO_HOT:
            return Pass(reason="nothing says that it was the heat")
        why = spent(job, self.name, options["max_rests"], options["window"], "rests")
        if why:
            return Pass(reason=why)
        number = attempts(job, self.name, options["window"]) + 1
        return Take(
            plan=PlanKind.RESTART,
            reason=f"too hot: rest {number} of {options['max_rests']}, {options['rest']:g} s",
            grace_s=10.0,
            wait_s=options["rest"],
            deadline_s=options["deadline"],
        )
