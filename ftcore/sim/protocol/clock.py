"""Virtual time: one queue of scheduled work. Work of the same instant runs in the order in which it was scheduled."""

import heapq
from collections.abc import Callable
from typing import Protocol, TypeAlias

from ftcore.ids import SECOND

Work: TypeAlias = Callable[[], None]


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND)


class Due(Protocol):
    """An entry of the queue."""

    def ring(self) -> None:
        """Execute it now; does nothing if it was cancelled."""


class ScheduledCall:
    """Scheduled work; ``cancel`` drops it."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    def ring(self) -> None:
        """Execute the work."""
        if self._work is not None:
            self._work()

    def cancel(self) -> None:
        """Drop the work."""
        self._work = None


class Scheduler:
    """The clock of a simulation, in nanoseconds from 0.

    Attributes:
        now: the time.
        turns: number of executed entries.
        stops: set to stop ``run``.
    """

    def __init__(self) -> None:
        self.now = 0
        self.turns = 0
        self.stops = False
        self._queue: list[tuple[int, int, Due]] = []
        self._asked = 0

    def after(self, delay_ns: int, work: Work) -> ScheduledCall:
        """Schedule work in ``delay_ns`` nanoseconds."""
        timer = ScheduledCall(work)
        self.put(self.now + delay_ns, timer)
        return timer

    def put(self, at_ns: int, due: Due) -> None:
        """Schedule an entry at a time, or now if the time has passed."""
        self._asked += 1
        heapq.heappush(self._queue, (at_ns if at_ns > self.now else self.now, self._asked, due))

    def run(self, until_ns: int, over: Callable[[], bool] | None = None) -> bool:
        """Execute scheduled work.

        Args:
            until_ns: time at which to stop.
            over: called after each entry; true stops at once, like ``stops``.

        Returns:
            Whether ``over`` returned true.
        """
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until_ns and not self.stops:
            self.now, _, due = pop(queue)
            self.turns += 1
            due.ring()
            if over is not None and over():
                return True
        self.now = max(self.now, until_ns)
        return over is not None and over()
