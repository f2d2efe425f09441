"""Spike detector for one curve: the common rules for loss and gradient norm.

A sample is compared with a sliding window of earlier samples (``robust``): it is *high* if it is at least ``limit``
robust standard deviations above the window's median.

| sample | result |
|---|---|
| not finite | reported at once, always, also in the warm-up |
| high, below ``warmup_steps`` | start-up: not reported, and learned like any other |
| high | reported; opens an episode, or belongs to the open one |
| the ``lasting``-th high one of its episode, and later ones | reported as a divergence: the curve does not recover |
| high, ``window`` more of them | a new level: the window is learned again, the episode ends |
| not high, in an episode | held back; ``CALM`` of them in a row end the episode and are learned, fewer are dropped |
| lower than ever | not reported: a loss is expected to fall |

High samples are never learned, so that a spike does not hide the next one. The median follows slow drift: a straight
line of any slope never reaches a score of 1.5.

The standard deviation has floors. ``floor`` is a fraction of the median, so that a window that is constant, or printed
with few digits, does not cause alarms by its last digit. A window of fewer than ``ENOUGH`` samples does not know its
spread: its whole range then counts as one standard deviation, and the sample must also exceed the median by half. With
fewer than ``FEWEST`` samples, or only zeros, no sample is judged.

Scaling all samples by a positive factor changes no result. Neither does adding a constant, if ``floor`` is 0 and the
window has ``ENOUGH`` samples.
"""

import math
from dataclasses import dataclass, field

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.robust import Window

FEWEST = 3
ENOUGH = 20
"""The median error of the scaled MAD is 18 % for 20 normal samples and 25 % for 10; it is larger for losses."""

SHORT_EXCESS = 0.5
"""Least excess over the median with a short window, as a fraction of the median."""

CALM = 3


@dataclass(slots=True)
class Episode:
    """A run of high samples.

    Args:
        since: step of the first one.
        high: number of high samples.
        aside: the samples after the last high one.
    """

    since: int
    high: int = 0
    aside: list[float] = field(default_factory=list)


class SpikeDetector:
    """Detects samples of one curve that are far too high.

    Args:
        name: prefix of the kinds of its findings: ``NAME-nan``, ``NAME-spike``, ``NAME-divergence``.
        window: number of samples that a new one is compared with.
        limit: least score of a high sample.
        floor: least standard deviation, as a fraction of the median.
        warmup_steps: steps below this number are start-up.
        lasting: number of high samples that make an episode a divergence.
    """

    __slots__ = (
        "_bad_since",
        "_episode",
        "_last",
        "_window",
        "floor",
        "lasting",
        "limit",
        "name",
        "score",
        "warmup_steps",
    )

    def __init__(self, name: str, *, window: int, limit: float, floor: float, warmup_steps: int, lasting: int) -> None:
        if window < FEWEST or not limit > 0 or not floor >= 0 or warmup_steps < 0 or lasting < 1:
            raise ValueError(
                f"expected window >= {FEWEST}, limit > 0, floor >= 0, warmup_steps >= 0, lasting >= 1; found "
                f"{window}, {limit}, {floor}, {warmup_steps}, {lasting}"
            )
        self.name = name
        self.limit = limit
        self.floor = floor
        self.warmup_steps = warmup_steps
        self.lasting = lasting
        self.score = 0.0
        """Score of the last sample: robust standard deviations above the median; 0: it was not judged."""
        self._window = Window(window)
        self._episode: Episode | None = None
        self._bad_since: int | None = None
        self._last: int | None = None

    def observe(self, step: int, value: float) -> Finding | None:
        """Check the sample of a step.

        Args:
            step: its number, counted from the start of the training. If it is not above the last one, the training was
                rolled back: the window is kept, the episode ends.
            value: the sample.
        """
        if self._last is not None and step <= self._last:
            self._end_episode()
            self._bad_since = None
        self._last = step
        if not math.isfinite(value):
            self.score = 0.0
            self._bad_since = step if self._bad_since is None else self._bad_since
            usual = self._window.median() if len(self._window) else math.nan
            return Finding(f"{self.name}-nan", step, value, usual, math.inf, self.limit, self._bad_since)
        self._bad_since = None
        middle, sigma = self._level()
        excess = value - middle
        self.score = _ratio(excess, sigma)
        if step < self.warmup_steps or sigma <= 0 or excess < self.limit * sigma:
            self._learn(value)
            return None
        return self._high(step, value, middle)

    def _level(self) -> tuple[float, float]:
        """Return the window's median and its standard deviation with floors; a deviation of 0: it cannot judge."""
        window = self._window
        count = len(window)
        if count < FEWEST:
            return 0.0, 0.0
        middle, sigma = window.median(), window.sigma()
        if sigma <= 0 and middle == 0:
            return middle, 0.0
        sigma = max(sigma, self.floor * abs(middle))
        if count < min(ENOUGH, window.size):
            sigma = max(sigma, window.spread(), SHORT_EXCESS / self.limit * abs(middle))
        return middle, sigma

    def _high(self, step: int, value: float, middle: float) -> Finding:
        episode = self._episode
        if episode is None:
            episode = self._episode = Episode(step)
        episode.aside.clear()  # the curve had not recovered: a few lower samples are not its normal level
        episode.high += 1
        kind = "divergence" if episode.high >= self.lasting else "spike"
        finding = Finding(f"{self.name}-{kind}", step, value, middle, self.score, self.limit, episode.since)
        if episode.high >= self.lasting + self._window.size:
            self._window.clear()
            self._episode = None
        return finding

    def _learn(self, value: float) -> None:
        episode = self._episode
        if episode is None:
            self._window.push(value)
            return
        episode.aside.append(value)
        if len(episode.aside) >= CALM:
            self._end_episode()

    def _end_episode(self) -> None:
        if self._episode is not None:
            for past in self._episode.aside:
                self._window.push(past)
            self._episode = None


def _ratio(excess: float, sigma: float) -> float:
    if sigma <= 0:
        return 0.0
    score = excess / sigma
    return math.inf if math.isnan(score) else score
