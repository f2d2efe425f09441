"""``hot_swap`` (MindIO's ARF): only what failed is started anew; the other ranks stay alive and wait for it.

The ranks that live leave their groups and park with their state; the failed process (on its node, on a standby one, or
on one that the platform launches) joins them in the next round and takes its state from a replica. Nothing is loaded
from storage, and no completed step is lost.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, node_spent, spent
from ftcore.policies.situation import a_worker_ended, anyone_lives, class_of, culprit, facts, gone, members, room, unfit
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed


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
    options: ClassVar[Mapping[str, Option]] = {
        "max_nodes": Option(default=1, kind="int", minimum=1, doc="Nodes that may be missing at once."),
        "classes": Option(
            default=("gpu-hw",),
            kind="texts",
            choices=tuple(FaultClass),
            doc="Classes of faults for which the node is left out though it lives.",
        ),
        "node_faults": Option(
            default=3,
            kind="int",
            doc="A node that was the culprit this often in `window`, and more often than all others together, is left "
            "out; 0: never.",
        ),
        "patience": Option(
            default=300, kind="duration", minimum=1, doc="How long the parked ranks wait for the newcomer."
        ),
        "max_swaps": Option(default=10, kind="int", minimum=1, maximum=1000, doc="Swaps allowed in `window`."),
        "per_node": Option(default=3, kind="int", minimum=1, doc="Swaps for faults of one node in `window`."),
        "window": Option(default=3600, kind="duration", minimum=1, doc="The time over which is counted."),
        "grace": Option(
            default=10, kind="duration", doc="Time in which a rank must be free of its groups; then it is stopped."
        ),
        "deadline": Option(
            default=300, kind="duration", doc="Time from the new start to its first completed step; 0: no limit."
        ),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take what the other ranks can sit out."""
        lost, out = gone(incident, job), unfit(incident, job, options)
        missing = (*lost, *out)
        why = (
            _no_remedy(incident, job)
            or _not_swappable(incident, job, missing, options["max_nodes"])
            or spent(job, self.name, options["max_swaps"], options["window"], "swaps")
            or node_spent(job, self.name, culprit(incident), options["per_node"], options["window"])
        )
        if why:
            return Pass(reason=why)
        launch = job.can(Ability.REPLACE)
        if missing and not launch and room(job, out) < members(job):
            return Pass(reason=f"no node for the place of {listed(missing)}: none stands by, none can be launched")
        attempt = attempts(job, self.name, options["window"]) + 1
        where = f"for the place of {listed(missing)}" if missing else f"on {culprit(incident)}"
        return Take(
            plan=PlanKind.RESTART,
            reason=f"the ranks that live wait for a new process {where}; "
            f"{attempt} of {options['max_swaps']} in {format_duration(options['window'])}",
            grace_s=options["grace"],
            deadline_s=options["deadline"],
            attempt=attempt,
            terms=Terms(
                survivors="park",
                exclude=out,
                quarantine=out,
                replace=missing if launch else (),
                patience_s=options["patience"],
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
