"""Suggests thresholds from a normal run: above all of its values, with a margin.

The loss is scored as by ``LossDetector``, but every sample is learned, because all are normal. Samples of the start-up,
and those with a window too short to know its spread, are not judged.
"""

import math
from dataclasses import dataclass

from ftcore.faults.detectors.loss import FLOOR, LASTING, WARMUP_STEPS, WINDOW
from ftcore.faults.detectors.spike import ENOUGH, SpikeDetector

SCORE_MARGIN = 1.25
LEAST_LIMIT = 6.0
"""Even losses with little noise have harmless outliers with scores up to 6."""

NORM_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Thresholds suggested by a normal run.

    Args:
        judged: number of judged losses.
        score_max: the largest score among them; None: none was judged.
        limit: suggested ``limit`` for the loss; None: none was judged.
        norm_max: the largest gradient norm after the start-up; None: no norm was reported.
        norm_threshold: suggested threshold of the gradient norm; None: no norm was reported.
    """

    judged: int
    score_max: float | None
    limit: float | None
    norm_max: float | None
    norm_threshold: float | None


class NormalRun:
    """Collects the samples of a normal run."""

    __slots__ = ("_detector", "_judged", "_learned", "_norm_max", "_score_max")

    def __init__(self) -> None:
        self._detector = SpikeDetector(
            "loss", window=WINDOW, limit=math.inf, floor=FLOOR, warmup_steps=WARMUP_STEPS, lasting=LASTING
        )
        self._learned = 0
        self._judged = 0
        self._score_max = 0.0
        self._norm_max = 0.0

    def observe(self, step: int, loss: float | None, norm: float | None) -> None:
        """Add a step; None: not reported. Values that are not finite are ignored."""
        if loss is not None and math.isfinite(loss):
            self._detector.observe(step, loss)
            if self._learned >= ENOUGH and step >= WARMUP_STEPS:
                self._judged += 1
                self._score_max = max(self._score_max, self._detector.score)
            self._learned += 1
        if norm is not None and math.isfinite(norm) and step >= WARMUP_STEPS:
            self._norm_max = max(self._norm_max, norm)

    def suggestion(self) -> Suggestion:
        """Return the thresholds for the samples so far."""
        judged, norm = self._judged, self._norm_max
        return Suggestion(
            judged=judged,
            score_max=self._score_max if judged else None,
            limit=math.ceil(max(LEAST_LIMIT, SCORE_MARGIN * self._score_max) * 10) / 10 if judged else None,
            norm_max=norm if norm > 0 else None,
            norm_threshold=_round_up(NORM_MARGIN * norm) if norm > 0 else None,
        )


def _round_up(value: float) -> float:
    """Round up to two significant digits."""
    digits = 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**digits) if abs(digits) < 300 else math.inf
    rounded = scaled / 10.0**digits if math.isfinite(scaled) else value
    return round(rounded, max(digits, 0))
