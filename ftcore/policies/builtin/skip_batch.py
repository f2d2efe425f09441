"""``skip_batch``: leave out the batch that makes the global gradient norm abnormal, before it changes the model.

Every rank compares the norm that the script reports with the threshold, and stops the step before the optimizer changes
the state, as for ``recompute_step``. All ranks enter the next round in the same processes, load the state before the
step, and compute it on the next batch. No checkpoint is read, and only the batch is lost. That is what one wants if the
data is the cause; ``rollback_and_skip`` and ``lower_learning_rate`` can follow in the chain.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import Options, number
from ftcore.policies.situation import script_declares
from ftcore.policies.stopped_step import StoppedStepOptions, stopped_step
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, plural


class SkipBatchOptions(StoppedStepOptions):
    """Options of ``skip_batch``."""

    skip: Annotated[int, number("Batches to skip, beginning with that of the abnormal step.", minimum=1)] = 1
    max_skipped: Annotated[
        int,
        number(
            "Skips allowed in `window`; once they are spent, the ranks compare no norms from the next round on, unless "
            "a later entry has them in `on`.",
            minimum=1,
            maximum=1000,
        ),
    ] = 20


@declares(Trait.SKIPS, Trait.STOPS_STEPS, Trait.PARKS)
class SkipBatch:
    """Go back to the state before an abnormal step, and go on with the next batch."""

    name: ClassVar[str] = "skip_batch"
    doc: ClassVar[str] = "Leave out the batch of an abnormal step, without ending a process or reading a checkpoint."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a global gradient norm at or over `global_norm_spike_threshold` (`norm`), if all workers are alive",
        "takes a loss that is not finite and is reported before the optimizer's step, as such a norm",
        "passes if the script has not registered its data (`step.batch`), or skips data by code of its own",
        "passes when `max_skipped` in `window` are spent: then a single batch is not the cause",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY,)
    options: ClassVar[type[Options]] = SkipBatchOptions

    def considers(self, incident: IncidentState, job: JobState, options: SkipBatchOptions) -> Verdict:
        """Take an abnormal step of a job whose data ftcore can skip."""
        step = stopped_step(incident, job, options)
        if isinstance(step, str):
            return Pass(reason=step)
        if not job.can(Ability.SKIP):
            return Pass(reason="cannot skip data: the script has not registered it (`step.batch`)")
        if script_declares(job, Ability.SKIP):
            return Pass(reason="the script skips data by code of its own, which only a restarted process reads")
        why = spent(job, self.name, options.max_skipped, options.window, "skips")
        if why:
            return Pass(reason=why)
        attempt = attempts(job, self.name, options.window) + 1
        return Take(
            plan=PlanKind.RESTART,
            reason=f"leaves out {plural(options.skip, 'batch', 'batches')} from step {step} on, in the same processes, "
            f"from the state before it; {attempt} of {options.max_skipped} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(survivors="park", skip=options.skip, skip_after=step - 1),
        )
