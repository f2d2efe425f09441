"""What the agent and its checking processes tell each other: JSON, one object to a line."""

from typing import Any

import attrs
import msgspec

GROUP = "ftcore.checks"
"""Entry point group of checks that are not ftcore's own."""


@attrs.frozen(kw_only=True)
class DeviceSpec:
    """What a device's process is to do.

    Args:
        agent: process id of the agent; the process dies with it.
        device: index of the device on the node.
        devices: devices that are checked on this node.
        node: the node's name.
        group: the nodes that exchange data, this one among them; empty: none.
        store: ``host:port`` of the store at which they meet.
        prefix: of all keys there.
        within_s: seconds that the exchange may take, connecting included.
    """

    agent: int
    device: int
    devices: int
    node: str
    group: tuple[str, ...] = ()
    store: str = ""
    prefix: str = ""
    within_s: float = 30.0


@attrs.frozen(kw_only=True)
class Context:
    """What a check of the host is told.

    Args:
        node: the node's name.
        devices: accelerators of the node.
        log_dir: where the job's workers write.
        address: at which other nodes reach this one.
    """

    node: str
    devices: int
    log_dir: str
    address: str = ""


@attrs.frozen(kw_only=True)
class HostSpec:
    """What the host's process is to do.

    Args:
        agent: process id of the agent; the process dies with it.
        names: the checks, in order.
        context: told to each.
    """

    agent: int
    names: tuple[str, ...]
    context: Context


@attrs.frozen(kw_only=True)
class Said:
    """One line of a checking process; what it does not say is empty.

    Args:
        begun: the check that is made now.
        budget_s: seconds that it may take.
        name: the check that has ended, or ``matmul`` or ``exchange`` of a device.
        verdict: see ``CheckResult``.
        detail: what was found.
        values: its figures.
        facts: what should be equal on all nodes.
        seconds: how long the calculation or the exchange took.
    """

    begun: str = ""
    budget_s: float = 0.0
    name: str = ""
    verdict: str = ""
    detail: str = ""
    values: dict[str, float] = attrs.field(factory=dict)
    facts: dict[str, str] = attrs.field(factory=dict)
    seconds: float = 0.0


def line(said: Any) -> bytes:
    """One line of the wire."""
    return msgspec.json.encode(said) + b"\n"
