"""How far the clocks of nodes are from the time of the log: bounds from messages in both directions.

A fact cannot arrive before it happened, so a clock that was ahead of the log's time when the fact was noted is ahead by
at least as much. A node cannot answer an order before it was given, which bounds it from the other side. These are the
two bounds that one exchange of NTP gives (RFC 5905, section 8), taken over all exchanges with one master.
"""

import math

import attrs

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


class ClockBounds:
    """A reader that compares clocks; each term of a master is compared by itself, since each has its own clock."""

    def __init__(self) -> None:
        self._found: dict[str, NodeClock] = {}
        self._low: dict[str, float] = {}
        self._high: dict[str, float] = {}
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
                self._high[event.source] = min(self._high.get(event.source, math.inf), event.at.wall - ordered)

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
