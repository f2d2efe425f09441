"""``recompute_step`` (MindIO's TRE): compute an abnormal step again on the same data.

A single jump of the global gradient norm may be a wrong result of a device. Every rank compares the norm that the
script reports with the threshold, and stops the step before the optimizer changes the state. All ranks enter the next
round in the same processes, load the state before the step, and compute it again. If it is abnormal again, the cause
is the data or the model: the step is accepted and recorded. That costs no further attempt.

The policy is not in the default chain, and excludes those that skip data for the same kinds of observations.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import Options, number, says
from ftcore.policies.situation import in_a_row
from ftcore.policies.stopped_step import StoppedStepOptions, stopped_step
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class RecomputeStepOptions(StoppedStepOptions):
    """Options of ``recompute_step``."""

    tolerate: Annotated[bool, says("Accept the step if it is abnormal again.")] = True
    max_recomputed: Annotated[
        int,
        number(
            "Recomputed steps allowed in `window`; once they are spent, the ranks compare no norms from the next "
            "round on.",
            minimum=1,
            maximum=1000,
        ),
    ] = 20


@declares(Trait.RECOMPUTES, Trait.STOPS_STEPS, Trait.PARKS, needed=("retry", "snapshot"))
class RecomputeStep:
    """Go back to the state before a step and compute the step again."""

    name: ClassVar[str] = "recompute_step"
    doc: ClassVar[str] = "Compute an abnormal step again, from the state before it, without ending a process."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a global gradient norm at or over `global_norm_spike_threshold` (`norm`), if all workers are alive",
        "takes a loss that is not finite and is reported before the optimizer's step, as such a norm",
        "with `tolerate`, a step that is abnormal again is accepted and recorded; it costs no attempt",
        "without `tolerate`, passes a step that is abnormal again",
        "passes when `max_recomputed` in `window` are spent: frequent abnormal steps are not a device's wrong results",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY,)
    options: ClassVar[type[Options]] = RecomputeStepOptions

    def considers(self, incident: IncidentState, job: JobState, options: RecomputeStepOptions) -> Verdict:
        """Take an abnormal step that all ranks can compute again."""
        step = stopped_step(incident, job, options)
        if isinstance(step, str):
            return Pass(reason=step)
        known = step in job.training.tolerated
        if not options.tolerate and (known or in_a_row(incident, job) > 1):
            return Pass(reason=f"step {step} was computed again and is abnormal again")
        why = "" if known else spent(job, self.name, options.max_recomputed, options.window, "steps")
        if why:
            return Pass(reason=why)
        attempt = attempts(job, self.name, options.window) + 1
        again = "; accepts it if it is abnormal again" if options.tolerate else ""
        return Take(
            plan=PlanKind.RESTART,
            reason=f"computes step {step} again in the same processes, from the state before it{again}; "
            f"{attempt} of {options.max_recomputed} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(survivors="park", tolerate=step if options.tolerate else 0),
        )
