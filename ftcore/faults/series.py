"""Numbers that a training prints about itself, when they are all there is: loss, gradient norm, time per iteration.

For a text that came without its job, as to ``ftctl classify``; a running job has the detectors, which know its history.
A few lines are a thin ground, so the bounds are wide, and any other evidence goes first.
"""

import re

import attrs

POINTS_MAX = 256
"""Kept of each series: the first half of them, and the newest."""
POINTS_MIN = 3
LOSS_RISE = 1.15
"""Of a loss to the lowest before it; together with a gradient norm that grows as well, or over 1.5 alone."""
LOSS_RISE_ALONE = 1.5
NORM_RISE = 3.0
NORM_RISE_ALONE = 20.0
BACK_TO_NORMAL = 1.1
SLOWER_POINTS_MIN = 5
SCALE_FALL = 16.0
"""Of the loss scale: four halvings in a row are no usual search for the largest scale that fits."""
SLOWER = 1.04
"""Of the last iterations to the first: over thousands of devices an iteration's time varies by less than 1 %."""

_NUMBER = r"([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?)"
_LOSS = re.compile(rf"(?i:(?:\b|_)loss)\b['\"]?\s{{0,4}}[:=]?\s{{0,4}}['\"]?{_NUMBER}")
_NORM = re.compile(rf"(?:\b|_)(?:g_?)?norm['\"]?\s{{0,4}}[:=]?\s{{0,4}}{_NUMBER}")
_TIME = re.compile(
    rf"(?:elapsed time per iteration|(?:step|iter|iteration|batch)[ _]time(?:_m?s)?|time per (?:step|iteration))"
    rf"(?: \(m?s\))?['\"]?\s{{0,4}}[:=]?\s{{0,4}}{_NUMBER}"
)


_CELL = re.compile(_NUMBER)
_SCALE = re.compile(rf"\bloss[ _]scale\w{{0,4}}\b['\"]?\s{{0,4}}[:=]?\s{{0,4}}{_NUMBER}")


@attrs.frozen
class Curve:
    """What a series of lines shows.

    Args:
        kind: ``spike``, ``recovered``, ``scale``, ``slower`` or empty.
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
    scale: list[float] = attrs.field(factory=list)
    _columns: dict[str, int] = attrs.field(factory=dict)

    def add(self, line: str) -> None:
        """Take a line's numbers, if it has any."""
        head = line[:2000]
        if "\t" in head:
            self._row(head)
        if "oss" not in head and "norm" not in head and "time" not in head:
            return
        for word, pattern, kept in (
            ("oss", _LOSS, self.loss),
            ("norm", _NORM, self.norm),
            ("scale", _SCALE, self.scale),
            ("time", _TIME, self.time),
        ):
            found = pattern.search(head) if word in head else None
            if found is not None:
                _keep(kept, float(found[1]))

    def read(self) -> Curve:
        """What they show by themselves."""
        loss, norm, time = self.loss, self.norm, self.time
        if len(loss) >= POINTS_MIN and loss[0] > 0:
            rise, before = _rise(loss)
            swell = max(norm) / norm[0] if len(norm) >= POINTS_MIN and norm[0] > 0 else 0.0
            if rise >= LOSS_RISE_ALONE or (rise >= LOSS_RISE and swell >= NORM_RISE) or swell >= NORM_RISE_ALONE:
                told = f"loss {loss[0]:g}, at its highest {max(loss):g}, at the end {loss[-1]:g}"
                return Curve("recovered" if loss[-1] <= BACK_TO_NORMAL * before else "spike", told)
        if len(self.scale) >= POINTS_MIN and 0 < self.scale[-1] <= max(self.scale) / SCALE_FALL:
            return Curve("scale", f"loss scale {max(self.scale):g}, at the end {self.scale[-1]:g}")
        if len(time) >= SLOWER_POINTS_MIN:
            fast, slow = min(time[:2]), min(time[-2:])
            if fast > 0 and slow / fast >= SLOWER and max(time[:2]) / fast < 1 + (SLOWER - 1) / 2:
                return Curve("slower", f"time per iteration {fast:g}, at the end {slow:g}")
        return Curve()

    def _row(self, line: str) -> None:
        """A table's head with a column of losses, or a row below it."""
        cells = [cell.strip().lower() for cell in line.split("\t")]
        if len(cells) > 1 and not any(char.isdigit() for char in line):
            self._columns = {name: cells.index(name) for name in ("loss", "grad_norm") if name in cells}
            return
        for name, kept in (("loss", self.loss), ("grad_norm", self.norm)):
            at = self._columns.get(name, len(cells))
            if at < len(cells) and _CELL.fullmatch(cells[at]):
                _keep(kept, float(cells[at]))


def _keep(kept: list[float], value: float) -> None:
    kept.append(value)
    if len(kept) > POINTS_MAX:
        del kept[POINTS_MAX // 2]


def _rise(loss: list[float]) -> tuple[float, float]:
    """The highest ratio of a loss to the lowest before it, and that lowest."""
    lowest, found, before = loss[0], 1.0, loss[0]
    for value in loss[1:]:
        if lowest > 0 and value / lowest > found:
            found, before = value / lowest, lowest
        lowest = min(lowest, value)
    return found, before
