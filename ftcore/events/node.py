"""Events of nodes, each about one incarnation of the node's agent."""

import msgspec

from ftcore.events.checkpoint import HeldShard
from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact

LOST = "lost"
"""Kind of the report of a ``node.left`` that was not the node's choice."""


@fact("node.joined")
class NodeJoined(Payload, frozen=True, kw_only=True):
    """An agent registered its node with the job.

    A new incarnation under the name of a registered one replaces it: the older one is dead or fenced.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        slots: number of workers that it runs.
        host: its host's name.
        pid: the agent's process ID.
        address: host name or address at which other nodes reach this one.
        ordinal: the requested place (``--node-rank``); None: any.
        version: the agent's ftcore version.
        labels: the node's labels, for example ``{"switch": "s1"}`` (``--node-labels``).
        accelerators: number of its accelerators.
        checks: the agent can check devices and links.
        role: role of its workers, if nodes may differ in it (``JobSpec.own_commands``).
        command: its command, if nodes may differ in it.
        warms: its workers cannot be forked yet; a ``node.warmed`` follows when they can.
        copies_port: TCP port at which its keeper takes copies of other nodes' shards; 0: it takes none.
        log: the identity of the log of ``shards``; those of another log do not count.
        shards: the complete shards in the memory of the keeper that its predecessor left, as in ``memory.held``. They
            come with this event, because a round may wait for this node alone.
    """

    node: str
    incarnation: str
    slots: int
    host: str
    pid: int
    address: str
    version: str
    ordinal: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    accelerators: int = 0
    checks: bool = False
    role: str = ""
    command: tuple[str, ...] = ()
    warms: bool = False
    copies_port: int = 0
    log: str = ""
    shards: tuple[HeldShard, ...] = ()


@fact("node.warmed")
class NodeWarmed(Payload, frozen=True, kw_only=True):
    """A standby node can start its workers at once: its warm process has imported their modules.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
    """

    node: str
    incarnation: str


@fact("node.left")
class NodeLeft(Payload, frozen=True, kw_only=True):
    """An agent stopped its workers and left the job.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        reason: why, in a few words.
        lost: the launcher of its workers died: leaving was not the node's choice.
    """

    node: str
    incarnation: str
    reason: str
    lost: bool = False


@fact("node.gave_up")
class NodeGaveUp(Payload, frozen=True, kw_only=True):
    """An external launcher of a node's workers starts no more workers and requests the end of the run.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        exit_code: the launcher's exit code.
        reason: why.
    """

    node: str
    incarnation: str
    exit_code: int
    reason: str


@fact("node.lost")
class NodeLost(Payload, frozen=True, kw_only=True):
    """A node's lease expired without a heartbeat, or its platform reports that the node has ended.

    Args:
        node: the node's name.
        incarnation: the agent's last incarnation.
        reason: how it was detected.
        step: the last step in its heartbeats, if any.
        absolute: that step counts from the start of the training.
    """

    node: str
    incarnation: str
    reason: str
    step: int | None = None
    absolute: bool = False


@decision("node.quarantined")
class NodeQuarantined(Payload, frozen=True, kw_only=True):
    """A node, in any incarnation, is excluded from all rounds until an operator admits it.

    Args:
        node: the node's name.
        reason: why.
    """

    node: str
    reason: str


class CheckResult(Payload, frozen=True, kw_only=True):
    """The result of one of a node's checks.

    Args:
        name: the check.
        verdict: ``passed``; ``failed``: the node must not train; ``warned``: an operator should look at it;
            ``unavailable``: it could not be run.
        detail: what was found, or why it could not be run.
        values: its measurements; names include the unit.
    """

    name: str
    verdict: str
    detail: str = ""
    values: dict[str, float] = msgspec.field(default_factory=dict)


@fact("health.checked")
class HealthChecked(Payload, frozen=True, kw_only=True):
    """A node's answer to an order to check its health.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        effect: the order.
        verdict: of the node alone: ``healthy``; ``faulty``: it computed wrong values or reports a hardware failure;
            ``failed``: the check crashed or hung; ``unavailable``: it could not be checked.
        detail: what was found.
        exchange: of the data exchange with its group: ``passed``, ``failed``, ``unavailable``, or empty: none was made.
        device_s: seconds that its slowest device took for the calculation; 0: not measured.
        exchange_s: seconds that the exchange took; 0: not measured.
        results: every check that was run or requested.
        facts: settings that should be equal on all nodes, by name.
        link_s: seconds for a gigabyte over TCP from the node before it in its group; 0: not measured.
        took_s: seconds that the check took, by the node's monotonic clock.
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
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    link_s: float = 0.0
    took_s: float = 0.0


@fact("order.obeyed")
class OrderObeyed(Payload, frozen=True, kw_only=True):
    """A node carried out an order that leaves its processes in place.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        round: the round of its workers.
        effect: the order.
        step: the last step that its workers had completed by then, if known.
        boundary: the step boundary at which its workers stop, counted from the start of the round; 0: none.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    step: int | None = None
    boundary: int = 0


@fact("order.refused")
class OrderRefused(Payload, frozen=True, kw_only=True):
    """A node cannot carry out an order.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        round: the round of its workers.
        effect: the order.
        reason: why.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    reason: str


@fact("platform.answered")
class PlatformAnswered(Payload, frozen=True, kw_only=True):
    """The platform accepted or refused an order; launched nodes register on their own.

    Args:
        effect: the order.
        ok: the order was accepted.
        reason: why it was refused.
    """

    effect: str
    ok: bool
    reason: str = ""
