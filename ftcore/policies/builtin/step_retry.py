"""``step_retry`` (MindIO's UCE and HCCE): compute the failed step again in the same processes.

Two faults leave every process alive. A device memory error (`uce`) corrupts the state of one rank, which gets it back
from a replica. A failed collective (`collective`) affects the step only: the process group is set up again. Both
recoveries take seconds and lose no step.
"""

from typing import Annotated, ClassVar

from ftcore.commands import RetryStep
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.options import OptionRule, Options, never_reached, number, says, span
from ftcore.policies.situation import a_worker_ended, all_workers_alive, culprit, kind_of, reports, root_report
from ftcore.policies.traits import declares
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
    deadline: Annotated[float, span("Time to complete the step; then the retry has failed.", minimum=1)] = 120.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        OptionRule(
            options=("uce", "hcce"),
            broken=lambda o: not o.uce and not o.hcce,
            text="never takes an incident with uce and hcce off; remove the entry",
        ),
        never_reached("same_fault", "max_retries", beyond=1),
        never_reached("per_node", "max_retries"),
    )


@declares(budget="max_retries")
class StepRetry:
    """Restore the state if necessary, then compute the step again."""

    name: ClassVar[str] = "step_retry"
    doc: ClassVar[str] = "Compute the failed step again without ending a process."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a device memory error (`uce`), if two ranks hold every part of the state",
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
            or _not_retryable(incident, job, kind, options.same_fault)
            or spent(job, self.name, options.max_retries, options.window, "retries")
            or node_spent(job, self.name, culprit(incident), options.per_node, options.window)
        )
        if why or job.rounds.world is None or step is None:
            return Pass(reason=why or "the failed step is not known")
        repair = kind == UCE
        attempt = attempts(job, self.name, options.window) + 1
        command = RetryStep(
            round=job.rounds.world.round,  # type: ignore[arg-type]
            step=step + 1,
            restore="replica" if repair else "nothing",
            ranks=_corrupted(incident, job) if repair else (),
        )
        how = "the state is restored from a replica" if repair else "the process group is set up again"
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=f"computes step {step + 1} again; {how}; "
            f"{attempt} of {options.max_retries} in {format_duration(options.window)}",
            grace_s=0.0,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(command=command, then="verify"),
        )


def _switched_off(kind: str, options: StepRetryOptions) -> str:
    switch = "uce" if kind == UCE else "hcce"
    return "" if getattr(options, switch) else f"`{switch}` is off"


def _not_retryable(incident: IncidentState, job: JobState, kind: str, same_fault: int) -> str:
    root = root_report(incident, job)
    if root is None or root.type != "fault.observed":
        return "no live worker reported the fault"
    if a_worker_ended(incident, job) or not all_workers_alive(job):
        return "not all workers are alive"
    if kind == UCE and not job.can(Ability.REPLICAS):
        return "the job does not declare that two ranks hold every part of the state (`replicas`)"
    if job.evidence.repeat.count >= same_fault:
        return f"the same fault occurred {job.evidence.repeat.count} times in a row at the same step"
    return ""


def _corrupted(incident: IncidentState, job: JobState) -> tuple[int, ...]:
    """Ranks whose state must be restored: those that reported a memory error."""
    ranks = [report.rank for report in reports(incident, job) if report.kind == UCE and report.rank >= 0]
    return tuple(sorted(dict.fromkeys(ranks))) or incident.fault.ranks[:1]
