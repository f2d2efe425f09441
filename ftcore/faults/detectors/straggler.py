"""Slow ranks, named: one step's durations on all ranks, compared over ranks and over time.

Give it the time that a rank needed for its own work in a step. The time from step to step will not do where ranks wait
for each other: there it is the same for all of them, the slowest one's.

| question | answer |
|---|---|
| what is usual? | the median over ranks of this very step (of an even number: the lower of the two in the middle) |
| how much do ranks differ? | the MAD over ranks, as the median of the last ``window`` steps |
| who is slow in a step? | who needed ``ratio`` times the usual or more, and lies ``limit`` robust deviations above it |
| who is a straggler? | who was slow in ``persist`` of its last ``window`` steps |
| until when? | until that was so in less than half of ``persist`` of them |

A step in which everybody is slow moves the median along: that is nobody's fault. A rank alone has nobody to be compared
with. More than half of the ranks slow at once is the new usual. The score of 3.5 is Iglewicz and Hoaglin's (1993); the
ratio keeps it from naming a rank that is 2 % slower than very even peers. A rank that takes turns with another at being
slow is not found.
"""

import math
from collections import deque
from collections.abc import Mapping

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.robust import MAD_TO_SIGMA

LIMIT = 3.5
RATIO = 1.1
"""MegaScale (NSDI 2024) found its slow machines by a tenth: 10 % longer forward passes on 0.5 % of the machines."""

WINDOW = 20
PERSIST = 14
"""Of two ranks with much noise each is the slower one by a tenth in a quarter of the steps: 14 of 20 is then one chance
in 30,000."""


class StragglerDetector:
    """Ranks that are slower than the others, step after step.

    Args:
        ratio: least part of the usual duration that is slow, over 1.
        limit: least score that is slow.
        window: steps over which a rank is judged.
        persist: slow steps among them that name it.
    """

    __slots__ = ("_mads", "_missed", "_named", "_slow", "limit", "persist", "ratio", "window")

    def __init__(
        self, *, ratio: float = RATIO, limit: float = LIMIT, window: int = WINDOW, persist: int = PERSIST
    ) -> None:
        if not ratio > 1 or not limit > 0 or not 1 <= persist <= window:
            raise ValueError(
                f"expected ratio > 1, limit > 0, 1 <= persist <= window; found {ratio}, {limit}, {persist}, {window}"
            )
        self.ratio = ratio
        self.limit = limit
        self.window = window
        self.persist = persist
        self._mads: deque[float] = deque(maxlen=window)
        self._slow: dict[int, int] = {}
        """By rank: a bit for each of its last ``window`` steps, the newest lowest; ranks never slow have no entry."""
        self._missed: dict[int, int] = {}
        """Of the ranks in ``_slow``: steps in a row in which they took no part."""
        self._named: dict[int, int] = {}

    @property
    def stragglers(self) -> tuple[int, ...]:
        """The ranks that are named now."""
        return tuple(sorted(self._named))

    def observe(self, step: int, durations: Mapping[int, float]) -> list[Finding]:
        """Take in a step; returns a finding for each straggler that was slow in it, the slowest first.

        Args:
            step: its number.
            durations: by rank, the seconds of its own work; one that is not over 0 or not finite counts as not told.
        """
        told = {rank: seconds for rank, seconds in durations.items() if 0 < seconds < math.inf}
        self._forget(told)
        if len(told) < 2:
            return []
        usual = _lower_median(list(told.values()))
        self._mads.append(_lower_median([abs(seconds - usual) for seconds in told.values()]) / usual)
        sigma = MAD_TO_SIGMA * _lower_median(list(self._mads))
        least = usual * max(self.ratio, 1 + self.limit * sigma)
        slow = {rank: seconds for rank, seconds in told.items() if seconds >= least}
        self._remember(step, told, slow)
        found = [
            Finding(
                "straggler",
                step,
                seconds,
                usual,
                (seconds / usual - 1) / sigma if sigma > 0 else math.inf,
                self.limit,
                self._named[rank],
                rank,
            )
            for rank, seconds in slow.items()
            if rank in self._named
        ]
        return sorted(found, key=lambda finding: (-finding.value, finding.rank))

    def _remember(self, step: int, told: Mapping[int, float], slow: Mapping[int, float]) -> None:
        mask = (1 << self.window) - 1
        for rank in slow:
            self._slow.setdefault(rank, 0)
        for rank, bits in list(self._slow.items()):
            if rank not in told:
                continue
            bits = (bits << 1 | (rank in slow)) & mask
            count = bits.bit_count()
            if count >= self.persist:
                self._named.setdefault(rank, step)
            elif 2 * count < self.persist:
                self._named.pop(rank, None)
            if bits:
                self._slow[rank] = bits
            else:
                del self._slow[rank], self._missed[rank]

    def _forget(self, told: Mapping[int, float]) -> None:
        """Ranks that did not take part for a whole window are gone."""
        for rank in list(self._slow):
            missed = 0 if rank in told else self._missed.get(rank, 0) + 1
            self._missed[rank] = missed
            if missed >= self.window:
                del self._slow[rank], self._missed[rank]
                self._named.pop(rank, None)


def _lower_median(values: list[float]) -> float:
    values.sort()
    return values[(len(values) - 1) // 2]
