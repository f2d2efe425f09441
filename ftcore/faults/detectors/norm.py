"""Detectors of the global gradient norm: a fixed threshold, or a spike above its recent values.

``NormThreshold`` is for a step that is computed again (MindSpore's TRE, whose default threshold is 3.0). Findings over
all computations of one step:

| computation of a step | at or over the threshold | finding |
|---|---|---|
| the first | no | none |
| the first | yes | ``norm``: compute the step again |
| one after a finding | no | none: the remedy helped |
| one after a finding | yes | ``norm``, tolerated: continue |

A norm that is not a number is over every threshold. Report only norms of gradients that would be applied: a step that a
loss scaler skips overflows by design.

``NormSpike`` follows the rules of ``spike``. Norms vary far more than losses: in healthy public runs single steps reach
three times the median. With its limit of 10 and its floor of 0.4, a norm below five times the median is never a spike.
"""

import math

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.spike import SpikeDetector

STEPS_MAX = 1024
"""Most abnormal steps that are kept, the newest ones."""

SPIKE_WINDOW = 40
SPIKE_LIMIT = 10.0
SPIKE_FLOOR = 0.4
WARMUP_STEPS = 100
LASTING = 10


class NormThreshold:
    """A gradient norm at or over a fixed threshold.

    Args:
        threshold: least norm that is abnormal, over 0; None: off.
    """

    __slots__ = ("_abnormal", "threshold")

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and not threshold > 0:
            raise ValueError(f"threshold of the gradient norm: expected a number over 0, found {threshold}")
        self.threshold = threshold
        self._abnormal: dict[int, None] = {}
        """The steps with a finding, in the order of their first one."""

    def observe(self, step: int, norm: float) -> Finding | None:
        """Check the norm of a step; call it each time that the step is computed.

        Args:
            step: its number, counted from the start of the training.
            norm: the global norm before any clipping.
        """
        threshold = self.threshold
        if threshold is None or norm < threshold:
            return None
        tolerated = step in self._abnormal
        self._abnormal[step] = None
        if len(self._abnormal) > STEPS_MAX:
            del self._abnormal[next(iter(self._abnormal))]
        return Finding("norm", step, norm, threshold, math.inf, threshold, step, tolerated=tolerated)


class NormSpike(SpikeDetector):
    """Detects ``norm-nan``, ``norm-spike`` and ``norm-divergence``. See ``SpikeDetector`` for the arguments."""

    __slots__ = ()

    def __init__(self, *, limit: float = SPIKE_LIMIT, warmup_steps: int = WARMUP_STEPS) -> None:
        super().__init__(
            "norm", window=SPIKE_WINDOW, limit=limit, floor=SPIKE_FLOOR, warmup_steps=warmup_steps, lasting=LASTING
        )
