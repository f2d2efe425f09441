"""Convert a platform's report about a node into a fact about an incarnation. Pure.

Platforms report late, repeatedly and in any order: a report may be about an earlier node of the same name.
"""

from typing import TypeAlias

from ftcore.engine.dispatch import newest_round
from ftcore.events.node import NodeLost
from ftcore.events.worker import MAINTENANCE, DisruptionEnded, FaultObserved
from ftcore.policies.external import one_line
from ftcore.ports import MaintenanceAnnounced, MaintenanceOver, NodeEnded, NodeWarned
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended

NodeReport: TypeAlias = NodeEnded | NodeWarned | MaintenanceAnnounced | MaintenanceOver


def fact_from(state: JobState, report: NodeReport) -> NodeLost | FaultObserved | DisruptionEnded | None:
    """The fact that follows from a platform's report; None if it is not about a current member.

    Args:
        state: the folded state.
        report: the platform's report.
    """
    node = state.membership.nodes.get(report.node)
    if node is None or not node.alive:
        return None
    # Without a pid, a repeated report may be about an earlier node of the same name.
    if report.pid != node.pid and (report.pid or node.again):
        return None
    if isinstance(report, NodeEnded):
        reason = f"{one_line(report.reason, 300)}, reported by the platform"
        return NodeLost(node=node.node, incarnation=node.incarnation, reason=reason)
    if has_ended(state) or (state.rounds.world is None and isinstance(report, NodeWarned)):
        return None
    lasts = any((each.kind, each.node) == (MAINTENANCE, node.node) for each in state.evidence.disruptions.values())
    reason = one_line(report.reason, 500)
    if isinstance(report, MaintenanceOver):
        ended = DisruptionEnded(node=node.node, incarnation=node.incarnation, kind=MAINTENANCE, message=reason)
        return ended if lasts else None
    if isinstance(report, MaintenanceAnnounced) and lasts:
        return None
    return FaultObserved(
        node=node.node,
        incarnation=node.incarnation,
        round=newest_round(state),
        source="platform",
        kind="preemption-notice" if isinstance(report, NodeWarned) else MAINTENANCE,
        message=reason,
        values={"within_s": report.within_s},
    )
