"""``evict_straggler``: take out the one node that slows all the others down.

A synchronous job is as fast as its slowest rank. The detector names only who was slow step after step; whether that is
worth a restart depends on how slow, and on another node being there to take the place.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import StartOptions, attempts, cooling_s, spent
from ftcore.policies.options import Options, Rule, number, says, span
from ftcore.policies.situation import culprit, is_alive, is_member, kind_of, members, room, root_report
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class EvictStragglerOptions(StartOptions):
    """What ``evict_straggler`` may be told."""

    slower: Annotated[float, number("How many times as long as usual it needs, where that is told.", minimum=1)] = 1.1
    steps: Annotated[int, number("Steps since it was named first, where that is told; beyond the detector's own.")] = 0
    every: Annotated[float, span("Time after an eviction in which no other is made.")] = 3600.0
    max_evictions: Annotated[int, number("Evictions allowed in `window`.", minimum=1, maximum=1000)] = 5
    window: Annotated[float, span("The time over which evictions are counted.", minimum=1)] = 86400.0
    isolate: Annotated[bool, says("Keep the machine from being chosen again.")] = True
    patience: Annotated[float, span("How long is waited for the newcomer.", minimum=1)] = 1800.0

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            options=("max_evictions", "every", "window"),
            broken=lambda o: o.every * o.max_evictions > o.window,
            text="max_evictions ({max_evictions}) in window ({window}) is never reached: every ({every}) allows fewer",
            given=("max_evictions",),
        ),
        Rule(
            options=("slower",),
            broken=lambda o: o.slower <= 1,
            text="slower ({slower}) is the usual pace: every node would count as slow; expected more than 1, as 1.1",
            given=("slower",),
        ),
        Rule(
            options=("every",),
            broken=lambda o: o.every <= 0,
            text="every (0s) lets one eviction follow another before its effect shows; expected a duration over 0",
            given=("every",),
        ),
    )


@declares(Trait.COSTS_A_ROUND, budget="max_evictions")
class EvictStraggler:
    """Put another node into the place of a slow one."""

    name: ClassVar[str] = "evict_straggler"
    doc: ClassVar[str] = "Take out a node that keeps the others waiting, if another can take its place."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a slow node (`straggler`) that needs `slower` times as long as usual or more, since `steps` steps",
        "lets the slow node train until its replacement is ready",
        "passes if no standby node is there and the platform cannot launch one: a slow node is better than none",
        "passes within `every` of its last eviction, and when `max_evictions` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("warning",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = EvictStragglerOptions

    def considers(self, incident: IncidentState, job: JobState, options: EvictStragglerOptions) -> Verdict:
        """Take a slow node that is worth a restart."""
        node = culprit(incident)
        if kind_of(incident, job) != "straggler" or not is_alive(job, node) or not is_member(job, node):
            return Pass(reason="no node of the world is named as slow")
        slow = _how_slow(incident, job, options)
        if slow:
            return Pass(reason=f"{node} {slow}")
        launch = job.can(Ability.REPLACE)
        if not launch and room(job, (node,)) < members(job):
            return Pass(reason=f"no node for the place of {node}: none stands by, none can be launched")
        rest = cooling_s(job, self.name, options.every)
        if rest > 0:
            return Pass(
                reason=f"a slow node was evicted lately; the next may be in {format_duration(round(rest))}",
                again_s=rest,
            )
        why = spent(job, self.name, options.max_evictions, options.window, "evictions")
        if why:
            return Pass(reason=why)
        park = job.can(Ability.PARK) and job.can(Ability.REPLICAS)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{node} keeps the others waiting; another node takes its place",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempts(job, self.name, options.window) + 1,
            terms=Terms(
                survivors="park" if park else "stop",
                exclude=(node,),
                quarantine=(node,) if options.isolate else (),
                replace=(node,) if launch else (),
                patience_s=options.patience,
            ),
        )


def _how_slow(incident: IncidentState, job: JobState, options: EvictStragglerOptions) -> str:
    """Why it is not slow enough, by the figures of who saw it: empty if it is, or nothing was told."""
    root = root_report(incident, job)
    told = root.values if root is not None else {}
    value, usual = told.get("value", 0.0), told.get("usual", 0.0)
    if usual > 0 and value < usual * options.slower:
        return f"needs {value / usual:.2f} times the usual time; {options.slower:g} times is worth an eviction"
    if root is not None and root.step is not None and root.step - told.get("since", root.step) < options.steps:
        return f"is slow since step {told.get('since', root.step):.0f}; it is evicted after {options.steps} steps"
    return ""
