"""A health check under way: what was asked of whom, and what was found so far. Data alone.

What it all means is judged in ``policies/health.py``; whether a node is to be checked at all is said here, because the
fold has to know it when a node joins.
"""

from typing import TypeAlias

import attrs

MODES = ("auto", "always", "suspect", "never")
"""What a policy file may say of health checks; ``auto`` is ``suspect`` on nodes with accelerators, else ``never``."""

Group: TypeAlias = tuple[str, ...]

CLOCK_S = 5.0
"""A clock that is off by less is not told from a slow wire."""

NAMES_KEPT = 4
"""Names of nodes kept for each value of the configuration."""


def wanted(mode: str, accelerators: int) -> bool:
    """Whether a node is to be checked at all.

    Args:
        mode: one of ``MODES``.
        accelerators: how many the node has.
    """
    return mode in ("always", "suspect") or (mode == "auto" and accelerators > 0)


def clock_off_s(wall: int, ordered: int, taken_in: int, took_s: float) -> float:
    """Seconds that a node's clock is ahead of the master's, at least; 0: it may be right.

    A check begins after it was ordered and ends before its answer is taken in, however long order and answer are under
    way: a clock is only off if it shows a time that is outside of that.

    Args:
        wall: what the node's clock showed when the check was over; nanoseconds, as are the next two.
        ordered: the master's time when the check was ordered.
        taken_in: the master's time when the answer came.
        took_s: seconds that the check took, by the node's monotonic clock.
    """
    ahead_s, behind_s = (wall - taken_in) / 1e9, (ordered - wall) / 1e9 + took_s
    return ahead_s if ahead_s > CLOCK_S else -behind_s if behind_s > CLOCK_S else 0.0


@attrs.frozen(kw_only=True)
class Reading:
    """What one node found in one stage.

    Args:
        verdict: of the node by itself: ``healthy``; ``faulty``: it computed wrong values or says itself that it is
            broken; ``failed``: its check crashed or hung; ``unavailable``: it could not be checked.
        exchange: of the exchange with its group: ``passed``, ``failed``, ``unavailable``, or empty: there was none.
        detail: what was found.
        device_s: seconds that its slowest device took; 0: not measured.
        exchange_s: seconds that the exchange took; 0: not measured.
        link_s: seconds that a gigabyte took over TCP from its neighbour in the group; 0: not measured.
    """

    verdict: str = "healthy"
    exchange: str = ""
    detail: str = ""
    device_s: float = 0.0
    exchange_s: float = 0.0
    link_s: float = 0.0


@attrs.frozen(kw_only=True)
class Stage:
    """One grouping and what came of it.

    Args:
        groups: who exchanges data with whom.
        label: the label that the nodes of each group have in common; empty: the groups are pairs.
        readings: by node; one that is gone has none.
    """

    groups: tuple[Group, ...]
    label: str = ""
    readings: dict[str, Reading] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Share:
    """Nodes that have the same value of something.

    Args:
        count: how many.
        names: the first few.
    """

    count: int = 0
    names: list[str] = attrs.field(factory=list)


@attrs.define(kw_only=True)
class HealthState:
    """The check under way.

    Args:
        round: the round before which it is made.
        effect: the order that is not answered yet.
        lives: incarnation of each node that was asked.
        stages: groupings, the last one under way.
        facts: nodes by name and value of what should be equal on all of them.
        clocks: seconds that a node's clock is ahead of the master's, at least, where that is more than ``CLOCK_S``.
    """

    round: int
    effect: str
    lives: dict[str, str]
    stages: list[Stage] = attrs.field(factory=list)
    facts: dict[str, dict[str, Share]] = attrs.field(factory=dict)
    clocks: dict[str, float] = attrs.field(factory=dict)
