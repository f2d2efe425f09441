"""The protocol between the agent and its checking processes: one JSON object per line."""

from typing import Any, Final

import attrs
import msgspec

from ftcore.faults.scan import Hit
from ftcore.runtime.wire.frames import Gauge

GROUP = "ftcore.checks"
"""Entry point group of external checks."""
INSIDE_FD: Final = 3
"""Descriptor of the unnamed file that serves as the store of the devices of one node."""

MATMUL: Final = "matmul"
COPIES: Final = "device-bandwidth"
ALL_TO_ALL: Final = "all-to-all"
EXCHANGE: Final = "exchange"
ALL_REDUCE: Final = "all-reduce"
DEVICES: Final = "devices"
"""Name of the reports about devices while the node trains."""
NIC_TO_NIC: Final = "nic-to-nic"


@attrs.frozen(kw_only=True)
class DeviceSpec:
    """The spec of a device's process.

    Args:
        agent: process id of the agent; the process ends with it.
        device: index of the device on the node.
        devices: number of checked devices of this node.
        node: the node's name.
        group: the nodes that exchange data, including this one; empty: none.
        label: the group's common label; the group does an all-reduce. Empty: the group is a pair.
        store: ``host:port`` of the group's store.
        prefix: prefix of the group's keys in the store.
        within_s: timeout of the exchange in seconds, including connecting.
        address: address of this node for other nodes.
        first: whether this is the first stage of a check, which includes the parts that need no other node.
        inside_s: timeout of each exchange among the devices of this node, in seconds.
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
    """Arguments of a check of the host.

    Args:
        node: the node's name.
        devices: number of accelerators of the node.
        log_dir: directory of the job's worker logs.
        address: address of this node for other nodes.
    """

    node: str
    devices: int
    log_dir: str
    address: str = ""


@attrs.frozen(kw_only=True)
class HostSpec:
    """The spec of the host's process.

    Args:
        agent: process id of the agent; the process ends with it.
        names: the checks, in order.
        context: the argument of each check.
    """

    agent: int
    names: tuple[str, ...]
    context: Context


@attrs.frozen(kw_only=True)
class WatchSpec:
    """The spec of the process that watches the devices.

    Args:
        agent: process id of the agent; the process ends with it.
    """

    agent: int


@attrs.frozen(kw_only=True)
class CheckReport:
    """One line of a checking process; fields that do not apply are empty.

    Args:
        begun: the check that begins now.
        budget_s: timeout of that check in seconds.
        name: the check that has ended.
        verdict: see ``CheckResult``; ``wrong``: a device computed wrong values.
        detail: the finding.
        values: measured values.
        facts: values that should be equal on all nodes.
        seconds: duration of the calculation or the exchange; for ``nic-to-nic``: per gigabyte.
        gauges: readings of the watched devices.
        hits: matched lines of the kernel log about devices since the last report.
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


def line(message: Any) -> bytes:
    """A message as one line."""
    return msgspec.json.encode(message) + b"\n"


def exchange_of(label: str) -> str:
    """The name of the exchange among the nodes of a group."""
    return ALL_REDUCE if label else EXCHANGE


def text(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
