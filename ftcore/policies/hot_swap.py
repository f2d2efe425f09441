"""``hot_swap`` (MindIO's ARF): only what failed is started anew; the other ranks stay alive and wait for it.

The ranks that live leave their groups and park with their state; the failed process (on its node, on a standby one, or
on one that the platform launches) joins them in the next round and takes its state from a replica. Nothing is loaded
from storage, and no completed step is lost.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.options import Options, Rule, never_reached, number, span
from ftcore.policies.situation import (
    Classes,
    NodeFaults,
    a_worker_ended,
    anyone_lives,
    class_of,
    culprit,
    facts,
    gone,
    members,
    room,
    unfit,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed


class HotSwapOptions(Options):
    """What ``hot_swap`` may be told."""

    max_nodes: Annotated[int, number("Nodes that may be missing at once.", minimum=1)] = 1
    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 3
    patience: Annotated[float, span("How long the parked ranks wait for the newcomer.", minimum=1)] = 300.0
    max_swaps: Annotated[int, number("Swaps allowed in `window`.", minimum=1, maximum=1000)] = 10
    per_node: Annotated[int, number("Swaps for faults of one node in `window`.", minimum=1)] = 3
    window: Annotated[float, span("The time over which is counted.", minimum=1)] = 3600.0
    grace: Annotated[float, span("Time in which a rank must be free of its groups; then it is stopped.")] = 10.0
    deadline: Annotated[float, span("Time from the new start to its first completed step; 0: no limit.")] = 300.0

    rules: ClassVar[tuple[Rule, ...]] = (never_reached("per_node", "max_swaps"),)


@declares(Trait.COSTS_A_ROUND, Trait.PARKS, budget="max_swaps")
class HotSwap:
    """Start the failed ranks anew while the others wait."""

    name: ClassVar[str] = "hot_swap"
    doc: ClassVar[str] = (
        "Park the ranks that live, start the failed ones anew, and give them their state from a replica."
    )
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a process that ended, a node that is gone, or one whose fault is of `classes`",
        "passes if more than `max_nodes` nodes failed at once: their replicas may be gone as well",
        "passes a missing node for which neither a standby node is there nor the platform can launch one",
        "passes a fault of the script that came before in a row, and every numeric fault: a new process would meet it "
        "again",
        "passes when its own swap, or any restart, brought no step: then the state that is kept is suspect",
        "passes when `max_swaps` in `window`, or `per_node` of this node, are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = (Ability.PARK, Ability.REPLICAS)
    options: ClassVar[type[Options]] = HotSwapOptions

    def considers(self, incident: IncidentState, job: JobState, options: HotSwapOptions) -> Verdict:
        """Take what the other ranks can sit out."""
        lost, out = gone(incident, job), unfit(incident, job, options)
        missing = (*lost, *out)
        why = (
            _no_remedy(incident, job)
            or _not_swappable(incident, job, missing, options.max_nodes)
            or spent(job, self.name, options.max_swaps, options.window, "swaps")
            or node_spent(job, self.name, culprit(incident), options.per_node, options.window)
        )
        if why:
            return Pass(reason=why)
        launch = job.can(Ability.REPLACE)
        if missing and not launch and room(job, out) < members(job):
            return Pass(reason=f"no node for the place of {listed(missing)}: none stands by, none can be launched")
        attempt = attempts(job, self.name, options.window) + 1
        where = f"for the place of {listed(missing)}" if missing else f"on {culprit(incident)}"
        return Take(
            plan=PlanKind.RESTART,
            reason=f"the ranks that live wait for a new process {where}; "
            f"{attempt} of {options.max_swaps} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(
                survivors="park",
                exclude=out,
                quarantine=out,
                replace=missing if launch else (),
                patience_s=options.patience,
            ),
        )


def _no_remedy(incident: IncidentState, job: JobState) -> str:
    cls = class_of(incident)
    if cls is FaultClass.NUMERIC:
        return "the ranks that would wait hold the state that went wrong"
    if facts(incident).repeats and job.repeat.count > 1:
        return f"{cls} came {job.repeat.count} times in a row: a new process would meet it again"
    if HotSwap.name in incident.tried or job.streak > 0:
        return "a restart brought no completed step: the state that the ranks kept is suspect"
    return ""


def _not_swappable(incident: IncidentState, job: JobState, missing: tuple[str, ...], most: int) -> str:
    if len(missing) > most:
        return f"{len(missing)} nodes failed at once ({listed(missing)}): their replicas may be gone as well"
    if not missing and not a_worker_ended(incident, job):
        return "no process ended that could be started anew"
    if not anyone_lives(job):
        return "no rank lives that could wait"
    return ""
