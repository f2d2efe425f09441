"""A sliding window with its median and median absolute deviation.

The values are kept in order of arrival and sorted. A push costs two binary searches and two short memory moves; the
median costs nothing, the median absolute deviation (MAD) one binary search, because the values nearest to the median
are neighbours in the sorted order.

Sources: F. R. Hampel, "The influence curve and its role in robust estimation", JASA 69 (1974), for the MAD and for
judging a sample by median and MAD of its window; B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", ASQC
(1993), for the modified z-score and its replacement by the mean absolute deviation where the MAD is zero.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

MAD_TO_SIGMA = 1.482602218505602
"""1 / (quantile 0.75 of the normal distribution): converts the MAD of normal samples to their standard deviation."""

MEAN_TO_SIGMA = 1.2533141373155001
"""sqrt(pi / 2): converts the mean absolute deviation of normal samples to their standard deviation."""


class Window:
    """A sliding window of the last samples.

    Args:
        size: number of samples, at least 1.
    """

    __slots__ = ("_arrived", "_sorted", "size")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size of a window: expected at least 1, found {size}")
        self.size = size
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> None:
        """Add a finite sample; a full window drops its oldest one."""
        if len(self._arrived) == self.size:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        """Remove all samples."""
        self._arrived.clear()
        self._sorted.clear()

    def median(self) -> float:
        """The median; the window must not be empty."""
        return median(self._sorted)

    def spread(self) -> float:
        """The difference between the largest and the smallest sample."""
        return self._sorted[-1] - self._sorted[0]

    def mad(self) -> float:
        """The median absolute deviation from the median, not scaled."""
        values, middle = self._sorted, median(self._sorted)
        count = len(values)
        upper = _nearest(values, middle, count // 2)
        return upper if count % 2 else upper / 2 + _nearest(values, middle, count // 2 - 1) / 2

    def sigma(self) -> float:
        """A robust standard deviation: from the MAD, or from the mean absolute deviation if the MAD is zero."""
        mad = self.mad()
        if mad > 0:
            return mad * MAD_TO_SIGMA
        middle = self.median()
        return math.fsum(abs(value - middle) / len(self._sorted) for value in self._sorted) * MEAN_TO_SIGMA


def median(ordered: Sequence[float]) -> float:
    """Return the median of values in ascending order, without overflow for huge values."""
    count = len(ordered)
    if count % 2:
        return ordered[count // 2]
    low, high = ordered[count // 2 - 1], ordered[count // 2]
    return low if low == high else low / 2 + high / 2


def _nearest(values: list[float], middle: float, k: int) -> float:
    """Return the k-th smallest distance (from 0) to ``middle``: the least reach of k + 1 neighbours around it."""
    low, high = 0, len(values) - 1 - k
    while low < high:
        at = (low + high) // 2
        if middle - values[at] > values[at + k] - middle:
            low = at + 1
        else:
            high = at
    reach = max(middle - values[low], values[low + k] - middle)
    if low:
        reach = min(reach, max(middle - values[low - 1], values[low - 1 + k] - middle))
    return reach
