"""Detector of the loss: not a number, spike, divergence.

The rules are those of ``spike``; this module has the parameters. A window of 40 samples matches a comparison by eye in
a plot, and is short enough to follow a warm-up of the learning rate. Practitioners call a score of 10 or more a spike,
and less than 6 noise (losses have far heavier tails than the normal distribution, for which Iglewicz and Hoaglin
recommend 3.5): the limit is in between. ``benchmarks/spikes.py`` measures the parameters.
"""

from ftcore.faults.detectors.spike import SpikeDetector

WINDOW = 40
LIMIT = 8.0
FLOOR = 0.005
"""With the limit of 8, a loss that exceeds its median by less than 4 % is never a spike."""

WARMUP_STEPS = 100
LASTING = 10


class LossDetector(SpikeDetector):
    """Detects ``loss-nan``, ``loss-spike`` and ``loss-divergence``. See ``SpikeDetector`` for the arguments."""

    __slots__ = ()

    def __init__(
        self,
        *,
        window: int = WINDOW,
        limit: float = LIMIT,
        floor: float = FLOOR,
        warmup_steps: int = WARMUP_STEPS,
        lasting: int = LASTING,
    ) -> None:
        super().__init__("loss", window=window, limit=limit, floor=floor, warmup_steps=warmup_steps, lasting=lasting)
