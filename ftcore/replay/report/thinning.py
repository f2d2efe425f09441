"""Curves of bounded length: neighbours are merged, and of each pair of buckets the extremes are kept.

An outlier of one sample therefore stays visible however long the curve is, which a mean would hide.
"""

from typing import Final

import attrs

_BUCKET: Final = 2
"""Points that a bucket keeps: the lowest and the highest."""


@attrs.frozen
class SamplePoint:
    """A point of a curve.

    Args:
        time: nanoseconds since the epoch.
        step: the step.
        round: the round.
        value: the measured value.
    """

    time: int
    step: int
    round: int
    value: float


class ThinnedCurve:
    """A curve with at most ``most`` points.

    Args:
        most: the limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = 1
        self._full: list[tuple[SamplePoint, ...]] = []
        self._last: list[SamplePoint] = []
        self.count = 0

    def add(self, point: SamplePoint) -> None:
        """Add the next point."""
        self.count += 1
        self._last.append(point)
        if len(self._last) < self._width:
            return
        self._full.append(_extremes(self._last))
        self._last = []
        if len(self._full) * _BUCKET >= self._most:
            pairs = zip(self._full[::2], self._full[1::2], strict=False)
            odd = self._full[len(self._full) // 2 * 2 :]
            self._full = [_extremes([*a, *b]) for a, b in pairs] + odd
            self._width *= 2

    def points(self) -> list[SamplePoint]:
        """The points that are left, in order."""
        return [point for bucket in self._full for point in bucket] + list(_extremes(self._last))


def _extremes(points: list[SamplePoint]) -> tuple[SamplePoint, ...]:
    if len(points) <= _BUCKET:
        return tuple(points)
    low = min(range(len(points)), key=lambda place: points[place].value)
    high = max(range(len(points)), key=lambda place: points[place].value)
    return tuple(points[place] for place in sorted({low, high}))
