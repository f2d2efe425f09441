"""What policies share that take a step which the ranks stopped before the optimizer changed the state."""

from typing import Annotated, ClassVar

from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.options import OptionRule, Options, Text, number, says, span, takes_nothing
from ftcore.policies.situation import (
    a_worker_ended,
    abnormal_step,
    all_workers_alive,
    class_of,
    kind_of,
    root_report,
)
from ftcore.states.model import IncidentState, JobState
from ftcore.states.norms import NORM, RANK
from ftcore.states.revisions import STOPPED_BY_RANK, follows


class StoppedStepOptions(Options):
    """Options of every policy that takes stopped steps."""

    on: Annotated[tuple[Text, ...], says("Kinds of observations that the policy handles.", words="kinds")] = (NORM,)
    global_norm_spike_threshold: Annotated[
        float, number("A global gradient norm at or over this is abnormal: the ranks stop the step. Over 0.")
    ] = 3.0
    window: Annotated[float, span("The time over which steps are counted.", minimum=1)] = 3600.0
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


def stopped_step(incident: IncidentState, job: JobState, options: StoppedStepOptions) -> int | str:
    """The number of the stopped step that all ranks can compute again; else why there is none."""
    if class_of(incident) is not FaultClass.NUMERIC or kind_of(incident, job) not in options.on:
        return f"not an observation in `on`: {', '.join(options.on)}"
    root = root_report(incident, job)
    if follows(job, STOPPED_BY_RANK) and (root is None or root.source != RANK):
        return "the step is complete: no rank has stopped it"
    step = abnormal_step(incident, job)
    if step is None or job.rounds.world is None:
        return "the abnormal step is not known"
    if a_worker_ended(incident, job) or not all_workers_alive(job):
        return "not all workers are alive"
    return step
