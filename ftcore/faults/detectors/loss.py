"""The loss of a job: not a number, a spike, a divergence.

The rules are those of ``spike``; here stand the figures. A window of 40 samples is what people compare by eye in a plot
and short enough to follow a warm-up of the learning rate. From a score of 10 on practitioners speak of a spike, below 6
of noise (losses have far heavier tails than the normal distribution, whose 3.5 Iglewicz and Hoaglin recommend): the
limit lies between. ``benchmarks/spikes.py`` measures them.
"""

from ftcore.faults.detectors.spike import SpikeDetector

WINDOW = 40
LIMIT = 8.0
FLOOR = 0.005
"""With the limit of 8: a loss that exceeds its median by less than 4 % is no spike, however quiet its past was."""

WARMUP_STEPS = 100
LASTING = 10


class LossDetector(SpikeDetector):
    """Tells ``loss-nan``, ``loss-spike`` and ``loss-divergence``. See ``SpikeDetector`` for the arguments."""

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
