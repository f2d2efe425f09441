"""What a platform tells of a node, as a fact about the life that it is told of. Pure.

A platform tells late, more than once, and in any order: what it says may be meant for who had the name before.
"""

from ftcore.events.node import NodeLost
from ftcore.events.worker import FaultObserved
from ftcore.policies.external import one_line
from ftcore.ports import NodeEnded, NodeWarned
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended


def told_of(state: JobState, happening: NodeEnded | NodeWarned) -> NodeLost | FaultObserved | None:
    """The fact that follows from what a platform tells; None: it is about nobody who takes part.

    Args:
        state: the folded state.
        happening: what it tells.
    """
    node = state.nodes.get(happening.node)
    if node is None or not node.alive:
        return None
    # Platforms repeat themselves: without a pid, what is told of a name may be meant for who had it before.
    if happening.pid != node.pid and (happening.pid or node.again):
        return None
    if isinstance(happening, NodeEnded):
        told = f"{one_line(happening.reason, 300)}, its platform says"
        return NodeLost(node=node.node, incarnation=node.incarnation, reason=told)
    if state.world is None or has_ended(state):
        return None
    return FaultObserved(
        node=node.node,
        incarnation=node.incarnation,
        round=state.world.round,
        source="platform",
        kind="preemption-notice",
        message=one_line(happening.reason, 500),
        values={"within_s": happening.within_s},
    )
