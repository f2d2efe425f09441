"""The global gradient norm: at or over a threshold, or far above its own past.

``NormThreshold`` is the detector of a step that is computed again (MindSpore's TRE): off unless it is switched on, 3.0
where only that is said. What is told of one step, over all its computations:

| computation of a step | at or over the threshold | is told as | recorded |
|---|---|---|---|
| the first | no | nothing | nothing |
| the first | yes | ``norm``: compute the step again | the value before |
| a later one of a recorded step | no | nothing: the remedy helped | the value after |
| a later one of a recorded step | yes | ``norm``, tolerated: go on | the value after |

A norm that is not a number is over every threshold. Report the norm of steps whose gradients were to be applied: a loss
scaler that skips a step overflows by design.

``NormSpike`` follows the rules of ``spike``. Norms vary by factors where losses vary by parts: in healthy public runs
single steps reach three times the median. Its limit of 10 and its floor of 0.4 leave alone whatever is below five times
the median.
"""

import math

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.spike import SpikeDetector

THRESHOLD = 3.0
"""The threshold where the detector is switched on and none is given; that of MindIO's step retry."""

RECORDS_MAX = 1024
"""Abnormal steps remembered; of more, the oldest are forgotten."""

SPIKE_WINDOW = 40
SPIKE_LIMIT = 10.0
SPIKE_FLOOR = 0.4
WARMUP_STEPS = 100
LASTING = 10


class NormThreshold:
    """A gradient norm at or over a fixed threshold.

    Args:
        threshold: the norm from which on a step is abnormal, over 0; None: switched off.
    """

    __slots__ = ("_records", "threshold")

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and not threshold > 0:
            raise ValueError(f"a threshold of the gradient norm is over 0, not {threshold}")
        self.threshold = threshold
        self._records: dict[int, tuple[float, ...]] = {}

    def observe(self, step: int, norm: float) -> Finding | None:
        """Take in the norm of a step, each time that the step is computed.

        Args:
            step: its number, counted from the start of the training.
            norm: the global norm before any clipping.
        """
        threshold = self.threshold
        if threshold is None:
            return None
        before = self._records.get(step)
        abnormal = not norm < threshold
        if before is None and not abnormal:
            return None
        self._records[step] = (norm,) if before is None else (before[0], norm)
        if len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]
        if not abnormal:
            return None
        return Finding("norm", step, norm, threshold, math.inf, threshold, step, tolerated=before is not None)

    def records(self) -> dict[int, tuple[float, ...]]:
        """The abnormal steps: the norm before, and the newest one after if the step was computed again."""
        return dict(self._records)


class NormSpike(SpikeDetector):
    """Tells ``norm-nan``, ``norm-spike`` and ``norm-divergence``. See ``SpikeDetector`` for the arguments."""

    __slots__ = ()

    def __init__(
        self,
        *,
        window: int = SPIKE_WINDOW,
        limit: float = SPIKE_LIMIT,
        floor: float = SPIKE_FLOOR,
        warmup_steps: int = WARMUP_STEPS,
        lasting: int = LASTING,
    ) -> None:
        super().__init__("norm", window=window, limit=limit, floor=floor, warmup_steps=warmup_steps, lasting=lasting)
