"""Thresholds from a run in which all was well: above whatever that run did, with a margin.

The loss is scored as ``LossDetector`` scores it, but everything is learned, because everything is normal. Samples of
the start-up, and those whose window is not long enough to know its spread, are not judged.
"""

import math
from dataclasses import dataclass

from ftcore.faults.detectors.loss import FLOOR, LASTING, WARMUP_STEPS, WINDOW
from ftcore.faults.detectors.spike import ENOUGH, SpikeDetector

SCORE_MARGIN = 1.25
LEAST_LIMIT = 6.0
"""Below a score of 6 even quiet losses have outliers that nobody would act on."""

NORM_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a normal run says of thresholds.

    Args:
        judged: losses that were judged.
        score_max: the largest score among them; None: none was judged.
        limit: for the loss's ``limit``; None: none was judged.
        norm_max: the largest gradient norm after the start-up; None: there was none.
        norm_threshold: for the gradient norm's threshold; None: there was none.
    """

    judged: int
    score_max: float | None
    limit: float | None
    norm_max: float | None
    norm_threshold: float | None


class NormalRun:
    """Reads a normal run, sample by sample."""

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
        """Take in a step; what was not reported is None, what is not finite is passed over."""
        if loss is not None and math.isfinite(loss):
            self._detector.observe(step, loss)
            if self._learned >= ENOUGH and step >= WARMUP_STEPS:
                self._judged += 1
                self._score_max = max(self._score_max, self._detector.score)
            self._learned += 1
        if norm is not None and math.isfinite(norm) and step >= WARMUP_STEPS:
            self._norm_max = max(self._norm_max, norm)

    def suggestion(self) -> Suggestion:
        """What follows from the samples so far."""
        judged, norm = self._judged, self._norm_max
        return Suggestion(
            judged=judged,
            score_max=self._score_max if judged else None,
            limit=math.ceil(max(LEAST_LIMIT, SCORE_MARGIN * self._score_max) * 10) / 10 if judged else None,
            norm_max=norm if norm > 0 else None,
            norm_threshold=_round_up(NORM_MARGIN * norm) if norm > 0 else None,
        )


def _round_up(value: float) -> float:
    """To two significant digits."""
    digits = 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**digits) if abs(digits) < 300 else math.inf
    rounded = scaled / 10.0**digits if math.isfinite(scaled) else value
    return round(rounded, max(digits, 0))
