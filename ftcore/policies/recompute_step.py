"""``recompute_step`` (MindIO's TRE): an abnormal step is computed once more, on the same data.

A gradient norm that jumps once may be a device that computed wrongly once. All ranks go back to their state before the
step and compute it again; if it is abnormal again, it is the data or the model, and is accepted and written down. The
repeat is part of the same order, so it is counted nowhere.

It is off by default, and excludes ``rollback_and_skip`` for the same kinds: two remedies on one detector contradict
each other.
"""

from typing import Annotated, ClassVar

from ftcore.commands import RetryStep
from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import Options, Rule, Text, number, says, span, takes_nothing
from ftcore.policies.situation import a_worker_ended, class_of, everyone_lives, in_a_row, kind_of
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class RecomputeStepOptions(Options):
    """What ``recompute_step`` may be told."""

    on: Annotated[tuple[Text, ...], says("Kinds of observations that it deals with.", words="kinds")] = ("norm",)
    tolerate: Annotated[bool, says("Accept the step if it is abnormal again.")] = True
    max_recomputed: Annotated[int, number("Steps in `window`.", minimum=1, maximum=1000)] = 20
    window: Annotated[float, span("The time over which steps are counted.", minimum=1)] = 3600.0
    deadline: Annotated[float, span("Time for the step to be completed.", minimum=1)] = 120.0

    rules: ClassVar[tuple[Rule, ...]] = (takes_nothing("on", "nothing in `on`"),)


@declares(Trait.RECOMPUTES)
class RecomputeStep:
    """Go back one step and compute it again."""

    name: ClassVar[str] = "recompute_step"
    doc: ClassVar[str] = "Go back to the state before an abnormal step and compute the same step again."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a numeric fault whose kind is in `on`, if all workers live",
        "with `tolerate`, the same step abnormal again is accepted, recorded, and counted nowhere",
        "without it, passes a step that is abnormal for the second time",
        "passes when `max_recomputed` in `window` are spent: what is abnormal all the time is no slip of a device",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY, Ability.SNAPSHOT)
    options: ClassVar[type[Options]] = RecomputeStepOptions

    def considers(self, incident: IncidentState, job: JobState, options: RecomputeStepOptions) -> Verdict:
        """Take abnormal steps that all ranks can go back from."""
        kind = kind_of(incident, job)
        if class_of(incident) is not FaultClass.NUMERIC or kind not in options.on:
            return Pass(reason=f"not one of: {', '.join(options.on)}")
        step = incident.fault.step if incident.fault.step is not None else job.step
        if step is None or job.world is None:
            return Pass(reason="the step that was abnormal is not known")
        if a_worker_ended(incident, job) or not everyone_lives(job):
            return Pass(reason="not all workers live")
        known = step + 1 in job.tolerated
        if not options.tolerate and (known or in_a_row(incident, job) > 1):
            return Pass(reason=f"step {step + 1} was computed again and is abnormal again")
        why = "" if known else spent(job, self.name, options.max_recomputed, options.window, "steps")
        if why:
            return Pass(reason=why)
        attempt = attempts(job, self.name, options.window) + 1
        command = RetryStep(
            round=job.world.round,  # type: ignore[arg-type]
            step=step + 1,
            restore="snapshot",
            tolerate=options.tolerate,
        )
        again = "; abnormal again, it is accepted" if options.tolerate else ""
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=f"computes step {step + 1} again from the state before it{again}; "
            f"{attempt} of {options.max_recomputed} in {format_duration(options.window)}",
            grace_s=0.0,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(command=command, then="verify"),
        )
