"""``recompute_step`` (MindIO's TRE): compute an abnormal step again on the same data.

A single jump of the gradient norm may be a wrong computation of a device. All ranks restore their state from before the
step and compute it again. If it is abnormal again, the cause is the data or the model, and the step is accepted and
recorded. The repetition belongs to the same order, so it is not charged to the budget.

The policy is not in the default chain, and excludes ``rollback_and_skip`` for the same kinds of observations.
"""

from typing import Annotated, ClassVar

from ftcore.commands import RetryStep
from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import OptionRule, Options, Text, number, says, span, takes_nothing
from ftcore.policies.situation import a_worker_ended, all_workers_alive, class_of, in_a_row, kind_of
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class RecomputeStepOptions(Options):
    """Options of ``recompute_step``."""

    on: Annotated[tuple[Text, ...], says("Kinds of observations that the policy handles.", words="kinds")] = ("norm",)
    tolerate: Annotated[bool, says("Accept the step if it is abnormal again.")] = True
    max_recomputed: Annotated[int, number("Recomputed steps allowed in `window`.", minimum=1, maximum=1000)] = 20
    window: Annotated[float, span("The time over which steps are counted.", minimum=1)] = 3600.0
    deadline: Annotated[float, span("Time to complete the step.", minimum=1)] = 120.0

    rules: ClassVar[tuple[OptionRule, ...]] = (takes_nothing("on", "nothing in `on`"),)


@declares(Trait.RECOMPUTES)
class RecomputeStep:
    """Go back one step and compute it again."""

    name: ClassVar[str] = "recompute_step"
    doc: ClassVar[str] = "Restore the state from before an abnormal step and compute the step again."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a numeric fault whose kind is in `on`, if all workers are alive",
        "with `tolerate`, a step that is abnormal again is accepted, recorded, and not charged to the budget",
        "without `tolerate`, passes a step that is abnormal again",
        "passes when `max_recomputed` in `window` are spent: frequent abnormal steps are not a device's wrong results",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY, Ability.SNAPSHOT)
    options: ClassVar[type[Options]] = RecomputeStepOptions

    def considers(self, incident: IncidentState, job: JobState, options: RecomputeStepOptions) -> Verdict:
        """Take an abnormal step that all ranks can compute again."""
        kind = kind_of(incident, job)
        if class_of(incident) is not FaultClass.NUMERIC or kind not in options.on:
            return Pass(reason=f"not an observation in `on`: {', '.join(options.on)}")
        step = incident.fault.step if incident.fault.step is not None else job.training.step
        if step is None or job.rounds.world is None:
            return Pass(reason="the abnormal step is not known")
        if a_worker_ended(incident, job) or not all_workers_alive(job):
            return Pass(reason="not all workers are alive")
        known = step + 1 in job.training.tolerated
        if not options.tolerate and (known or in_a_row(incident, job) > 1):
            return Pass(reason=f"step {step + 1} was computed again and is abnormal again")
        why = "" if known else spent(job, self.name, options.max_recomputed, options.window, "steps")
        if why:
            return Pass(reason=why)
        attempt = attempts(job, self.name, options.window) + 1
        command = RetryStep(
            round=job.rounds.world.round,  # type: ignore[arg-type]
            step=step + 1,
            restore="snapshot",
            tolerate=options.tolerate,
        )
        again = "; accepts it if it is abnormal again" if options.tolerate else ""
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=f"computes step {step + 1} again from the state before it{again}; "
            f"{attempt} of {options.max_recomputed} in {format_duration(options.window)}",
            grace_s=0.0,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(command=command, then="verify"),
        )
