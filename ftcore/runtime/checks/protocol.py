"""What the agent and its checking processes tell each other: JSON, one object to a line."""

from typing import Any, Final

import attrs
import msgspec

from ftcore.faults.scan import Hit
from ftcore.runtime.wire.frames import Gauge

GROUP = "ftcore.checks"
"""Entry point group of checks that are not ftcore's own."""
INSIDE_FD: Final = 3
"""Descriptor of the file at which the devices of a node meet; it has no name, and goes with the processes."""

MATMUL: Final = "matmul"
COPIES: Final = "device-bandwidth"
ALL_TO_ALL: Final = "all-to-all"
EXCHANGE: Final = "exchange"
ALL_REDUCE: Final = "all-reduce"
DEVICES: Final = "devices"
"""The name under which a node's devices are watched while it trains."""
NIC_TO_NIC: Final = "nic-to-nic"


@attrs.frozen(kw_only=True)
class DeviceSpec:
    """What a device's process is to do.

    Args:
        agent: process id of the agent; the process dies with it.
        device: index of the device on the node.
        devices: devices that are checked on this node.
        node: the node's name.
        group: the nodes that exchange data, this one among them; empty: none.
        label: the label that they have in common: they sum data up, all at once; empty: they are a pair.
        store: ``host:port`` of the store at which they meet.
        prefix: of all keys there.
        within_s: seconds that the exchange may take, connecting included.
        address: at which other nodes reach this one.
        first: the first stage of a check: also what does not change from one stage to the next.
        inside_s: seconds that they wait for each other, and that one exchange among them may take.
    """

    agent: int
    device: int
    devices: int
    node: str
    group: tuple[str, ...] = ()
    label: str = ""
    store: str = ""
    prefix: str = ""
    within_s: float = 30.0
    address: str = ""
    first: bool = True
    inside_s: float = 10.0


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
class WatchSpec:
    """What the process that watches the devices is to do.

    Args:
        agent: process id of the agent; the process dies with it.
    """

    agent: int


@attrs.frozen(kw_only=True)
class Said:
    """One line of a checking process; what it does not say is empty.

    Args:
        begun: the check that is made now.
        budget_s: seconds that it may take.
        name: the check that has ended.
        verdict: see ``CheckResult``; ``wrong``: a device's values were.
        detail: what was found.
        values: its figures.
        facts: what should be equal on all nodes.
        seconds: how long the calculation or the exchange took; of ``nic-to-nic``: a gigabyte.
        gauges: of the devices that are watched.
        hits: what the kernel said of devices since the last time.
    """

    begun: str = ""
    budget_s: float = 0.0
    name: str = ""
    verdict: str = ""
    detail: str = ""
    values: dict[str, float] = attrs.field(factory=dict)
    facts: dict[str, str] = attrs.field(factory=dict)
    seconds: float = 0.0
    gauges: dict[str, Gauge] = attrs.field(factory=dict)
    hits: tuple[Hit, ...] = ()


def line(said: Any) -> bytes:
    """One line of the wire."""
    return msgspec.json.encode(said) + b"\n"


def exchange_of(label: str) -> str:
    """The name of the exchange that is made among the nodes of a group."""
    return ALL_REDUCE if label else EXCHANGE


def text(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
