"""How far the clocks of nodes are from the time of the log: bounds from messages in both directions.

A fact cannot arrive before it happened, so a clock that was ahead of the log's time when the fact was noted is ahead by
at least as much. A node cannot answer an order before it was given, which bounds it from the other side. These are the
two bounds that one exchange of NTP gives (RFC 5905, section 8), taken over all exchanges with one master.
"""

import math

import attrs
import msgspec

from ftcore.commands import StartWorkers
from ftcore.events.action import ActionDone, ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.master import MasterElected
from ftcore.events.worker import WorkersStarted
from ftcore.ids import SECOND

NOTICEABLE_S = 0.5
"""Seconds by which a clock must differ to be reported: clocks kept by NTP differ by milliseconds."""


@attrs.frozen(kw_only=True)
class NodeClock:
    """The clock of a node that disagrees with the time of the log, which is its master's clock.

    Args:
        node: its name.
        ahead_min_s: seconds by which it is ahead at least; negative: it is behind by at most so much.
        ahead_max_s: seconds by which it is ahead at most; None: not known.
    """

    node: str
    ahead_min_s: float
    ahead_max_s: float | None


class SavedClocks(msgspec.Struct, frozen=True, kw_only=True):
    """A ``ClockBounds``, field by field."""

    found: dict[str, NodeClock]
    low: dict[str, int]
    high: dict[str, int]
    ordered: dict[str, int]
    starts: dict[int, int]


class ClockBounds:
    """A reader that compares clocks; each term of a master is compared by itself, since each has its own clock."""

    def __init__(self) -> None:
        self._found: dict[str, NodeClock] = {}
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self._ordered: dict[str, int] = {}
        self._starts: dict[int, int] = {}

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        data = event.data
        kind = type(data)
        if kind is ActionOrdered:
            self._ordered[data.effect] = event.time
            if type(data.command) is StartWorkers:
                self._starts[data.command.round] = event.time
        elif kind is ActionDone:
            self._ordered.pop(data.effect, None)
        elif kind is MasterElected:
            self._end_term()
        elif event.at is not None:
            ahead = event.at.wall - event.time
            if ahead > self._low.get(event.source, -math.inf):
                self._low[event.source] = ahead
            effect = getattr(data, "effect", "")
            ordered = self._starts.get(data.round) if kind is WorkersStarted else self._ordered.get(effect)
            if ordered is not None:
                behind = event.at.wall - ordered
                self._high[event.source] = min(self._high.get(event.source, behind), behind)

    def saved(self) -> SavedClocks:
        """The bounds as a record, to continue from."""
        return SavedClocks(
            found=self._found, low=self._low, high=self._high, ordered=self._ordered, starts=self._starts
        )

    @classmethod
    def restored(cls, saved: SavedClocks) -> "ClockBounds":
        """The bounds of a record."""
        bounds = cls()
        bounds._found, bounds._low, bounds._high = saved.found, saved.low, saved.high
        bounds._ordered, bounds._starts = saved.ordered, saved.starts
        return bounds

    def clocks(self) -> list[NodeClock]:
        """The clocks that disagree noticeably, by name; as of the newest term in which they did."""
        self._compare()
        return [self._found[node] for node in sorted(self._found)]

    def _end_term(self) -> None:
        self._compare()
        self._low.clear()
        self._high.clear()
        self._ordered.clear()
        self._starts.clear()

    def _compare(self) -> None:
        for node, low in self._low.items():
            high = self._high.get(node, math.inf)
            if low > high:
                continue  # a clock was set during the term: the bounds are of two clocks
            if low > NOTICEABLE_S * SECOND or high < -NOTICEABLE_S * SECOND:
                known = None if math.isinf(high) else high / SECOND
                self._found[node] = NodeClock(node=node, ahead_min_s=low / SECOND, ahead_max_s=known)
