"""A histogram as plain numbers."""

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds for durations: from a restart in memory to a node that has to be repaired."""


class Durations:
    """Counts durations by bucket.

    Args:
        bounds: upper bounds of the buckets in seconds, ascending; a last bucket has no bound.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as ``prometheus_client`` expects them."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return found
