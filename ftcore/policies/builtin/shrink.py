"""``shrink``: continue with fewer nodes, down to the job's minimum.

The ranks are assigned again among the remaining nodes (a multiple of the job's node unit), and the script loads its
checkpoint for the smaller world. ``grow`` undoes it. If a standby node can take the place of the lost node, the same
plan keeps the size of the world.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, round_terms, spent
from ftcore.policies.options import OptionRule, Options, number, span, takes_nothing
from ftcore.policies.replacement import Isolate, isolates
from ftcore.policies.situation import (
    Classes,
    NodeFaults,
    asked_by,
    crash_loop,
    is_member,
    largest_world,
    lost_nodes,
    members,
    nodes_left,
    requested_node,
    stays_in_another_size,
    unfit,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import listed, plural


class ShrinkOptions(RoundOptions):
    """Options of ``shrink``."""

    min_nodes: Annotated[int, number("Minimum number of nodes, if larger than the job's own minimum.")] = 0
    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 5
    isolate: Isolate = "auto"
    max_shrinks: Annotated[int, number("Shrinks allowed in `window`.", maximum=1000)] = 20
    window: Annotated[float, span("The time over which shrinks are counted.", minimum=1)] = 3600.0

    rules: ClassVar[tuple[OptionRule, ...]] = (takes_nothing("max_shrinks", "max_shrinks: 0"),)


@declares(Trait.COSTS_A_ROUND, Trait.SHRINKS, budget="max_shrinks")
class Shrink:
    """Remove lost nodes and nodes at fault from the world."""

    name: ClassVar[str] = "shrink"
    doc: ClassVar[str] = "Continue with the remaining nodes, if they are enough."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault if its node is lost, its class is in `classes`, its node was at fault `node_faults` times in "
        "`window`, or its node cannot reach another node and no health check will decide which one is broken",
        "quarantines a node that it removed for a hardware fault or for repeated faults (`isolate`), until an operator "
        "admits it",
        "takes a request to drain or to evict a node of the world",
        "keeps the living processes if the script reports the ability `resize`: they load the newest state from memory "
        "and go on with fewer ranks",
        "passes if fewer nodes would remain than the job or `min_nodes` requires",
        "passes when `max_shrinks` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "drain", "evict")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = ShrinkOptions

    def considers(self, incident: IncidentState, job: JobState, options: ShrinkOptions) -> Verdict:
        """Take the incident if enough nodes remain."""
        requested = requested_node(incident, job)
        if incident.kind == "request" and not requested:
            return Pass(reason="no node to remove")
        if requested and not is_member(job, requested):
            return Pass(reason=f"{requested} is not a member of the world: nothing to remove")
        lost = lost_nodes(incident, job)
        out = (requested,) if requested else unfit(incident, job, options) or crash_loop(incident, job, options)
        if not lost and not out:
            return Pass(reason="no node is gone, and none has to be left out")
        count = largest_world(job, out)
        if count == 0 or count < options.min_nodes:
            return Pass(reason=_too_few(job, out, options.min_nodes))
        why = spent(job, self.name, options.max_shrinks, options.window, "shrinks")
        if why:
            return Pass(reason=why)
        assert job.spec is not None
        isolate = bool(out) and _isolates(incident, job, options, requested)
        parks = stays_in_another_size(incident, job, self.name)
        return Take(
            plan=PlanKind.RESTART,
            reason=_reason(incident, job, tuple(dict.fromkeys((*lost, *out))), count)
            + (" in the same processes" if parks else "")
            + (f"; {listed(out)} is kept out" if isolate else ""),
            **round_terms(job, incident, options),
            terms=Terms(
                exclude=out,
                quarantine=out if isolate else (),
                want=count,
                survivors="park" if parks else "stop",
                patience_s=job.spec.timing.join_window_s,
            ),
        )


def _isolates(incident: IncidentState, job: JobState, options: ShrinkOptions, requested: str) -> bool:
    if requested:
        return incident.fault.detail == "evict" and options.isolate != "never"
    return isolates(incident, job, options)


def _too_few(job: JobState, out: tuple[str, ...], least: int) -> str:
    spec = job.spec
    needed = max(least, spec.nodes_min) if spec is not None else least
    unit = f" in multiples of {spec.node_unit}" if spec is not None and spec.node_unit > 1 else ""
    return f"{plural(nodes_left(job, out), 'node')} would be left; the job needs at least {needed}{unit}"


def _reason(incident: IncidentState, job: JobState, without: tuple[str, ...], count: int) -> str:
    requester = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
    before = members(job)
    if count >= before:
        return f"{requester}a standby node replaces {listed(without)}: the job goes on with {plural(count, 'node')}"
    return f"{requester}the job goes on with {count} of {before} nodes, without {listed(without)}"
