"""Detector of slow ranks: compares the own work of ranks that do the same work.

A *sample* is the own time per step of each rank over the same ten or so steps, without waiting for other ranks.

| term | definition |
|---|---|
| group | ranks that do the same work |
| ratio | a rank's own time divided by the median of the others of its group, in one sample |
| slow in a sample | a ratio of at least ``1 + SLOW`` |
| excess | the median of its ratios in the last ``WINDOW`` samples, minus 1 |
| certain excess | at least ``LEAST``, ``CERTAIN`` standard errors, and ``LIMIT`` deviations of the group's excesses |
| slow rank | slow in ``PERSIST`` of its last ``WINDOW`` samples, with a certain excess |
| no longer slow | slow in less than half of ``PERSIST`` samples |

The median of the others makes a slowdown of all ranks invisible, and one slow rank moves no other one's ratio. The
standard error tells noise from a small lasting excess; it takes noise into account that lasts over several samples, as
that of another program on the machine. The deviations among the group's excesses stand for lasting differences between
healthy machines; three others are needed to know them.

By simulation, of ranks whose samples vary by 1 %, one that is 5 % slower is named in 20 samples; if they vary by 2 %,
in two of three cases; if by 6 %, hardly ever. No other rank is named, unless the noise of very few ranks lasts for many
samples and has the size of the excess.

A rank without peers, such as a pipeline stage without data parallelism, is compared with itself: with the median of its
first ``WINDOW`` samples, relative to the same quotient of the other ranks without peers. So it is found if it becomes
slow, not if it is slow from the start.
"""

import itertools
import math
import statistics
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ftcore.faults.detectors.robust import MAD_TO_SIGMA, MEAN_TO_SIGMA

WINDOW: Final = 20
PERSIST: Final = 14
SLOW: Final = 0.015
LEAST: Final = 0.025
"""Both well below 5 %, so that a rank that is 5 % slower in most of its work is found."""

CERTAIN: Final = 4.0
CERTAIN_FEW: Final = 5.0
"""The same in a group of fewer than four ranks, whose noise is less well known."""

LIMIT: Final = 3.5
PEERS_MAX: Final = 64
"""Ranks of a group from which the deviations are estimated."""

LASTING_MAX: Final = 0.95
"""Most correlation of a sample's noise with the next one's that is reckoned with."""

_MEDIAN_ERROR: Final = 1.2533
"""The standard error of a median, for normal noise, times the square root of the number of samples."""

_MASK: Final = (1 << WINDOW) - 1


class SlowRank(NamedTuple):
    """A slow rank.

    Args:
        rank: the rank.
        ratio: median of its ratios over the last ``WINDOW`` samples.
        samples: number of slow samples among them.
    """

    rank: int
    ratio: float
    samples: int


class SlowRankDetector:
    """Detects ranks that are lastingly slower than the others of their group.

    Args:
        size: number of ranks.
        span_s: least seconds from the first slow sample of a rank until it is named.
    """

    __slots__ = ("_bits", "_first", "_named", "_ratios", "_since", "_size", "_span_s")

    def __init__(self, size: int, span_s: float = 0.0) -> None:
        self._size, self._span_s = size, span_s
        self._ratios: deque[array[float]] = deque(maxlen=WINDOW)
        """By sample, by rank; not a number: unknown."""
        self._bits = [0] * size
        """By rank: one bit for each of its last samples, the newest lowest: whether it was slow."""
        self._since: dict[int, float] = {}
        """Time of the first slow sample, for ranks with a slow sample in the window."""
        self._named: set[int] = set()
        self._first: dict[int, list[float]] = {}
        """First samples of ranks without peers."""

    @property
    def named(self) -> tuple[int, ...]:
        """The slow ranks."""
        return tuple(sorted(self._named))

    def ratios(self, rank: int) -> list[float]:
        """The ratios of a rank in the last ``WINDOW`` samples, oldest first; not a number: unknown."""
        return [ratios[rank] for ratios in self._ratios]

    def observe(self, now: float, own: Sequence[float], groups: Sequence[Sequence[int]]) -> list[SlowRank]:
        """Take in a sample; returns the slow ranks, the slowest first.

        Args:
            now: seconds of a monotonic clock.
            own: own time per step, by rank; values that are not over 0 or not finite are unknown.
            groups: the ranks of each group; each rank is in one.
        """
        ratios = array("f", [math.nan]) * self._size
        alone = [group[0] for group in groups if len(group) == 1]
        for group in groups:
            if len(group) > 1:
                _compare([(own[rank], rank) for rank in group if 0 < own[rank] < math.inf], ratios)
        if len(alone) > 1:
            _compare(self._with_themselves(alone, own), ratios)
        self._ratios.append(ratios)
        self._remember(now, ratios)
        for group in [*(group for group in groups if len(group) > 1), alone]:
            for rank in group:
                if self._bits[rank].bit_count() >= PERSIST and rank not in self._named:
                    self._judge(now, rank, group)
        found = [SlowRank(rank, self._median(rank), self._bits[rank].bit_count()) for rank in self._named]
        return sorted(found, key=lambda slow: -slow.ratio)

    def _with_themselves(self, alone: list[int], own: Sequence[float]) -> list[tuple[float, int]]:
        found = []
        for rank in alone:
            first = self._first.setdefault(rank, [])
            if not 0 < own[rank] < math.inf:
                continue
            if len(first) < WINDOW:
                first.append(own[rank])
            else:
                found.append((own[rank] / statistics.median(first), rank))
        return found

    def _remember(self, now: float, ratios: "array[float]") -> None:
        bits = self._bits
        for rank, ratio in enumerate(ratios):
            if ratio != ratio:
                continue
            slow = ratio >= 1 + SLOW
            if slow or bits[rank]:
                bits[rank] = (bits[rank] << 1 | slow) & _MASK
                if slow:
                    self._since.setdefault(rank, now)
                elif not bits[rank]:
                    del self._since[rank]
                if 2 * bits[rank].bit_count() < PERSIST:
                    self._named.discard(rank)

    def _judge(self, now: float, rank: int, group: Sequence[int]) -> None:
        series = self._series(rank)
        excess = statistics.median(series) - 1
        if now - self._since[rank] < self._span_s or excess < LEAST:
            return
        others = [found for other in _some(group, rank) if len(found := self._series(other)) >= PERSIST]
        if excess < (CERTAIN if len(others) >= 3 else CERTAIN_FEW) * _error([series, *others]):
            return
        medians = [statistics.median(found) for found in others]
        center = statistics.median(medians) if medians else 1.0
        spread = MAD_TO_SIGMA * statistics.median([abs(each - center) for each in medians]) if len(medians) > 2 else 0.0
        if 1 + excess - center >= LIMIT * spread:
            self._named.add(rank)

    def _series(self, rank: int) -> list[float]:
        return [ratio for ratio in self.ratios(rank) if ratio == ratio]

    def _median(self, rank: int) -> float:
        series = self._series(rank)
        return statistics.median(series) if series else math.nan


def _compare(known: list[tuple[float, int]], ratios: "array[float]") -> None:
    """Write the ratio of each rank to the median of the others."""
    known.sort()
    others = len(known) - 1
    if others < 1:
        return
    low, high = (others - 1) // 2, others // 2
    for place, (value, rank) in enumerate(known):
        usual = (known[low + (low >= place)][0] + known[high + (high >= place)][0]) / 2
        ratios[rank] = value / usual


def _some(group: Sequence[int], rank: int) -> list[int]:
    """At most ``PEERS_MAX`` other ranks of a group, evenly spread."""
    every = -(-len(group) // PEERS_MAX)
    return [other for other in group[::every] if other != rank]


def _error(series: Sequence[Sequence[float]]) -> float:
    """The standard error of the median of the first series.

    Noise that lasts over several samples makes it larger. How much is estimated from all series, as the correlation of
    a sample with the next one; the estimate from short series is too low and corrected.
    """
    product = square = 0.0
    for each in series:
        center = statistics.median(each)
        rest = [value - center for value in each]
        deviation = _deviation(each) or 1.0
        rest = [max(-3.0, min(3.0, value / deviation)) for value in rest]
        product += sum(one * other for one, other in itertools.pairwise(rest))
        square += sum(value * value for value in rest[1:])
    lasting = product / square if square else 0.0
    lasting = max(0.0, min(LASTING_MAX, lasting + (1 + 3 * lasting) / len(series[0])))
    deviation = max(_deviation(series[0]), statistics.median([_deviation(each) for each in series]))
    return _MEDIAN_ERROR * deviation * math.sqrt((1 + lasting) / (1 - lasting) / len(series[0]))


def _deviation(values: Sequence[float]) -> float:
    """A standard deviation that a single outlier moves little: the larger of two estimates."""
    center = statistics.median(values)
    distances = [abs(value - center) for value in values]
    return max(MAD_TO_SIGMA * statistics.median(distances), MEAN_TO_SIGMA * statistics.fmean(distances))
