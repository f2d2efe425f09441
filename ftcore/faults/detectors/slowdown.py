"""Detector of a slowdown of the whole job: the time per step rises and stays higher.

Times per step are compared in windows of ``WINDOW`` samples, of which each covers ten or so steps. *Before* is the
lowest median of a window so far. The job is slower if the medians of ``PERSIST`` windows in a row are at least
``LEAST`` above it, and ``CERTAIN`` standard errors of the difference. Then *before* starts again from the slower pace,
so that each change of the pace is reported once.

149 to 140 TFLOP/s are 6.4 % more time per step.
"""

import math
import statistics
from typing import Final, NamedTuple

from ftcore.faults.detectors.robust import MAD_TO_SIGMA

WINDOW: Final = 20
PERSIST: Final = 2
LEAST: Final = 0.05
CERTAIN: Final = 6.0

_MEDIAN_ERROR: Final = 1.2533


class Slowdown(NamedTuple):
    """A slowdown.

    Args:
        before: seconds per step before it.
        after: seconds per step since.
        samples: number of samples since it began, at least.
    """

    before: float
    after: float
    samples: int


class SlowdownDetector:
    """Detects that all steps take longer than before."""

    __slots__ = ("_before", "_error", "_samples", "_slow")

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._before = math.inf
        self._error = 0.0
        """Standard error of ``_before``, relative to it."""
        self._slow: list[float] = []
        """Medians of the latest windows, if they were all slow."""

    def observe(self, seconds: float) -> Slowdown | None:
        """Take in a time per step; returns a slowdown when it is found. Values that are not over 0 are ignored."""
        if not 0 < seconds < math.inf:
            return None
        self._samples.append(seconds)
        if len(self._samples) < WINDOW:
            return None
        median = statistics.median(self._samples)
        deviation = statistics.median([abs(each - median) for each in self._samples])
        error = _MEDIAN_ERROR * MAD_TO_SIGMA * deviation / math.sqrt(WINDOW) / median
        self._samples = []
        if median < self._before:
            self._before, self._error, self._slow = median, error, []
            return None
        if median < self._before * (1 + max(LEAST, CERTAIN * math.hypot(error, self._error))):
            self._slow = []
            return None
        self._slow.append(median)
        if len(self._slow) < PERSIST:
            return None
        found = Slowdown(self._before, statistics.median(self._slow), PERSIST * WINDOW)
        self._before, self._error, self._slow = found.after, error, []
        return found
