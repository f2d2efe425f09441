"""Numbers that a training prints about itself, when they are all there is: loss, gradient norm, time per iteration.

For a text that came without its job, as to ``ftctl classify``; a running job has the detectors, which know its history.
A few lines are a thin ground, so the bounds are wide, and any other evidence goes first.
"""

import re
import statistics

import attrs

POINTS_MAX = 256
"""Kept of each series: the first half of them, and the newest."""
POINTS_MIN = 4
LOSS_RISE = 1.3
"""Of the highest loss to the first; together with a gradient norm that grows as well, or over 1.5 alone."""
LOSS_RISE_ALONE = 1.5
NORM_RISE = 3.0
BACK_TO_NORMAL = 1.1
SLOWER = 1.04
"""Of the last iterations to the first: over thousands of devices an iteration's time varies by less than 1 %."""

_NUMBER = r"([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?)"
_LOSS = re.compile(rf"\b(?:lm |train_?)?loss\b['\"]?\s{{0,4}}[:=]?\s{{0,4}}{_NUMBER}")
_NORM = re.compile(rf"\bgrad(?:ient)?[ _]norm['\"]?\s{{0,4}}[:=]?\s{{0,4}}{_NUMBER}")
_TIME = re.compile(rf"elapsed time per iteration \(m?s\):\s{{0,4}}{_NUMBER}")


@attrs.frozen
class Curve:
    """What a series of lines shows.

    Args:
        kind: ``spike``, ``recovered``, ``slower`` or empty.
        told: in words.
    """

    kind: str = ""
    told: str = ""


@attrs.define
class Series:
    """Collects the numbers, line by line."""

    loss: list[float] = attrs.field(factory=list)
    norm: list[float] = attrs.field(factory=list)
    time: list[float] = attrs.field(factory=list)

    def add(self, line: str) -> None:
        """Take a line's numbers, if it has any."""
        head = line[:2000]
        if "loss" not in head and "norm" not in head and "elapsed" not in head:
            return
        for pattern, kept in ((_LOSS, self.loss), (_NORM, self.norm), (_TIME, self.time)):
            found = pattern.search(head)
            if found is not None:
                kept.append(float(found[1]))
                if len(kept) > POINTS_MAX:
                    del kept[POINTS_MAX // 2]

    def read(self) -> Curve:
        """What they show by themselves."""
        loss, norm, time = self.loss, self.norm, self.time
        if len(loss) >= POINTS_MIN and loss[0] > 0:
            rise = max(loss) / statistics.median(loss[: max(2, len(loss) // 4)])
            swell = max(norm) / norm[0] if len(norm) >= POINTS_MIN and norm[0] > 0 else 0.0
            if rise >= LOSS_RISE_ALONE or (rise >= LOSS_RISE and swell >= NORM_RISE):
                told = f"loss {loss[0]:g}, at its highest {max(loss):g}, at the end {loss[-1]:g}"
                return Curve("recovered" if loss[-1] <= BACK_TO_NORMAL * loss[0] else "spike", told)
        if len(time) >= POINTS_MIN:
            before, after = min(time[:2]), min(time[-2:])
            if before > 0 and after / before >= SLOWER and max(time[:2]) / before < 1 + (SLOWER - 1) / 2:
                return Curve("slower", f"time per iteration {before:g}, at the end {after:g}")
        return Curve()
