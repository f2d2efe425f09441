"""Whether nodes should be replaced, and which: the judgement behind a policy that replaces.

It stands apart from the policy because a policy above it in the chain, which would rather not restart on a bad node,
asks whether anything below would do better.

Many nodes that fail at once are not many bad nodes: a switch, a file system or a driver is. To replace them all would
cost the healthy ones, and bring the same fault on the next ones; so replacements are held and people are told.
"""

from typing import Annotated, ClassVar, Literal, Protocol

import attrs

from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.budget import RoundOptions, charged, cooling_s, spent
from ftcore.policies.options import Rule, never_reached, number, says, span, takes_nothing
from ftcore.policies.situation import (
    Blame,
    Classes,
    NodeFaults,
    culprit,
    gone,
    hit_at_once,
    is_member,
    keeps_failing,
    members,
    root_report,
    unfit,
    wished_node,
)
from ftcore.states.faultkey import is_cut
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed, plural

Isolate = Annotated[
    Literal["auto", "always", "never"],
    says(
        "Keep a replaced machine from being chosen again; `auto`: for a fault of the machine, faults that come back to "
        "it, or on request."
    ),
]
"""Option of every policy that leaves nodes out."""


class Isolating(Blame, Protocol):
    """Options that say whether the machine of a node that is left out may be chosen again."""

    isolate: Literal["auto", "always", "never"]


class ReplacementOptions(RoundOptions):
    """Options of a policy that replaces: those of the judgement, and of the new round."""

    classes: Classes = (FaultClass.GPU_HW,)
    node_faults: NodeFaults = 3
    isolate: Isolate = "auto"
    max_replacements: Annotated[int, number("Replacements allowed in `window`.", maximum=1000)] = 20
    per_node: Annotated[
        int,
        number("Replacements of one node in `window`; a place that fails on is not cured by another one.", minimum=1),
    ] = 3
    window: Annotated[float, span("The time over which is counted.", minimum=1)] = 86400.0
    cool_down: Annotated[float, span("Time after a replacement in which no other is made.")] = 0.0
    correlated_nodes: Annotated[
        int,
        number(
            "More nodes at fault at once are not replaced; nor are two and more that are most of the world.", minimum=1
        ),
    ] = 3
    correlated_window: Annotated[float, span("What `at once` means.")] = 60.0

    rules: ClassVar[tuple[Rule, ...]] = (
        never_reached("per_node", "max_replacements"),
        takes_nothing("max_replacements", "max_replacements: 0"),
    )


@attrs.frozen(kw_only=True)
class Judgement:
    """What is to be replaced, or why nothing is.

    Args:
        gone: nodes to replace that are gone by themselves.
        out: nodes to replace that live and have to leave.
        isolate: whether their machines must not be chosen again.
        why_not: why nothing is replaced; empty if something is.
    """

    gone: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    isolate: bool = False
    why_not: str = ""


def judge(incident: IncidentState, job: JobState, policy: str, options: ReplacementOptions) -> Judgement:
    """Find the nodes that should be replaced in an incident.

    Args:
        incident: the open incident.
        job: the folded state.
        policy: under whose name attempts are counted.
        options: every one of ``OPTIONS`` with its value.
    """
    wished = wished_node(incident, job)
    if wished:
        if not is_member(job, wished):
            return Judgement(why_not=f"{wished} is no member of the world: there is nothing to replace")
        return Judgement(out=(wished,), isolate=incident.fault.detail == "evict" and options.isolate != "never")
    if incident.kind != "fault":
        return Judgement(why_not="no node is to be replaced")
    lost, out = gone(incident, job), unfit(incident, job, options)
    if not lost and not out:
        return Judgement(why_not="no node is gone, and the fault is not of a node")
    why_not = _held(incident, job, options) or _spent(job, policy, (*out, *lost), options)
    if why_not:
        return Judgement(why_not=why_not)
    return Judgement(gone=lost, out=out, isolate=isolates(incident, job, options))


def _held(incident: IncidentState, job: JobState, options: ReplacementOptions) -> str:
    """Why so many nodes at once are not replaced; empty if they are few."""
    hit = hit_at_once(incident, job, options.correlated_window)
    world = members(job)
    if len(hit) > options.correlated_nodes or (len(hit) > 1 and 2 * len(hit) > world > 0):
        window = format_duration(options.correlated_window)
        return (
            f"held: {len(hit)} nodes were at fault within {window} ({listed(hit)}); so many at once have a cause in "
            "common, which no replacement removes: look at the network, storage and power"
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
            return f"{node} was replaced {times} and fails on: its place is at fault"
    rest = cooling_s(job, policy, options.cool_down)
    return f"a replacement was made lately; the next is due in {format_duration(round(rest))}" if rest > 0 else ""


def isolates(incident: IncidentState, job: JobState, options: Isolating) -> bool:
    """Whether the culprit's machine must not be chosen again, by the option and the evidence."""
    if options.isolate != "auto":
        return bool(options.isolate == "always")
    root = root_report(incident, job)
    return bool(
        (culprit(incident) and incident.fault.cls in options.classes)
        or (root is not None and root.source == "health")
        or is_cut(incident.fault)
        or keeps_failing(incident, job, options.node_faults, options.window)
    )
