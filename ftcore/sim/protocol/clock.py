"""Virtual time: one queue of things to come, turned by hand. The same instant keeps the order in which it was asked."""

import heapq
from collections.abc import Callable
from typing import Protocol, TypeAlias

from ftcore.ids import SECOND

Work: TypeAlias = Callable[[], None]


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND)


class Due(Protocol):
    """What waits for its time."""

    def ring(self) -> None:
        """Its time has come; what was taken back does nothing."""


class Alarm:
    """Some work to come; ``cancel`` takes it back."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    def ring(self) -> None:
        """Its time has come."""
        if self._work is not None:
            self._work()

    def cancel(self) -> None:
        """It will not come."""
        self._work = None


class Scheduler:
    """The clock of a simulation, in nanoseconds from 0.

    Attributes:
        now: the time.
        turns: things that were done.
        stops: set by whoever wants time to stand still.
    """

    def __init__(self) -> None:
        self.now = 0
        self.turns = 0
        self.stops = False
        self._queue: list[tuple[int, int, Due]] = []
        self._asked = 0

    def after(self, delay_ns: int, work: Work) -> Alarm:
        """Have something done in so many nanoseconds."""
        timer = Alarm(work)
        self.put(self.now + delay_ns, timer)
        return timer

    def put(self, at_ns: int, due: Due) -> None:
        """Have something ring at a time, or now if that has passed."""
        self._asked += 1
        heapq.heappush(self._queue, (at_ns if at_ns > self.now else self.now, self._asked, due))

    def run(self, until_ns: int, over: Callable[[], bool] | None = None) -> bool:
        """Let time pass.

        Args:
            until_ns: where to stop.
            over: asked after each thing that was done; true stops at once, as ``stops`` does.

        Returns:
            Whether ``over`` said so.
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
