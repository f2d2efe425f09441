"""Events of nodes: one agent incarnation each."""

import attrs

from ftcore.events.registry import decision, fact


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


@decision("node.quarantined")
@attrs.frozen(kw_only=True)
class NodeQuarantined:
    """A node takes part in no round any more, in no incarnation, until an operator lets it.

    Args:
        node: the node's name.
        reason: why.
    """

    node: str
    reason: str


@fact("health.checked")
@attrs.frozen(kw_only=True)
class HealthChecked:
    """A node answered the order to check itself.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        effect: the order.
        verdict: ``healthy``, ``slow`` or ``faulty``.
        detail: what was found.
    """

    node: str
    incarnation: str
    effect: str
    verdict: str
    detail: str = ""


@fact("order.obeyed")
@attrs.frozen(kw_only=True)
class OrderObeyed:
    """A node carried out an order that leaves its processes in place.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        round: the round of its workers.
        effect: the order.
        step: the last step that its workers had completed then, if known.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    step: int | None = None


@fact("order.refused")
@attrs.frozen(kw_only=True)
class OrderRefused:
    """A node cannot carry out an order.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        round: the round of its workers.
        effect: the order.
        reason: why, for people.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    reason: str


@fact("platform.answered")
@attrs.frozen(kw_only=True)
class PlatformAnswered:
    """The platform took or declined an order; the nodes that it launched join by themselves.

    Args:
        effect: the order.
        ok: it was taken.
        reason: why not.
    """

    effect: str
    ok: bool
    reason: str = ""
