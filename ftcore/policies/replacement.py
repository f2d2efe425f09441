"""Whether nodes should be replaced, and which: the judgement behind a policy that replaces.

It stands apart from the policy because a policy above it in the chain, which would rather not restart on a bad node,
asks whether anything below would do better.

Many nodes that fail at once are not many bad nodes: a switch, a file system or a driver is. To replace them all would
cost the healthy ones, and bring the same fault on the next ones; so replacements are held and people are told.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Option
from ftcore.policies.budget import charged, cooling_s, spent
from ftcore.policies.situation import (
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

ISOLATE = Option(
    default="auto",
    kind="choice",
    choices=("auto", "always", "never"),
    doc="Keep a replaced machine from being chosen again; `auto`: for a fault of the machine, faults that come "
    "back to it, or on request.",
)
"""Option of every policy that leaves nodes out."""

OPTIONS: Mapping[str, Option] = {
    "classes": Option(
        default=("gpu-hw",),
        kind="texts",
        choices=tuple(FaultClass),
        doc="Classes of faults for which the node is replaced.",
    ),
    "node_faults": Option(
        default=3,
        kind="int",
        doc="A node that was the culprit this often in `window`, and more often than all others together, is replaced "
        "whatever the class; 0: never.",
    ),
    "isolate": ISOLATE,
    "max_replacements": Option(default=20, kind="int", maximum=1000, doc="Replacements allowed in `window`."),
    "per_node": Option(
        default=3,
        kind="int",
        minimum=1,
        doc="Replacements of one node in `window`; a place that fails on is not cured by another one.",
    ),
    "window": Option(default=86400, kind="duration", minimum=1, doc="The time over which is counted."),
    "cool_down": Option(default=0, kind="duration", doc="Time after a replacement in which no other is made."),
    "correlated_nodes": Option(
        default=3,
        kind="int",
        minimum=1,
        doc="More nodes at fault at once are not replaced; nor are two and more that are most of the world.",
    ),
    "correlated_window": Option(default=60, kind="duration", doc="What `at once` means."),
}
"""Options of the judgement; the policy adds those of its plan."""


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


def judge(incident: IncidentState, job: JobState, policy: str, options: Mapping[str, Any]) -> Judgement:
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
        return Judgement(out=(wished,), isolate=incident.fault.detail == "evict" and options["isolate"] != "never")
    if incident.kind != "fault":
        return Judgement(why_not="no node is to be replaced")
    lost, out = gone(incident, job), unfit(incident, job, options)
    if not lost and not out:
        return Judgement(why_not="no node is gone, and the fault is not of a node")
    why_not = _held(incident, job, options) or _spent(job, policy, (*out, *lost), options)
    if why_not:
        return Judgement(why_not=why_not)
    return Judgement(gone=lost, out=out, isolate=isolates(incident, job, options))


def _held(incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> str:
    """Why so many nodes at once are not replaced; empty if they are few."""
    hit = hit_at_once(incident, job, options["correlated_window"])
    world = members(job)
    if len(hit) > options["correlated_nodes"] or (len(hit) > 1 and 2 * len(hit) > world > 0):
        window = format_duration(options["correlated_window"])
        return (
            f"held: {len(hit)} nodes were at fault within {window} ({listed(hit)}); so many at once have a cause in "
            "common, which no replacement removes: look at the network, storage and power"
        )
    return ""


def _spent(job: JobState, policy: str, nodes: tuple[str, ...], options: Mapping[str, Any]) -> str:
    why = spent(job, policy, options["max_replacements"], options["window"], "replacements")
    if why:
        return why
    for node in nodes:
        made = charged(job, policy, node, options["window"])
        if made >= options["per_node"]:
            times = f"{plural(made, 'time')} in {format_duration(options['window'])}"
            return f"{node} was replaced {times} and fails on: its place is at fault"
    rest = cooling_s(job, policy, options["cool_down"])
    return f"a replacement was made lately; the next is due in {format_duration(round(rest))}" if rest > 0 else ""


def isolates(incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> bool:
    """Whether the culprit's machine must not be chosen again, by the option and the evidence."""
    if options["isolate"] != "auto":
        return bool(options["isolate"] == "always")
    root = root_report(incident, job)
    return bool(
        (culprit(incident) and incident.fault.cls in options["classes"])
        or (root is not None and root.source == "health")
        or is_cut(incident.fault)
        or keeps_failing(incident, job, options["node_faults"], options["window"])
    )
