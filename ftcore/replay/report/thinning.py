"""Curves of bounded length: neighbours are merged, and of each pair of buckets the extremes are kept.

An outlier of one sample therefore stays visible however long the curve is, which a mean would hide.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

_BUCKET: Final = 2
"""Points that a bucket keeps: the lowest and the highest."""

_VALUE: Final = itemgetter(3)

SamplePoint: TypeAlias = tuple[int, int, int, float]
"""A point of a curve: nanoseconds since the epoch, step, round, and the measured value. A plain tuple: a long log has
millions of points, most of which are left out."""


class ThinnedCurve:
    """A curve with at most ``most`` points.

    Args:
        most: the limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = 1
        self._full: list[tuple[SamplePoint, ...]] = []
        self._low: SamplePoint | None = None  # of the newest bucket
        self._high: SamplePoint | None = None
        self._left = 1
        self._done = 0  # points before the newest bucket

    def extend(self, points: Sequence[SamplePoint]) -> None:
        """Add the next points; see ``SamplePoint``."""
        start = 0
        while start < len(points):
            part = points[start : start + self._left]
            start += len(part)
            low, high = min(part, key=_VALUE), max(part, key=_VALUE)
            if self._low is None or low[3] < self._low[3]:
                self._low = low
            if self._high is None or high[3] > self._high[3]:
                self._high = high
            self._left -= len(part)
            if not self._left:
                self._next_bucket()

    @property
    def count(self) -> int:
        """Number of points that were added."""
        return self._done + self._width - self._left

    def _next_bucket(self) -> None:
        self._done += self._width
        self._full.append(self._newest())
        self._low = self._high = None
        if len(self._full) * _BUCKET >= self._most:
            pairs = zip(self._full[::2], self._full[1::2], strict=False)
            odd = self._full[len(self._full) // 2 * 2 :]
            self._full = [_extremes([*a, *b]) for a, b in pairs] + odd
            self._width *= 2
        self._left = self._width

    def _newest(self) -> tuple[SamplePoint, ...]:
        return () if self._low is None or self._high is None else _in_order(self._low, self._high)

    def points(self) -> list[SamplePoint]:
        """The points that are left, in order."""
        return [point for bucket in self._full for point in bucket] + list(self._newest())


def _extremes(points: list[SamplePoint]) -> tuple[SamplePoint, ...]:
    if len(points) <= _BUCKET:
        return tuple(points)
    return _in_order(min(points, key=_VALUE), max(points, key=_VALUE))


def _in_order(low: SamplePoint, high: SamplePoint) -> tuple[SamplePoint, ...]:
    """The lowest and the highest point, which may be the same one, in order of time."""
    if low is high:
        return (low,)
    return (low, high) if low[:2] < high[:2] else (high, low)
