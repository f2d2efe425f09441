"""``pod_replacement`` (MindIO's RSC, DLRover's relaunch): the platform launches a node for the place of a bad one.

All workers are started again, the healthy nodes stay; the newcomer takes the lost node's ordinal. The plan waits for
the newcomer, which takes minutes, unless a standby node fills the place at once. A healthy node that is drained or
evicted trains meanwhile (``engine/departure.py``).
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, round_terms
from ftcore.policies.options import Options, span
from ftcore.policies.replacement import ReplacementOptions, judge
from ftcore.policies.situation import asked_by
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed


class PodReplacementOptions(ReplacementOptions):
    """What ``pod_replacement`` may be told."""

    patience: Annotated[float, span("How long is waited for the newcomers; then the plan failed.", minimum=1)] = 1800.0


@declares(Trait.COSTS_A_ROUND, Trait.REPLACES, budget="max_replacements")
class PodReplacement:
    """Replace the nodes that are gone or at fault."""

    name: ClassVar[str] = "pod_replacement"
    doc: ClassVar[str] = "Have the platform launch a node for the place of one that is gone or at fault."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault whose node is gone, whose class is one of `classes`, whose node was the culprit `node_faults` "
        "times in `window`, or cannot reach another node and no health check is due that decides",
        "takes a request to drain or to evict a node of the world; it trains until its replacement is ready",
        "passes, and says that it holds, if more than `correlated_nodes` nodes, or two and more that are most of the "
        "world, were at fault within `correlated_window`",
        "passes when `max_replacements` in `window` or `per_node` of this node are spent, and during `cool_down`",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "drain", "evict")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.REPLACE,)
    options: ClassVar[type[Options]] = PodReplacementOptions

    def considers(self, incident: IncidentState, job: JobState, options: PodReplacementOptions) -> Verdict:
        """Take it if the judgement finds nodes to replace."""
        found = judge(incident, job, self.name, options)
        if found.why_not:
            return Pass(reason=found.why_not)
        nodes = (*found.gone, *found.out)
        who = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
        attempt = attempts(job, self.name, options.window) + 1
        kept_out = " and keeps them out" if found.isolate else ""
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{who}replaces {listed(nodes)}{kept_out}; "
            f"{attempt} of {options.max_replacements} in {format_duration(options.window)}",
            attempt=attempt,
            **round_terms(job, incident, options),
            terms=Terms(
                exclude=nodes if found.isolate else found.out,
                quarantine=nodes if found.isolate else (),
                replace=nodes,
                patience_s=options.patience,
            ),
        )
