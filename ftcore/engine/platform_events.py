"""Convert a platform's report about a node into a fact about an incarnation. Pure.

Platforms report late, repeatedly and in any order: a report may be about an earlier node of the same name.
"""

from ftcore.events.node import NodeLost
from ftcore.events.worker import FaultObserved
from ftcore.policies.external import one_line
from ftcore.ports import NodeEnded, NodeWarned
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended


def fact_from(state: JobState, report: NodeEnded | NodeWarned) -> NodeLost | FaultObserved | None:
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
    if state.rounds.world is None or has_ended(state):
        return None
    return FaultObserved(
        node=node.node,
        incarnation=node.incarnation,
        round=state.rounds.world.round,
        source="platform",
        kind="preemption-notice",
        message=one_line(report.reason, 500),
        values={"within_s": report.within_s},
    )
