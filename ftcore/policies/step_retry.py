"""``step_retry`` (MindIO's UCE and HCCE): compute the failed step once more, in the processes there are.

Two troubles leave every process alive. A memory error that the device reports (`uce`) has spoiled the state of one
rank: it takes that state from a rank that holds the same. A collective that failed (`collective`) has spoiled nothing
but the step: the group is set up again. Both end in seconds, with no step lost.
"""

from typing import Annotated, ClassVar

from ftcore.commands import RetryStep
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.options import Options, Rule, never_reached, number, says, span
from ftcore.policies.situation import a_worker_ended, culprit, everyone_lives, kind_of, reports, root_report
from ftcore.policies.traits import declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration

UCE, COLLECTIVE = "uce", "collective"
"""Kinds of observed faults that this policy is there for."""


class StepRetryOptions(Options):
    """What ``step_retry`` may be told."""

    uce: Annotated[bool, says("Deal with memory errors of devices.")] = True
    hcce: Annotated[bool, says("Deal with failed collectives.")] = True
    same_fault: Annotated[int, number("A fault seen this often in a row at the same step is passed on.", minimum=2)] = 2
    max_retries: Annotated[int, number("Retries allowed in `window`.", minimum=1, maximum=1000)] = 20
    per_node: Annotated[int, number("Retries for faults of one node in `window`.", minimum=1)] = 5
    window: Annotated[float, span("The time over which retries are counted.", minimum=1)] = 3600.0
    deadline: Annotated[float, span("Time for the step to be completed; then the retry failed.", minimum=1)] = 120.0

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            options=("uce", "hcce"),
            broken=lambda o: not o.uce and not o.hcce,
            text="with uce and hcce off it takes nothing; leave the entry out",
        ),
        never_reached("same_fault", "max_retries", beyond=1),
        never_reached("per_node", "max_retries"),
    )


@declares(budget="max_retries")
class StepRetry:
    """Repair the state if need be, then compute the step again."""

    name: ClassVar[str] = "step_retry"
    doc: ClassVar[str] = "Compute the failed step once more without ending a process."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a memory error of a device (`uce`), if every part of the state is held twice",
        "takes a failed collective (`collective`)",
        "passes unless a living worker reported it and all workers live",
        "passes the same fault at the same step `same_fault` times in a row: what returns is no hiccup",
        "passes when `max_retries` in `window`, or `per_node` of this node, are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = (Ability.RETRY,)
    options: ClassVar[type[Options]] = StepRetryOptions

    def considers(self, incident: IncidentState, job: JobState, options: StepRetryOptions) -> Verdict:
        """Take what a living worker reported and a second try may cure."""
        what = kind_of(incident, job)
        if what not in (UCE, COLLECTIVE):
            return Pass(reason="neither a memory error of a device nor a failed collective")
        step = incident.fault.step if incident.fault.step is not None else job.step
        why = (
            _switched_off(what, options)
            or _unfit(incident, job, what, options.same_fault)
            or spent(job, self.name, options.max_retries, options.window, "retries")
            or node_spent(job, self.name, culprit(incident), options.per_node, options.window)
        )
        if why or job.world is None or step is None:
            return Pass(reason=why or "the step that failed is not known")
        repair = what == UCE
        attempt = attempts(job, self.name, options.window) + 1
        command = RetryStep(
            round=job.world.round,  # type: ignore[arg-type]
            step=step + 1,
            restore="replica" if repair else "nothing",
            ranks=_spoiled(incident, job) if repair else (),
        )
        how = "the spoiled state is taken from a replica" if repair else "the group is set up again"
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=f"computes step {step + 1} once more; {how}; "
            f"{attempt} of {options.max_retries} in {format_duration(options.window)}",
            grace_s=0.0,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(command=command, then="verify"),
        )


def _switched_off(what: str, options: StepRetryOptions) -> str:
    switch = "uce" if what == UCE else "hcce"
    return "" if getattr(options, switch) else f"`{switch}` is switched off"


def _unfit(incident: IncidentState, job: JobState, what: str, same_fault: int) -> str:
    root = root_report(incident, job)
    if root is None or root.type != "fault.observed":
        return "no living worker reported it"
    if a_worker_ended(incident, job) or not everyone_lives(job):
        return "not all workers live"
    if what == UCE and not job.can(Ability.REPLICAS):
        return "nothing declared that every part of the state is held twice (`replicas`)"
    if job.repeat.count >= same_fault:
        return f"the same fault came {job.repeat.count} times in a row at the same step"
    return ""


def _spoiled(incident: IncidentState, job: JobState) -> tuple[int, ...]:
    """Ranks whose state has to be repaired: those that reported a memory error."""
    told = [report.rank for report in reports(incident, job) if report.kind == UCE and report.rank >= 0]
    return tuple(sorted(dict.fromkeys(told))) or incident.fault.ranks[:1]
