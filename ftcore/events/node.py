"""Events of nodes: one agent incarnation each."""

import attrs

from ftcore.events.registry import fact


@fact("node.joined")
@attrs.frozen(kw_only=True)
class NodeJoined:
    """An agent asked to take part.

    An incarnation that joins under the name of a living older one replaces it: the older one is dead or fenced.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        slots: workers that it runs.
        host: its host's name.
        pid: the agent's process id.
        address: host name or address at which other nodes reach this one.
        ordinal: the place asked for (``--node-rank``), or None to be given one.
        version: the agent's ftcore.
    """

    node: str
    incarnation: str
    slots: int
    host: str
    pid: int
    address: str
    version: str
    ordinal: int | None = None


@fact("node.left")
@attrs.frozen(kw_only=True)
class NodeLeft:
    """An agent said goodbye, its workers stopped.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        reason: why, in a few words.
    """

    node: str
    incarnation: str
    reason: str


@fact("node.lost")
@attrs.frozen(kw_only=True)
class NodeLost:
    """Nothing was heard of a node for its lease, or its platform says that it is gone.

    Args:
        node: the node's name.
        incarnation: the life that is over.
        reason: how it was noticed.
        step: the last step that its heartbeats told, if any.
        absolute: that step counts from the start of the training.
    """

    node: str
    incarnation: str
    reason: str
    step: int | None = None
    absolute: bool = False
