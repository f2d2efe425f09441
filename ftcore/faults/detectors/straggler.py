"""Straggler detector: compares the durations of a step over ranks and over time.

The duration must be a rank's own work in a step. The time from step to step is useless if ranks wait for each other: it
is that of the slowest rank on all of them.

| term | definition |
|---|---|
| usual duration | median over ranks of the same step (of an even number: the lower of the two in the middle) |
| spread | MAD over ranks, as the median of the last ``WINDOW`` steps |
| slow in a step | at least ``RATIO`` times the usual duration, and ``LIMIT`` robust deviations above it |
| straggler | a rank that was slow in ``PERSIST`` of its last ``WINDOW`` steps |
| no longer a straggler | a rank that was slow in less than half of ``PERSIST`` of them |

If all ranks are slow in a step, the median rises and none is reported. A single rank has no peers to be compared with.
If more than half of the ranks are slow, that is the usual duration. The score of 3.5 is Iglewicz and Hoaglin's (1993);
the ratio prevents reports of a rank that is 2 % slower than very even peers. Two ranks that are slow alternately are
not detected.
"""

import math
from collections import deque
from collections.abc import Mapping

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.robust import MAD_TO_SIGMA

LIMIT = 3.5
RATIO = 1.1
"""MegaScale (NSDI 2024) found its slow machines at 10 % longer forward passes, on 0.5 % of the machines."""

WINDOW = 20
PERSIST = 14
"""Of two noisy ranks each is slower by 10 % in a quarter of the steps: 14 of 20 then have a chance of 1 in 30,000."""


class StragglerDetector:
    """Detects ranks that are slower than the others in most steps."""

    __slots__ = ("_mads", "_missed", "_named", "_slow")

    def __init__(self) -> None:
        self._mads: deque[float] = deque(maxlen=WINDOW)
        self._slow: dict[int, int] = {}
        """By rank: one bit for each of its last ``WINDOW`` steps, the newest lowest; no entry: never slow."""
        self._missed: dict[int, int] = {}
        """For ranks in ``_slow``: consecutive steps without a duration."""
        self._named: dict[int, int] = {}

    @property
    def stragglers(self) -> tuple[int, ...]:
        """The current stragglers."""
        return tuple(sorted(self._named))

    def observe(self, step: int, durations: Mapping[int, float]) -> list[Finding]:
        """Check a step; return a finding for each straggler that was slow in it, the slowest first.

        Args:
            step: its number.
            durations: seconds of a rank's own work, by rank; values that are not over 0 or not finite are ignored.
        """
        valid = {rank: seconds for rank, seconds in durations.items() if 0 < seconds < math.inf}
        self._forget(valid)
        if len(valid) < 2:
            return []
        usual = _lower_median(list(valid.values()))
        self._mads.append(_lower_median([abs(seconds - usual) for seconds in valid.values()]) / usual)
        sigma = MAD_TO_SIGMA * _lower_median(list(self._mads))
        least = usual * max(RATIO, 1 + LIMIT * sigma)
        slow = {rank: seconds for rank, seconds in valid.items() if seconds >= least}
        self._remember(step, valid, slow)
        found = [
            Finding(
                "straggler",
                step,
                seconds,
                usual,
                (seconds / usual - 1) / sigma if sigma > 0 else math.inf,
                LIMIT,
                self._named[rank],
                rank,
            )
            for rank, seconds in slow.items()
            if rank in self._named
        ]
        return sorted(found, key=lambda finding: (-finding.value, finding.rank))

    def _remember(self, step: int, valid: Mapping[int, float], slow: Mapping[int, float]) -> None:
        mask = (1 << WINDOW) - 1
        for rank in slow:
            self._slow.setdefault(rank, 0)
        for rank, bits in list(self._slow.items()):
            if rank not in valid:
                continue
            bits = (bits << 1 | (rank in slow)) & mask
            count = bits.bit_count()
            if count >= PERSIST:
                self._named.setdefault(rank, step)
            elif 2 * count < PERSIST:
                self._named.pop(rank, None)
            if bits:
                self._slow[rank] = bits
            else:
                del self._slow[rank], self._missed[rank]

    def _forget(self, valid: Mapping[int, float]) -> None:
        """Remove ranks without a duration for a whole window."""
        for rank in list(self._slow):
            missed = 0 if rank in valid else self._missed.get(rank, 0) + 1
            self._missed[rank] = missed
            if missed >= WINDOW:
                del self._slow[rank], self._missed[rank]
                self._named.pop(rank, None)


def _lower_median(values: list[float]) -> float:
    values.sort()
    return values[(len(values) - 1) // 2]
