"""``evict_straggler``: take out the one node that slows all the others down.

A synchronous job is as fast as its slowest rank. What the detector names once may be a noisy neighbour; what it names
again is worth a restart, if another node can take the place.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, cooling_s, faults_of, spent
from ftcore.policies.situation import culprit, is_alive, is_member, kind_of, members, room
from ftcore.states.model import IncidentState, JobState


class EvictStraggler:
    """Put another node into the place of a slow one."""

    name: ClassVar[str] = "evict_straggler"
    doc: ClassVar[str] = "Take out a node that keeps the others waiting, if another can take its place."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a slow node (`straggler`) that was named `times` times in `window`",
        "passes if no standby node is there and the platform cannot launch one: a slow node is better than none",
        "passes within `every` of its last eviction, and when `max_evictions` in `budget_window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[Mapping[str, Option]] = {
        "times": Option(default=3, kind="int", minimum=1, doc="How often a node must be named in `window`."),
        "window": Option(default=3600, kind="duration", minimum=1, doc="The time over which it is counted."),
        "every": Option(default=3600, kind="duration", doc="Time after an eviction in which no other is made."),
        "max_evictions": Option(
            default=5, kind="int", minimum=1, maximum=1000, doc="Evictions allowed in `budget_window`."
        ),
        "budget_window": Option(
            default=86400, kind="duration", minimum=1, doc="The time over which evictions are counted."
        ),
        "isolate": Option(default=True, kind="bool", doc="Keep the machine from being chosen again."),
        "patience": Option(default=1800, kind="duration", minimum=1, doc="How long is waited for the newcomer."),
        "grace": Option(default=10, kind="duration", doc="Time between TERM and KILL of a worker."),
        "deadline": Option(
            default=1800, kind="duration", doc="Time from the new start to its first completed step; 0: no limit."
        ),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take a slow node that is worth a restart."""
        node = culprit(incident)
        if kind_of(incident, job) != "straggler" or not is_alive(job, node) or not is_member(job, node):
            return Pass(reason="no node of the world is named as slow")
        named = faults_of(job, node, options["window"])
        if named < options["times"]:
            return Pass(
                reason=f"{node} was named {named} times in {options['window']:g} s; {options['times']} are needed"
            )
        launch = job.can(Ability.REPLACE)
        if not launch and room(job, (node,)) < members(job):
            return Pass(reason=f"no node for the place of {node}: none stands by, none can be launched")
        rest = cooling_s(job, self.name, options["every"])
        if rest > 0:
            return Pass(reason=f"a slow node was evicted lately; the next may be in {rest:.0f} s", again_s=rest)
        why = spent(job, self.name, options["max_evictions"], options["budget_window"], "evictions")
        if why:
            return Pass(reason=why)
        park = job.can(Ability.PARK) and job.can(Ability.REPLICAS)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{node} was named {named} times in {options['window']:g} s; another node takes its place",
            grace_s=options["grace"],
            deadline_s=options["deadline"],
            attempt=attempts(job, self.name, options["budget_window"]) + 1,
            terms=Terms(
                survivors="park" if park else "stop",
                exclude=(node,),
                quarantine=(node,) if options["isolate"] else (),
                replace=(node,) if launch else (),
                patience_s=options["patience"],
            ),
        )
