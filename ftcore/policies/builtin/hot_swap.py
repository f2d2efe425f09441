"""``hot_swap`` (MindIO's ARF): start only the failed processes again; the other ranks stay alive and wait.

The live ranks leave their process groups and wait. The failed process starts again: on its node, on a standby node or
on one that the platform launches. It joins the others in the next round, where each rank loads the newest complete
state from memory, or from a replica. No checkpoint is read, and at most the current step is lost.

A process that hangs cannot leave its groups: its agent stops it after ``grace``, and a new one starts in its place.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.options import OptionRule, Options, never_reached, number, span
from ftcore.policies.situation import (
    Classes,
    NodeFaults,
    a_worker_ended,
    any_worker_alive,
    class_of,
    culprit,
    facts,
    has_tried,
    kind_of,
    largest_world,
    lost_nodes,
    members,
    must_separate,
    stays_at_fault,
    unfit,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.states.norms import NORM
from ftcore.states.revisions import SWAP_ON_NODE, follows
from ftcore.wording import format_duration, listed


class HotSwapOptions(Options):
    """Options of ``hot_swap``."""

    max_nodes: Annotated[int, number("Nodes that may be missing at the same time.", minimum=1)] = 1
    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 3
    patience: Annotated[float, span("How long the parked ranks wait for the replacement node.", minimum=1)] = 300.0
    max_swaps: Annotated[int, number("Swaps allowed in `window`.", minimum=1, maximum=1000)] = 10
    per_node: Annotated[int, number("Swaps for faults of one node in `window`.", minimum=1)] = 3
    window: Annotated[float, span("The time over which swaps are counted.", minimum=1)] = 3600.0
    grace: Annotated[float, span("Time for a rank to leave its process groups; then it is stopped.")] = 10.0
    deadline: Annotated[float, span("Time from the new start to its first completed step; 0: no limit.")] = 300.0

    rules: ClassVar[tuple[OptionRule, ...]] = (never_reached("per_node", "max_swaps"),)


@declares(Trait.COSTS_A_ROUND, Trait.PARKS, budget="max_swaps", needed=("park", "replicas"))
class HotSwap:
    """Start the failed ranks again while the others wait."""

    name: ClassVar[str] = "hot_swap"
    doc: ClassVar[str] = (
        "Park the live ranks, and start the failed ones again; each loads the newest state from memory."
    )
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a process that ended, a lost node, a node with a fault of `classes`, or a hang of known ranks or nodes",
        "passes if more than `max_nodes` nodes failed at once: their replicas may be lost as well",
        "passes a missing node if there is no standby node and the platform cannot launch one; a node that keeps "
        "failing and without which the job cannot run stays, and its process is started again there",
        "passes a repeated fault of the script: a new process would fail in the same way",
        "passes a numeric fault, except a step that was stopped before it changed the state (`norm`)",
        "passes a hang without a known rank or node: nothing says which process to start again",
        "passes if its own swap, or any restart, led to no completed step: the state of the parked ranks is suspect",
        "passes when `max_swaps` in `window`, or `per_node` of this node, are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = (Ability.PARK,)
    options: ClassVar[type[Options]] = HotSwapOptions

    def considers(self, incident: IncidentState, job: JobState, options: HotSwapOptions) -> Verdict:
        """Take a fault during which the other ranks can wait."""
        lost, out, remark = lost_nodes(incident, job), unfit(incident, job, options), ""
        if out and _must_stay(incident, job, options):
            out, remark = (), stays_at_fault(out)
        missing = (*lost, *out)
        why = (
            _no_remedy(incident, job)
            or _not_swappable(incident, job, missing, options.max_nodes)
            or spent(job, self.name, options.max_swaps, options.window, "swaps")
            or ("" if remark else node_spent(job, self.name, culprit(incident), options.per_node, options.window))
        )
        if why:
            return Pass(reason=why)
        launch = job.can(Ability.REPLACE)
        if missing and not launch and largest_world(job, out) < members(job):
            reason = f"no replacement for {listed(missing)}: no standby node, and the platform cannot launch one"
            return Pass(reason=reason)
        attempt = attempts(job, self.name, options.window) + 1
        where = f"in place of {listed(missing)}" if missing else f"on {culprit(incident)}"
        return Take(
            plan=PlanKind.RESTART,
            reason=f"the live ranks wait for a new process {where}; "
            f"{attempt} of {options.max_swaps} in {format_duration(options.window)}{remark}",
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


def _must_stay(incident: IncidentState, job: JobState, options: HotSwapOptions) -> bool:
    """Whether a node that keeps failing stays, whatever policy decides: no other can come, and the job needs it.

    After a fault of its machine, a restart of all is left to decide: it has the node checked.
    """
    machine = incident.fault.cls in options.classes or must_separate(incident, job)
    needed = not job.can(Ability.REPLACE) and not largest_world(job, unfit(incident, job, options))
    return follows(job, SWAP_ON_NODE) and needed and not machine


def _no_remedy(incident: IncidentState, job: JobState) -> str:
    cls = class_of(incident)
    if cls is FaultClass.NUMERIC and kind_of(incident, job) != NORM:
        return "after a numeric fault the state of the live ranks is wrong, too"
    if facts(incident).repeats and job.evidence.repeat.count > 1:
        return f"{cls} occurred {job.evidence.repeat.count} times in a row: a new process would fail in the same way"
    if has_tried(incident, job, HotSwap.name) or job.history.streak > 0:
        return "the last restart led to no completed step: the state of the live ranks is suspect"
    return ""


def _not_swappable(incident: IncidentState, job: JobState, missing: tuple[str, ...], most: int) -> str:
    if len(missing) > most:
        return f"{len(missing)} nodes failed at once ({listed(missing)}): their replicas may be lost as well"
    if class_of(incident) is FaultClass.HANG:
        if not missing and not a_worker_ended(incident, job) and not (incident.fault.ranks or culprit(incident)):
            return "no rank or node is known to hang, so there is no process to start again"
    elif not missing and not a_worker_ended(incident, job):
        return "no process ended, so there is none to start again"
    if not any_worker_alive(job):
        return "no live rank could wait"
    return ""
