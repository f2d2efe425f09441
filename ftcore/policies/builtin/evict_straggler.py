"""``evict_straggler``: replace a node that slows down all the others.

A synchronous job is as fast as its slowest rank. The detector names nodes that are slow over many steps. Whether an
eviction is worth a restart depends on how slow the node is, and on the availability of another node.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import StartOptions, attempts, cooling_s, spent
from ftcore.policies.options import OptionRule, Options, number, says, span
from ftcore.policies.situation import culprit, is_alive, is_member, kind_of, largest_world, members, root_report
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class EvictStragglerOptions(StartOptions):
    """Options of ``evict_straggler``."""

    slower: Annotated[
        float, number("Minimum step time as a multiple of the usual one, if the detector reports both.", minimum=1)
    ] = 1.1
    steps: Annotated[
        int, number("Minimum number of slow steps, if the detector reports it; in addition to the detector's own.")
    ] = 0
    every: Annotated[float, span("Minimum time between two evictions.")] = 3600.0
    max_evictions: Annotated[int, number("Evictions allowed in `window`.", minimum=1, maximum=1000)] = 5
    window: Annotated[float, span("The time over which evictions are counted.", minimum=1)] = 86400.0
    isolate: Annotated[bool, says("Do not use the machine again.")] = True
    patience: Annotated[float, span("How long to wait for the replacement node.", minimum=1)] = 1800.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        OptionRule(
            options=("max_evictions", "every", "window"),
            broken=lambda o: o.every * o.max_evictions > o.window,
            text="max_evictions ({max_evictions}) in window ({window}) is never reached: every ({every}) allows fewer",
            given=("max_evictions",),
        ),
        OptionRule(
            options=("slower",),
            broken=lambda o: o.slower <= 1,
            text="slower ({slower}): every node would count as slow; expected more than 1, as 1.1",
            given=("slower",),
        ),
        OptionRule(
            options=("every",),
            broken=lambda o: o.every <= 0,
            text="every (0s) allows the next eviction before the last one has an effect; expected a duration over 0",
            given=("every",),
        ),
    )


@declares(Trait.COSTS_A_ROUND, budget="max_evictions")
class EvictStraggler:
    """Replace a slow node by another one."""

    name: ClassVar[str] = "evict_straggler"
    doc: ClassVar[str] = "Evict a node that slows down the others, if another node can replace it."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a slow node (`straggler`) that needs at least `slower` times the usual step time, for `steps` steps",
        "keeps the slow node in training until its replacement is ready",
        "passes if there is no standby node and the platform cannot launch one: a slow node is better than none",
        "passes within `every` of its last eviction, and when `max_evictions` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("warning",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = EvictStragglerOptions

    def considers(self, incident: IncidentState, job: JobState, options: EvictStragglerOptions) -> Verdict:
        """Take a straggler that is slow enough to be worth a restart."""
        node = culprit(incident)
        if kind_of(incident, job) != "straggler" or not is_alive(job, node) or not is_member(job, node):
            return Pass(reason="no node of the world is reported as slow")
        why = _not_slow_enough(incident, job, options)
        if why:
            return Pass(reason=f"{node} {why}")
        launch = job.can(Ability.REPLACE)
        if not launch and largest_world(job, (node,)) < members(job):
            return Pass(reason=f"no replacement for {node}: no standby node, and the platform cannot launch one")
        rest = cooling_s(job, self.name, options.every)
        if rest > 0:
            return Pass(
                reason=f"cool-down: the next eviction is possible in {format_duration(round(rest))}",
                again_s=rest,
            )
        why = spent(job, self.name, options.max_evictions, options.window, "evictions")
        if why:
            return Pass(reason=why)
        park = job.can(Ability.PARK) and job.can(Ability.REPLICAS)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{node} slows down the others; another node replaces it",
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


def _not_slow_enough(incident: IncidentState, job: JobState, options: EvictStragglerOptions) -> str:
    """Why the node is not slow enough, by the reported figures; empty if it is, or none were reported."""
    root = root_report(incident, job)
    values = root.values if root is not None else {}
    value, usual = values.get("value", 0.0), values.get("usual", 0.0)
    if usual > 0 and value < usual * options.slower:
        return f"needs {value / usual:.2f} times the usual step time; evicted from {options.slower:g} times (`slower`)"
    if root is not None and root.step is not None and root.step - values.get("since", root.step) < options.steps:
        return f"is slow since step {values.get('since', root.step):.0f}; evicted after {options.steps} steps (`steps`)"
    return ""
