"""Decide whether nodes should be replaced, and which ones.

This is separate from ``pod_replacement`` because policies above it in the chain ask whether a replacement is possible
before they restart on a node at fault.

If many nodes fail at once, the cause is usually shared: a switch, a file system or a driver. New nodes would fail in
the same way, so nothing is replaced and the verdict says why.
"""

from typing import Annotated, ClassVar, Literal, Protocol

import attrs

from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.budget import RoundOptions, charged, cooling_s, spent
from ftcore.policies.options import OptionRule, never_reached, number, says, span, takes_nothing
from ftcore.policies.situation import (
    Blame,
    Classes,
    NodeFaults,
    culprit,
    is_member,
    keeps_failing,
    lost_nodes,
    members,
    nodes_hit,
    requested_node,
    root_report,
    unfit,
)
from ftcore.states.faultkey import is_cut
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed, plural

Isolate = Annotated[
    Literal["auto", "always", "never"],
    says(
        "Do not use the machine of a removed node again. `auto`: after a hardware fault, after repeated faults, "
        "or on request."
    ),
]
"""Option of every policy that removes nodes from the world."""


class Isolating(Blame, Protocol):
    """Options that say whether the machine of a removed node may be used again."""

    isolate: Literal["auto", "always", "never"]


class ReplacementOptions(RoundOptions):
    """Options of a policy that replaces nodes: for ``judge``, and for the new round."""

    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 3
    isolate: Isolate = "auto"
    max_replacements: Annotated[int, number("Replacements allowed in `window`.", maximum=1000)] = 20
    per_node: Annotated[
        int,
        number("Replacements of one node allowed in `window`.", minimum=1),
    ] = 3
    window: Annotated[float, span("The time over which replacements are counted.", minimum=1)] = 86400.0
    cool_down: Annotated[float, span("Minimum time between two replacements.")] = 0.0
    correlated_nodes: Annotated[
        int,
        number(
            "Replace nothing if more nodes than this are at fault within `correlated_window`, or at least two that are "
            "more than half of the world: the cause is likely shared.",
            minimum=1,
        ),
    ] = 3
    correlated_window: Annotated[float, span("Faults within this time count as simultaneous.")] = 60.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        never_reached("per_node", "max_replacements"),
        takes_nothing("max_replacements", "max_replacements: 0"),
    )


@attrs.frozen(kw_only=True)
class ReplacementAssessment:
    """Which nodes to replace, or why none.

    Args:
        lost: nodes to replace whose agents are lost.
        unfit: nodes to replace that are alive.
        isolate: whether their machines must not be used again.
        why_not: why nothing is replaced; empty if something is.
    """

    lost: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    isolate: bool = False
    why_not: str = ""


def judge(incident: IncidentState, job: JobState, policy: str, options: ReplacementOptions) -> ReplacementAssessment:
    """Find the nodes to replace in an incident.

    Args:
        incident: the open incident.
        job: the folded state.
        policy: name of the policy whose attempts are counted.
        options: the policy's options.
    """
    requested = requested_node(incident, job)
    if requested:
        if not is_member(job, requested):
            return ReplacementAssessment(why_not=f"{requested} is not a member of the world: nothing to replace")
        return ReplacementAssessment(
            unfit=(requested,), isolate=incident.fault.detail == "evict" and options.isolate != "never"
        )
    if incident.kind != "fault":
        return ReplacementAssessment(why_not="no node needs a replacement")
    lost, bad = lost_nodes(incident, job), unfit(incident, job, options)
    if not lost and not bad:
        return ReplacementAssessment(why_not="no node is lost, and the fault is not a node's")
    why_not = _held(incident, job, options) or _spent(job, policy, (*bad, *lost), options)
    if why_not:
        return ReplacementAssessment(why_not=why_not)
    return ReplacementAssessment(lost=lost, unfit=bad, isolate=isolates(incident, job, options))


def _held(incident: IncidentState, job: JobState, options: ReplacementOptions) -> str:
    """Why nothing is replaced because too many nodes failed at once; empty if only few did."""
    hit = nodes_hit(incident, job, options.correlated_window)
    world = members(job)
    if len(hit) > options.correlated_nodes or (len(hit) > 1 and 2 * len(hit) > world > 0):
        window = format_duration(options.correlated_window)
        return (
            f"held: {len(hit)} nodes were at fault within {window} ({listed(hit)}); they likely share a cause that new "
            "nodes would not remove: check network, storage and power"
        )
    return ""


def _spent(job: JobState, policy: str, nodes: tuple[str, ...], options: ReplacementOptions) -> str:
    why = spent(job, policy, options.max_replacements, options.window, "replacements")
    if why:
        return why
    for node in nodes:
        made = charged(job, policy, node, options.window)
        if made >= options.per_node:
            times = f"{plural(made, 'time')} in {format_duration(options.window)}"
            return f"per-node limit reached: {node} was replaced {times} and still fails"
    rest = cooling_s(job, policy, options.cool_down)
    return f"cool-down: the next replacement is possible in {format_duration(round(rest))}" if rest > 0 else ""


def isolates(incident: IncidentState, job: JobState, options: Isolating) -> bool:
    """Whether the machine of the node at fault must not be used again, by the option and the evidence."""
    if options.isolate != "auto":
        return bool(options.isolate == "always")
    root = root_report(incident, job)
    return bool(
        (culprit(incident) and incident.fault.cls in options.classes)
        or (root is not None and root.source == "health")
        or is_cut(incident.fault)
        or keeps_failing(incident, job, options.node_faults, options.window)
    )
