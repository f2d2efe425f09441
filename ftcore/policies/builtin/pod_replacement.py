"""``pod_replacement`` (MindIO's RSC, DLRover's relaunch): have the platform launch a replacement for a node.

All workers start again, and the healthy nodes stay. The replacement gets the lost node's ordinal. The plan waits for
it, which takes minutes, unless a standby node is available. A healthy node that is drained or evicted trains meanwhile
(``engine/departure.py``).
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
    """Options of ``pod_replacement``."""

    patience: Annotated[
        float, span("How long to wait for the replacement nodes; then the plan has failed.", minimum=1)
    ] = 1800.0


@declares(Trait.COSTS_A_ROUND, Trait.REPLACES, budget="max_replacements")
class PodReplacement:
    """Replace lost nodes and nodes at fault."""

    name: ClassVar[str] = "pod_replacement"
    doc: ClassVar[str] = "Have the platform launch a replacement for a lost node or a node at fault."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault if its node is lost, its class is in `classes`, its node was at fault `node_faults` times in "
        "`window`, or its node cannot reach another node and no health check will decide which one is broken",
        "takes a request to drain or to evict a node of the world; the node trains until its replacement is ready",
        "passes if more than `correlated_nodes` nodes, or at least two that are more than half of the world, were at "
        "fault within `correlated_window`",
        "passes when `max_replacements` in `window` or `per_node` of this node are spent, and during `cool_down`",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "drain", "evict")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.REPLACE,)
    options: ClassVar[type[Options]] = PodReplacementOptions

    def considers(self, incident: IncidentState, job: JobState, options: PodReplacementOptions) -> Verdict:
        """Take the incident if there are nodes to replace."""
        found = judge(incident, job, self.name, options)
        if found.why_not:
            return Pass(reason=found.why_not)
        nodes = (*found.lost, *found.unfit)
        requester = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
        attempt = attempts(job, self.name, options.window) + 1
        verb = "replaces and quarantines" if found.isolate else "replaces"
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{requester}{verb} {listed(nodes)}; "
            f"{attempt} of {options.max_replacements} in {format_duration(options.window)}",
            attempt=attempt,
            **round_terms(job, incident, options),
            terms=Terms(
                exclude=nodes if found.isolate else found.unfit,
                quarantine=nodes if found.isolate else (),
                replace=nodes,
                patience_s=options.patience,
            ),
        )
