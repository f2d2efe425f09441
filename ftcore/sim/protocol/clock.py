"""Virtual time: a queue of scheduled work. Work of the same instant runs in the order in which it was scheduled, after
what ``soon`` was given.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ftcore.ids import SECOND

Work: TypeAlias = Callable[[], None]


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND)


class Scheduler:
    """The clock of a simulation, in nanoseconds from 0.

    Attributes:
        now: the time.
        turns: number of executed entries.
        stops: set to stop ``run``.
        running: the event loop that asyncio was last told to be the running one.
    """

    def __init__(self) -> None:
        self.now = 0
        self.turns = 0
        self.stops = False
        self.running: object = None
        self._queue: list[tuple[int, int, Work]] = []
        self._soon: deque[Work] = deque()
        self._asked = 0

    def soon(self, work: Work) -> None:
        """Execute work at this instant, before any scheduled work: about half of the cost of ``after(0, work)``."""
        self._soon.append(work)

    def after(self, delay_ns: int, work: Work) -> None:
        """Schedule work in ``delay_ns`` nanoseconds."""
        self._asked += 1
        heapq.heappush(self._queue, (self.now + delay_ns if delay_ns > 0 else self.now, self._asked, work))

    def at(self, at_ns: int, work: Work) -> None:
        """Schedule work at a time, or now if the time has passed."""
        self._asked += 1
        heapq.heappush(self._queue, (at_ns if at_ns > self.now else self.now, self._asked, work))

    def run(self, until_ns: int, over: Callable[[], bool] | None = None) -> bool:
        """Execute scheduled work.

        Args:
            until_ns: time at which to stop.
            over: called after each entry; true stops at once, like ``stops``.

        Returns:
            Whether ``over`` returned true.
        """
        queue, soon, pop = self._queue, self._soon, heapq.heappop
        while not self.stops:
            if soon:
                work = soon.popleft()
            elif queue and queue[0][0] <= until_ns:
                self.now, _, work = pop(queue)
            else:
                break
            self.turns += 1
            work()
            if over is not None and over():
                return True
        self.now = max(self.now, until_ns)
        return over is not None and over()
