"""``step_retry`` (MindIO's UCE and HCCE): compute the failed step once more, in the processes there are.

Two troubles leave every process alive. A memory error that the device reports (`uce`) has spoiled the state of one
rank: it takes that state from a rank that holds the same. A collective that failed (`collective`) has spoiled nothing
but the step: the group is set up again. Both end in seconds, with no step lost.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.commands import RetryStep
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.situation import a_worker_ended, culprit, everyone_lives, kind_of, reports, root_report
from ftcore.policies.traits import declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration

UCE, COLLECTIVE = "uce", "collective"
"""Kinds of observed faults that this policy is there for."""


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
    options: ClassVar[Mapping[str, Option]] = {
        "uce": Option(default=True, kind="bool", doc="Deal with memory errors of devices."),
        "hcce": Option(default=True, kind="bool", doc="Deal with failed collectives."),
        "same_fault": Option(
            default=2, kind="int", minimum=2, doc="A fault seen this often in a row at the same step is passed on."
        ),
        "max_retries": Option(default=20, kind="int", minimum=1, maximum=1000, doc="Retries allowed in `window`."),
        "per_node": Option(default=5, kind="int", minimum=1, doc="Retries for faults of one node in `window`."),
        "window": Option(default=3600, kind="duration", minimum=1, doc="The time over which retries are counted."),
        "deadline": Option(
            default=120, kind="duration", minimum=1, doc="Time for the step to be completed; then the retry failed."
        ),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take what a living worker reported and a second try may cure."""
        what = kind_of(incident, job)
        if what not in (UCE, COLLECTIVE):
            return Pass(reason="neither a memory error of a device nor a failed collective")
        step = incident.fault.step if incident.fault.step is not None else job.step
        why = (
            _switched_off(what, options)
            or _unfit(incident, job, what, options["same_fault"])
            or spent(job, self.name, options["max_retries"], options["window"], "retries")
            or node_spent(job, self.name, culprit(incident), options["per_node"], options["window"])
        )
        if why or job.world is None or step is None:
            return Pass(reason=why or "the step that failed is not known")
        repair = what == UCE
        attempt = attempts(job, self.name, options["window"]) + 1
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
            f"{attempt} of {options['max_retries']} in {format_duration(options['window'])}",
            grace_s=0.0,
            deadline_s=options["deadline"],
            attempt=attempt,
            terms=Terms(command=command, then="verify"),
        )


def _switched_off(what: str, options: Mapping[str, Any]) -> str:
    switch = "uce" if what == UCE else "hcce"
    return "" if options[switch] else f"`{switch}` is switched off"


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
