"""``skip_batch``: leave out the batch that makes the global gradient norm abnormal, before it changes the model.

Every rank compares the norm that the script reports with the threshold, and stops the step before the optimizer changes
the state, as for ``recompute_step``. All ranks enter the next round in the same processes, load the state before the
step, and compute it on the next batch. No checkpoint is read, and only the batch is lost. That is what one wants if the
data is the cause; ``rollback_and_skip`` and ``lower_learning_rate`` can follow in the chain.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import OptionRule, Options, Text, number, says, span, takes_nothing
from ftcore.policies.situation import (
    a_worker_ended,
    abnormal_step,
    all_workers_alive,
    class_of,
    kind_of,
    script_declares,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.states.norms import NORM
from ftcore.wording import format_duration, plural


class SkipBatchOptions(Options):
    """Options of ``skip_batch``."""

    on: Annotated[tuple[Text, ...], says("Kinds of observations that the policy handles.", words="kinds")] = (NORM,)
    global_norm_spike_threshold: Annotated[
        float, number("A global gradient norm at or over this is abnormal: the ranks stop the step. Over 0.")
    ] = 3.0
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
    window: Annotated[float, span("The time over which skips are counted.", minimum=1)] = 3600.0
    grace: Annotated[float, span("Time for a rank to leave its process groups; then it is stopped.")] = 10.0
    deadline: Annotated[
        float, span("Time from the new round to its first completed step; then it has failed.", minimum=1)
    ] = 120.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        takes_nothing("on", "nothing in `on`"),
        takes_nothing("global_norm_spike_threshold", "a global_norm_spike_threshold of 0"),
        OptionRule(
            options=("on",),
            broken=lambda o: bool(set(o.on) - {NORM}),
            text=f"on: only `{NORM}` stops a step before the optimizer changes the state; after any other observation "
            f"that state is gone. Expected [{NORM}]; `rollback_and_skip` goes back to a checkpoint",
        ),
    )


@declares(Trait.SKIPS, Trait.STOPS_STEPS, Trait.PARKS)
class SkipBatch:
    """Go back to the state before an abnormal step, and go on with the next batch."""

    name: ClassVar[str] = "skip_batch"
    doc: ClassVar[str] = "Leave out the batch of an abnormal step, without ending a process or reading a checkpoint."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a global gradient norm at or over `global_norm_spike_threshold` (`norm`), if all workers are alive",
        "passes if the script has not registered its data (`step.batch`), or skips data by code of its own",
        "passes when `max_skipped` in `window` are spent: then a single batch is not the cause",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY,)
    options: ClassVar[type[Options]] = SkipBatchOptions

    def considers(self, incident: IncidentState, job: JobState, options: SkipBatchOptions) -> Verdict:
        """Take an abnormal step of a job whose data ftcore can skip."""
        if class_of(incident) is not FaultClass.NUMERIC or kind_of(incident, job) not in options.on:
            return Pass(reason=f"not an observation in `on`: {', '.join(options.on)}")
        step = abnormal_step(incident, job)
        if step is None or job.rounds.world is None:
            return Pass(reason="the abnormal step is not known")
        if not job.can(Ability.SKIP):
            return Pass(reason="cannot skip data: the script has not registered it (`step.batch`)")
        if script_declares(job, Ability.SKIP):
            return Pass(reason="the script skips data by code of its own, which only a restarted process reads")
        if a_worker_ended(incident, job) or not all_workers_alive(job):
            return Pass(reason="not all workers are alive")
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
