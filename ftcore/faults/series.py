"""Numbers that a training prints about itself, when they are all there is: loss, gradient norm, time per iteration.

For a text that came without its job, as to ``ftctl classify``; a running job has the detectors, which know its history.
Numbers stand behind their name (``loss: 2.31``, ``"loss": "2.31"``) or in the column of a table (commas, tabs, bars,
blanks) below it. A few lines are a thin ground, so the bounds are wide, and any other evidence goes first.
"""

import itertools
import math
import re
import statistics

import attrs

POINTS_MAX = 256
"""Kept of each series: the first half of them, and the newest."""
POINTS_MIN = 3
"""Two will do where the rise needs no other sign."""
LOSS_RISE = 1.15
"""Of a loss to the lowest before it; together with a gradient norm that grows as well, or over 1.5 alone."""
LOSS_RISE_ALONE = 1.5
NORM_RISE = 3.0
NORM_RISE_ALONE = 20.0
LOSS_RISE_WITH_NORM = 1.05
NORM_RISE_WITH_LOSS = 5.0
"""A small rise of the loss in the very lines in which the gradient norm leaves its range is the start of a spike."""
BACK_TO_NORMAL = 1.1
SHIFT_POINTS_MIN = 6
"""Points before a rise, from which their spread can be told."""
SHIFT_SPREADS = 10.0
"""Robust z of the public labels of loss spikes (ten and more is one, six to ten is not scored)."""
SHIFT_RISE = 1.04
"""And at least this much of the level before, however quiet it was."""
MAD_TO_SIGMA = 1.4826
SLOWER_POINTS_MIN = 5
SCALE_FALL = 16.0
"""Of the loss scale: four halvings in a row are no usual search for the largest scale that fits."""
SLOWER = 1.04
"""Of the last iterations to the first: over thousands of devices an iteration's time varies by less than 1 %."""
SKIPPED_AT_ONCE = 10
"""Within one report."""
SKIPPED_MIN = 3
"""Iterations left out in a row: the search for a loss scale takes fewer once a training runs."""
CELLS_MAX = 64

_NUMBER = r"([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?)"
_IS = r"['\"]?\s{0,4}[:=|]?\s{0,4}['\"]?"
_LOSS = re.compile(
    rf"(?i:\b\w{{0,40}}loss(?:[_/ ](?:value|avg|mean|train|step|epoch))?|\b(?:ppl|perplexity))\b{_IS}{_NUMBER}"
)
_NORM = re.compile(rf"(?i:\b\w{{0,20}}g(?:rad(?:ient)?)?s?[_ ]?norm|\bnorm){_IS}{_NUMBER}")
_TIME = re.compile(
    rf"(?:elapsed time per iteration|(?:step|iter|iteration|batch)[ _]time(?:_m?s)?|time per (?:step|iteration))"
    rf"(?: \(m?s\))?{_IS}{_NUMBER}"
)
_RATE = re.compile(
    rf"(?i:\b(?:TFLOPs?|tokens per second|samples per second|tokens?[/_]s(?:ec)?|samples?[/_]s(?:ec)?|wps|tps))\b"
    rf"{_IS}{_NUMBER}"
)
_SCALE = re.compile(rf"\bloss[ _]scale\w{{0,4}}\b(?: to )?{_IS}{_NUMBER}")
_SKIPPED = re.compile(rf"\bnumber of skipped iterations{_IS}{_NUMBER}")
_WORDS_OF = ("oss", "orm", "time", "scale", "ppl", "erplexity", "FLOP", "/s", "_s", "ps", " per ")
_CELL = re.compile(rf"{_NUMBER}|[+-]?(?:nan|inf)")
_RULER = re.compile(r"[-+|:= ]{3,}")
_WORDS = re.compile(r"[^a-z0-9]+")
_LOSS_COLUMNS = ("loss", "train_loss", "training_loss", "lm_loss", "loss_train", "val_loss", "validation_loss")
_NORM_COLUMNS = ("grad_norm", "gnorm", "gradient_norm", "norm")


@attrs.frozen
class Curve:
    """What a series of lines shows.

    Args:
        kind: ``spike``, ``recovered``, ``not-finite``, ``scale``, ``skipped``, ``slower`` or empty.
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
    rate: list[float] = attrs.field(factory=list)
    scale: list[float] = attrs.field(factory=list)
    skipped: list[float] = attrs.field(factory=list)
    not_finite: int = 0
    _columns: tuple[str, ...] = ()

    def add(self, line: str) -> None:
        """Take a line's numbers, if it has any."""
        head = line[:2000]
        if self._columns and self._row(head):
            return
        if not any(word in head for word in _WORDS_OF):
            return
        if "oss" in head and self._head(head):
            return
        for word, pattern, kept in (
            ("oss" if "oss" in head else "p", _LOSS, self.loss),
            ("orm", _NORM, self.norm),
            ("scale", _SCALE, self.scale),
            ("time", _TIME, self.time),
            ("", _RATE, self.rate),
            ("skipped", _SKIPPED, self.skipped),
        ):
            found = pattern.search(head) if word in head else None
            if found is not None:
                _keep(kept, float(found[1]))

    def read(self) -> Curve:
        """What they show by themselves."""
        loss = self.loss
        if self.not_finite and loss:
            return Curve("not-finite", f"loss {loss[0]:g}, then not finite")
        if len(loss) > 1 and loss[0] > 0:
            before = self._left_at()
            if before > 0:
                told = f"loss {loss[0]:g}, at its highest {max(loss):g}, at the end {loss[-1]:g}"
                return Curve("recovered" if loss[-1] <= BACK_TO_NORMAL * before else "spike", told)
        if not loss and self._swell() >= NORM_RISE_ALONE:
            return Curve("spike", f"gradient norm {self.norm[0]:g}, at its highest {max(self.norm):g}")
        if len(self.scale) >= POINTS_MIN and self.scale[-1] <= max(self.scale) / SCALE_FALL:
            return Curve("scale", f"loss scale {max(self.scale):g}, at the end {self.scale[-1]:g}")
        last = self.skipped[-SKIPPED_MIN:]
        if (len(last) == SKIPPED_MIN and all(last)) or (last and last[-1] >= SKIPPED_AT_ONCE):
            return Curve("skipped", f"each of the last {SKIPPED_MIN} reports or more tells of iterations left out")
        return self._slower()

    def _left_at(self) -> float:
        """The loss from which it left its course; 0 if it did not."""
        loss = self.loss
        rise, before = _rise(loss)
        swell = self._swell()
        both = (rise >= LOSS_RISE and swell >= NORM_RISE) or (
            rise >= LOSS_RISE_WITH_NORM and swell >= NORM_RISE_WITH_LOSS
        )
        if rise >= LOSS_RISE_ALONE or both or swell >= NORM_RISE_ALONE:
            return before
        return _shift(loss)

    def _swell(self) -> float:
        """The highest gradient norm to the first; 0 if there are too few."""
        norm = self.norm
        return max(norm) / norm[0] if len(norm) >= POINTS_MIN and norm[0] > 0 else 0.0

    def _slower(self) -> Curve:
        inverse = [1 / value for value in self.rate] if all(self.rate) else []
        for name, time in (("time per iteration", self.time), ("time per unit of work", inverse)):
            if len(time) < SLOWER_POINTS_MIN:
                continue
            fast, slow = min(time[:2]), min(time[-2:])
            if fast > 0 and slow / fast >= SLOWER and max(time[:2]) / fast < 1 + (SLOWER - 1) / 2:
                return Curve("slower", f"{name} {fast:g}, at the end {slow:g}")
        return Curve()

    def _head(self, line: str) -> bool:
        """Whether the line is a table's head with a column of losses."""
        cells = [_WORDS.sub("_", cell.lower()).strip("_") for cell in _cells(line)]
        if len(cells) < 2 or not set(cells) & set(_LOSS_COLUMNS) or any(_CELL.fullmatch(cell) for cell in cells):
            return False
        self._columns = tuple(cells)
        return True

    def _row(self, line: str) -> bool:
        """Whether the line is one of a table below its head; if so its numbers are taken."""
        cells = _cells(line)
        if len(cells) != len(self._columns):
            return _RULER.fullmatch(line.strip()) is not None
        for names, kept in ((_LOSS_COLUMNS, self.loss), (_NORM_COLUMNS, self.norm)):
            at = next((self._columns.index(name) for name in names if name in self._columns), -1)
            if at < 0 or _CELL.fullmatch(cells[at].lower()) is None:
                continue
            value = float(cells[at])
            if math.isfinite(value):
                _keep(kept, value)
            elif kept is self.loss:
                self.not_finite += 1
        return True


def _cells(line: str) -> list[str]:
    """A row of a table, cut where its writer cut it."""
    text = line.strip()
    for mark in "\t|,;":
        if mark in text:
            return [cell.strip() for cell in text.strip(mark).split(mark, CELLS_MAX)]
    return text.split(None, CELLS_MAX)


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


def _shift(loss: list[float]) -> float:
    """The level from which a quiet loss rose by far more than it varies, twice in a row at least; 0 if it did not."""
    base = loss[: max(SHIFT_POINTS_MIN, len(loss) // 2)]
    if len(base) < SHIFT_POINTS_MIN or len(loss) < len(base) + 2:
        return 0.0
    level = statistics.median(base)
    spread = MAD_TO_SIGMA * statistics.median(abs(value - level) for value in base)
    bound = max(level + SHIFT_SPREADS * spread, SHIFT_RISE * level)
    rest = loss[len(base) :]
    high = any(a > bound and b > bound for a, b in itertools.pairwise(rest))
    return level if high and level > 0 else 0.0
