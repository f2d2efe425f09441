"""A health check in progress: the nodes asked, and their findings so far. Data alone.

``policies/health.py`` judges the findings. ``wanted`` is in this module because the fold needs it when a node joins.
"""

from typing import TypeAlias

import attrs

MODES = ("auto", "always", "suspect", "never")
"""Values of a policy file for health checks; ``auto``: ``suspect`` on nodes with accelerators, else ``never``."""

Group: TypeAlias = tuple[str, ...]

CLOCK_S = 5.0
"""Seconds; a smaller clock offset cannot be distinguished from network delay."""

NAMES_KEPT = 4
"""Names of nodes kept for each value of the configuration."""


def wanted(mode: str, accelerators: int) -> bool:
    """Whether the policy file lets a node be checked.

    Args:
        mode: one of ``MODES``.
        accelerators: how many the node has.
    """
    return mode in ("always", "suspect") or (mode == "auto" and accelerators > 0)


def clock_off_s(wall: int, ordered: int, taken_in: int, took_s: float) -> float:
    """Least offset of a node's clock from the master's, in seconds; positive: ahead; 0: no offset can be shown.

    A check begins after its order and ends before its answer is recorded, whatever the network delay. So only a clock
    that shows a time outside of this interval is proven wrong.

    Args:
        wall: the node's clock at the end of the check, in nanoseconds.
        ordered: the master's time when the check was ordered, in nanoseconds.
        taken_in: the master's time when the answer arrived, in nanoseconds.
        took_s: seconds that the check took, by the node's monotonic clock.
    """
    ahead_s, behind_s = (wall - taken_in) / 1e9, (ordered - wall) / 1e9 + took_s
    return ahead_s if ahead_s > CLOCK_S else -behind_s if behind_s > CLOCK_S else 0.0


@attrs.frozen(kw_only=True)
class StageFinding:
    """What one node found in one stage.

    Args:
        verdict: of the node alone: ``healthy``; ``faulty``: it computed wrong values or reported a defect; ``failed``:
            its check crashed or hung; ``unavailable``: it could not be checked.
        exchange: of the exchange with its group: ``passed``, ``failed``, ``unavailable``; empty: no exchange.
        detail: the finding as text.
        device_s: seconds that its slowest device took; 0: not measured.
        exchange_s: seconds that the exchange took; 0: not measured.
        link_s: seconds for 1 GB over TCP from its neighbour in the group; 0: not measured.
    """

    verdict: str = "healthy"
    exchange: str = ""
    detail: str = ""
    device_s: float = 0.0
    exchange_s: float = 0.0
    link_s: float = 0.0


@attrs.frozen(kw_only=True)
class Stage:
    """One stage of a check: a grouping of the nodes, and their findings.

    Args:
        groups: nodes that exchange data with each other.
        label: the label whose value the nodes of a group share; empty: the groups are pairs.
        readings: findings by node; a node that left during the check has none.
    """

    groups: tuple[Group, ...]
    label: str = ""
    readings: dict[str, StageFinding] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Share:
    """Nodes with the same value of a configuration key.

    Args:
        count: number of nodes.
        names: names of the first ``NAMES_KEPT``.
    """

    count: int = 0
    names: list[str] = attrs.field(factory=list)


@attrs.define(kw_only=True)
class HealthState:
    """The check in progress.

    Args:
        round: the next round, which waits for the check.
        effect: the order that nodes have not all answered.
        lives: incarnation of each node that was asked.
        stages: the stages so far; the last one is in progress.
        facts: by configuration key and value, the nodes with it; a key should have one value on all nodes.
        clocks: by node, the least offset of its clock, see ``clock_off_s``; only offsets above ``CLOCK_S``.
    """

    round: int
    effect: str
    lives: dict[str, str]
    stages: list[Stage] = attrs.field(factory=list)
    facts: dict[str, dict[str, Share]] = attrs.field(factory=dict)
    clocks: dict[str, float] = attrs.field(factory=dict)
