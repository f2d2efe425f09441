"""Event loop of a campaign: virtual time, scheduled calls, and the engine that turns facts into groups of events.

Every fact is sequenced at the current virtual time; nothing here reads a clock.
"""

import heapq
from collections.abc import Callable
from typing import Any

from ftcore.engine.decide import turn
from ftcore.engine.turn import own_fact, sequence
from ftcore.events.envelope import At, Event, EventId, Fact
from ftcore.ids import SECOND, Nanoseconds, Term, seconds
from ftcore.sim.campaign.nodes import SimNode
from ftcore.states.model import JobState

EPOCH_NS = 1_700_000_000 * SECOND

Sink = Callable[[list[Event]], None]
"""Called with every group of events."""


class Wheel:
    """Virtual time and the engine.

    Args:
        sinks: called with every group.
    """

    def __init__(self, *sinks: Sink) -> None:
        self.state = JobState()
        self.now = int(EPOCH_NS)
        self._sinks = sinks
        self._term = Term(1)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0

    def _after(self, delay_s: float, do: Callable[[], None]) -> None:
        self._at_time(self.now + seconds(delay_s), do)

    def _at_time(self, time: int, do: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (time, self._pushed, do))

    def _own(self, data: Any) -> None:
        self._turn(own_fact(data))

    def _say(self, node: SimNode, data: Any, at: int | None = None) -> None:
        node.said += 1
        clocks = None if at is None else At(wall=at, mono=at - int(EPOCH_NS), boot=node.incarnation)
        self._turn(Fact(id=EventId(node.name, node.incarnation, node.said), data=data, at=clocks))

    def _turn(self, fact: Fact) -> None:
        group = turn(self.state, sequence(self.state, fact, now=Nanoseconds(self.now), term=self._term))
        for sink in self._sinks:
            sink(group)
        if len(group) > 1:
            for event in group:
                self._decided(event)

    def _decided(self, event: Event) -> None:
        """Handle an event of a group with decisions."""
        raise NotImplementedError
