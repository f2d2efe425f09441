"""Virtual time: one queue of things to come, turned by hand. The same instant keeps the order in which it was asked."""

import heapq
from collections.abc import Callable
from typing import TypeAlias

from ftcore.ids import SECOND

Work: TypeAlias = Callable[[], None]


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND)


class Timer:
    """Something to come; ``cancel`` takes it back."""

    __slots__ = ("work",)

    def __init__(self, work: Work) -> None:
        self.work: Work | None = work

    def cancel(self) -> None:
        """It will not come."""
        self.work = None


class Scheduler:
    """The clock of a simulation, in nanoseconds from 0."""

    def __init__(self) -> None:
        self.now = 0
        self.turns = 0
        self._queue: list[tuple[int, int, Timer]] = []
        self._asked = 0

    def after(self, delay_ns: int, work: Work) -> Timer:
        """Have something done in so many nanoseconds."""
        timer = Timer(work)
        self._asked += 1
        heapq.heappush(self._queue, (self.now + max(0, delay_ns), self._asked, timer))
        return timer

    def run(self, until_ns: int, over: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass.

        Args:
            until_ns: where to stop.
            over: asked after each thing that was done; true stops at once.

        Returns:
            Whether ``over`` said so.
        """
        while self._queue and self._queue[0][0] <= until_ns:
            time, _, timer = heapq.heappop(self._queue)
            if timer.work is None:
                continue
            self.now = time
            self.turns += 1
            timer.work()
            if over():
                return True
        self.now = max(self.now, until_ns)
        return over()
