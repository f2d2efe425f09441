"""``shrink``: go on with fewer nodes, as long as the job allows so few.

The plan of a job that would rather train slowly than wait: ranks are dealt anew among the nodes that are left (a
multiple of the job's node unit), and the script loads its checkpoint for the smaller world. ``grow`` is its way back.

A standby node that fills the place of a bad one makes the same plan the better one: nothing shrinks at all.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, round_terms, spent
from ftcore.policies.options import Options, Rule, number, span, takes_nothing
from ftcore.policies.replacement import Isolate, isolates
from ftcore.policies.situation import (
    Classes,
    NodeFaults,
    asked_by,
    crash_loop,
    gone,
    is_member,
    left,
    members,
    room,
    unfit,
    wished_node,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import listed, plural


class ShrinkOptions(RoundOptions):
    """What ``shrink`` may be told."""

    min_nodes: Annotated[int, number("Nodes below which it passes, if that is more than the job's own minimum.")] = 0
    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 5
    isolate: Isolate = "auto"
    max_shrinks: Annotated[int, number("Times allowed in `window`.", maximum=1000)] = 20
    window: Annotated[float, span("The time over which is counted.", minimum=1)] = 3600.0

    rules: ClassVar[tuple[Rule, ...]] = (takes_nothing("max_shrinks", "max_shrinks: 0"),)


@declares(Trait.COSTS_A_ROUND, Trait.SHRINKS, budget="max_shrinks")
class Shrink:
    """Leave out the nodes that are gone or unfit."""

    name: ClassVar[str] = "shrink"
    doc: ClassVar[str] = "Go on with the nodes that are left, if they are enough."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault whose node is gone, or is unfit: its class is one of `classes`, it was the culprit "
        "`node_faults` times in `window`, or it cannot reach another node and no health check is due that decides",
        "keeps a node out that it leaves out for what the machine did, or for faults that come back to it (`isolate`), "
        "until somebody admits it",
        "takes a request to drain or to evict a node of the world",
        "passes where fewer nodes would be left than the job or `min_nodes` asks for",
        "passes when `max_shrinks` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "drain", "evict")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = ShrinkOptions

    def considers(self, incident: IncidentState, job: JobState, options: ShrinkOptions) -> Verdict:
        """Take what leaves enough nodes."""
        wished = wished_node(incident, job)
        if incident.kind == "request" and not wished:
            return Pass(reason="no node is to be left out")
        if wished and not is_member(job, wished):
            return Pass(reason=f"{wished} is no member of the world: there is nothing to leave out")
        lost = gone(incident, job)
        out = (wished,) if wished else unfit(incident, job, options) or crash_loop(incident, job, options)
        if not lost and not out:
            return Pass(reason="no node is gone, and none has to be left out")
        count = room(job, out)
        if count == 0 or count < options.min_nodes:
            return Pass(reason=_too_few(job, out, options.min_nodes))
        why = spent(job, self.name, options.max_shrinks, options.window, "times")
        if why:
            return Pass(reason=why)
        assert job.spec is not None
        isolate = bool(out) and _isolates(incident, job, options, wished)
        return Take(
            plan=PlanKind.RESTART,
            reason=_reason(incident, job, tuple(dict.fromkeys((*lost, *out))), count)
            + (f"; {listed(out)} is kept out" if isolate else ""),
            **round_terms(job, incident, options),
            terms=Terms(
                exclude=out,
                quarantine=out if isolate else (),
                want=count,
                patience_s=job.spec.timing.join_window_s,
            ),
        )


def _isolates(incident: IncidentState, job: JobState, options: ShrinkOptions, wished: str) -> bool:
    if wished:
        return incident.fault.detail == "evict" and options.isolate != "never"
    return isolates(incident, job, options)


def _too_few(job: JobState, out: tuple[str, ...], least: int) -> str:
    spec = job.spec
    needed = max(least, spec.nodes_min) if spec is not None else least
    unit = f" in multiples of {spec.node_unit}" if spec is not None and spec.node_unit > 1 else ""
    return f"{plural(left(job, out), 'node')} would be left; the job needs at least {needed}{unit}"


def _reason(incident: IncidentState, job: JobState, without: tuple[str, ...], count: int) -> str:
    who = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
    before = members(job)
    if count >= before:
        return f"{who}the job goes on with {plural(count, 'node')} without {listed(without)}: a standby node is there"
    return f"{who}the job goes on with {count} of {before} nodes, without {listed(without)}"
