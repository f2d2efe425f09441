"""Events of nodes: one agent incarnation each."""

import attrs

from ftcore.events.registry import decision, fact

LOST = "lost"
"""Kind of the report of a ``node.left`` that the node did not choose."""


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
        labels: what it says of where it stands, as ``{"switch": "s1"}`` (``--node-labels``).
        accelerators: devices that it has for training, beside its processors.
        checks: the agent can check devices and links.
        role: role of its workers, where nodes may differ in it (``JobSpec.own_commands``).
        command: what it runs, where nodes may differ in it.
        warms: its workers cannot be forked yet: ``node.warmed`` tells when they can.
    """

    node: str
    incarnation: str
    slots: int
    host: str
    pid: int
    address: str
    version: str
    ordinal: int | None = None
    labels: dict[str, str] = attrs.field(factory=dict)
    accelerators: int = 0
    checks: bool = False
    role: str = ""
    command: tuple[str, ...] = ()
    warms: bool = False


@fact("node.warmed")
@attrs.frozen(kw_only=True)
class NodeWarmed:
    """A node that stands by can start its workers at once: its warm process has imported what they need.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
    """

    node: str
    incarnation: str


@fact("node.left")
@attrs.frozen(kw_only=True)
class NodeLeft:
    """An agent said goodbye, its workers stopped.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        reason: why, in a few words.
        lost: the launcher of its workers died: the node did not choose to leave.
    """

    node: str
    incarnation: str
    reason: str
    lost: bool = False


@fact("node.gave_up")
@attrs.frozen(kw_only=True)
class NodeGaveUp:
    """The launcher of a node's workers, one that is not ftcore's, starts no more of them and wants the run to end.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        exit_code: what the launcher exits with.
        reason: why.
    """

    node: str
    incarnation: str
    exit_code: int
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


@attrs.frozen(kw_only=True)
class CheckResult:
    """What came of one of a node's checks.

    Args:
        name: the check.
        verdict: ``passed``; ``failed``: the node must not train; ``warned``: somebody should look at it;
            ``unavailable``: it could not be made.
        detail: what was found, or why it could not be made.
        values: its figures, by name with unit.
    """

    name: str
    verdict: str
    detail: str = ""
    values: dict[str, float] = attrs.field(factory=dict)


@fact("health.checked")
@attrs.frozen(kw_only=True)
class HealthChecked:
    """A node answered the order to check itself.

    Args:
        node: the node's name.
        incarnation: this life of its agent.
        effect: the order.
        verdict: of the node by itself: ``healthy``; ``faulty``: it computed wrong values or says itself that it is
            broken; ``failed``: the check crashed or hung; ``unavailable``: it could not be checked.
        detail: what was found.
        exchange: of the exchange with its group: ``passed``, ``failed``, ``unavailable``, or empty: there was none.
        device_s: seconds that its slowest device took for the calculation; 0: not measured.
        exchange_s: seconds that the exchange took; 0: not measured.
        results: each check that was made or should have been.
        facts: what should be equal on all nodes, by name.
        link_s: seconds that a gigabyte took over TCP from the node before it in its group; 0: not measured.
        took_s: seconds that the check took; what was ordered and what the node's clock said then are so far apart.
    """

    node: str
    incarnation: str
    effect: str
    verdict: str
    detail: str = ""
    exchange: str = ""
    device_s: float = 0.0
    exchange_s: float = 0.0
    results: tuple[CheckResult, ...] = ()
    facts: dict[str, str] = attrs.field(factory=dict)
    link_s: float = 0.0
    took_s: float = 0.0


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
