"""``step_retry`` (MindIO's UCE and HCCE): compute the failed step again in the same processes.

Two faults leave every process alive: a device memory error (`uce`), which damages the state of one rank, and a failed
collective (`collective`). All ranks leave their process groups and enter the next round in the same processes. As after
a restart, each rank loads the newest complete state from memory, so a damaged rank is repaired. Then the same step is
computed again.

A peer that died looks like a failed collective until its agent reports it. Then the plan is replaced: the ranks that
are parked by then stay parked for ``hot_swap``.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.options import OptionRule, Options, never_reached, number, says, span
from ftcore.policies.situation import a_worker_ended, all_workers_alive, culprit, kind_of, root_report
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration

UCE, COLLECTIVE = "uce", "collective"
"""The kinds of observed faults that this policy handles."""


class StepRetryOptions(Options):
    """Options of ``step_retry``."""

    uce: Annotated[bool, says("Handle device memory errors.")] = True
    hcce: Annotated[bool, says("Handle failed collectives.")] = True
    same_fault: Annotated[int, number("Pass a fault after this many times in a row at the same step.", minimum=2)] = 2
    max_retries: Annotated[int, number("Retries allowed in `window`.", minimum=1, maximum=1000)] = 20
    per_node: Annotated[int, number("Retries for faults of one node in `window`.", minimum=1)] = 5
    window: Annotated[float, span("The time over which retries are counted.", minimum=1)] = 3600.0
    grace: Annotated[float, span("Time for a rank to leave its process groups; then it is stopped.")] = 10.0
    deadline: Annotated[
        float, span("Time from the new round to its first completed step; then the retry has failed.", minimum=1)
    ] = 120.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        OptionRule(
            options=("uce", "hcce"),
            broken=lambda o: not o.uce and not o.hcce,
            text="never takes an incident with uce and hcce off; remove the entry",
        ),
        never_reached("same_fault", "max_retries", beyond=1),
        never_reached("per_node", "max_retries"),
    )


@declares(Trait.PARKS, budget="max_retries")
class StepRetry:
    """Let all ranks enter the next round in their processes, and compute the step again."""

    name: ClassVar[str] = "step_retry"
    doc: ClassVar[str] = "Compute the failed step again without ending a process."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a device memory error (`uce`)",
        "takes a failed collective (`collective`)",
        "passes unless a live worker reported the fault and all workers are alive",
        "passes a fault that occurred `same_fault` times in a row at the same step: it is not transient",
        "passes when `max_retries` in `window`, or `per_node` of this node, are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY,)
    options: ClassVar[type[Options]] = StepRetryOptions

    def considers(self, incident: IncidentState, job: JobState, options: StepRetryOptions) -> Verdict:
        """Take a fault that a live worker reported and that a retry may fix."""
        kind = kind_of(incident, job)
        if kind not in (UCE, COLLECTIVE):
            return Pass(reason="neither a device memory error nor a failed collective")
        step = incident.fault.step if incident.fault.step is not None else job.training.step
        why = (
            _switched_off(kind, options)
            or _not_retryable(incident, job, options.same_fault)
            or spent(job, self.name, options.max_retries, options.window, "retries")
            or node_spent(job, self.name, culprit(incident), options.per_node, options.window)
        )
        if why or job.rounds.world is None or step is None:
            return Pass(reason=why or "the failed step is not known")
        attempt = attempts(job, self.name, options.window) + 1
        how = "each rank loads the state before it" if kind == UCE else "the process groups are set up again"
        return Take(
            plan=PlanKind.RESTART,
            reason=f"computes step {step + 1} again in the same processes; {how}; "
            f"{attempt} of {options.max_retries} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(survivors="park"),
        )


def _switched_off(kind: str, options: StepRetryOptions) -> str:
    switch = "uce" if kind == UCE else "hcce"
    return "" if getattr(options, switch) else f"`{switch}` is off"


def _not_retryable(incident: IncidentState, job: JobState, same_fault: int) -> str:
    root = root_report(incident, job)
    if root is None or root.type != "fault.observed":
        return "no live worker reported the fault"
    if a_worker_ended(incident, job) or not all_workers_alive(job):
        return "not all workers are alive"
    if job.evidence.repeat.count >= same_fault:
        return f"the same fault occurred {job.evidence.repeat.count} times in a row at the same step"
    return ""
