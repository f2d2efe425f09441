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
LOSS_RISE_ALONE = 1.5
"""Of a loss to the lowest before it."""
TIMES_THE_NOISE = 4.0
"""Of such a rise to the usual one from point to point, both as logarithms: small batches make a noisy loss."""
NORM_RISE_ALONE = 8.0
LOSS_RISE_WITH_NORM = 1.03
NORM_RISE_WITH_LOSS = 3.0
"""A small rise of the loss in the very lines in which the gradient norm leaves its range is the start of a spike."""
BACK_TO_NORMAL = 1.1
DRIFT_POINTS_MIN = 5
"""Points that rise one after another: by chance one of 120 such series does."""
DRIFT_RISE = 1.05
ZEROS_MIN = 2
"""A loss that is printed as just 0 again and again: what some trainers print of one that is not finite."""
NOISE_POINTS_MIN = 8
SHIFT_POINTS_MIN = 6
"""Points before a rise, from which their spread can be told."""
SHIFT_SPREADS = 10.0
"""Robust z of the public labels of loss spikes (ten and more is one, six to ten is not scored)."""
SHIFT_RISE = 1.04
"""And at least this much of the level before, however quiet it was."""
MAD_TO_SIGMA = 1.4826
ROWS_MIN = 5
"""Rows of a table without a head, each a growing step and one or two numbers."""
OTHERS_MIN = 3
SLOWER_THAN_OTHERS = 1.5
"""Of one to the median of all: the bound from which health checks of large jobs call a node a straggler."""
SLOWER_POINTS_MIN = 5
TIMES_AMONG = 3.0
"""Of that step up to how much the times before differ among themselves."""
MUCH_SLOWER = 1.2
"""Where there are fewer points."""
SCALE_FALL = 8.0
"""Of the loss scale: three halvings in a row are no usual search for the largest scale that fits."""
SLOWER = 1.03
"""Of the shortest of the last iterations to the longest before; over thousands of devices they vary by under 1 %."""
SKIPPED_AT_ONCE = 10
"""Within one report."""
SKIPPED_MIN = 3
"""Iterations left out in a row: the search for a loss scale takes fewer once a training runs."""
CELLS_MAX = 64
TINY = 1e-9
LINE_CHARS = 2000

_NUMBER = r"([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?)"
_IS = r"['\"]?\s{0,4}[:=|]?\s{0,4}['\"]?"
_LOSS = re.compile(rf"loss(?:[_/ ](?:value|avg|mean|train|step|epoch))?\b{_IS}{_NUMBER}")
_PPL = re.compile(rf"\b(?:ppl|perplexity|nll|bpb|bpc|cross[_ ]?entropy)\b{_IS}{_NUMBER}")
_NORM = re.compile(rf"norm{_IS}{_NUMBER}")
_OF_GRADIENT = re.compile(r"(?:\b|_)g(?:rad(?:ient)?s?)?[_ ]?$")
_TIME = re.compile(
    rf"(?:elapsed time per iteration|(?:step|iter|iteration|batch)[ _]time(?:_m?s)?|time per (?:step|iteration))"
    rf"(?: \(m?s\))?{_IS}{_NUMBER}"
)
_RATE = re.compile(
    rf"\b(?:tflops?|(?:tokens|samples|words) per second|(?:tokens?|samples?)[/_]s(?:ec)?|wps|tps)\b{_IS}{_NUMBER}"
)
_PER_STEP = re.compile(rf"\b{_NUMBER} ?(?:s|sec|ms)/(?:it|iter|step|batch)\b")
_STEPS_PER = re.compile(rf"\b{_NUMBER} ?(?:it|iter|steps?|samples?|tokens?|tok)/s(?:ec)?\b")
_RATE_WORDS = ("flop", "per second", "/s", "_s", "wps", "tps")
_SCALE = re.compile(rf"\bloss[ _]scale\w{{0,4}}\b(?: to )?{_IS}{_NUMBER}")
_TIMES_OF = re.compile(r"['\"]?([\w.-]{1,60})['\"]?: (\d{1,9}\.\d{1,6})")
_BEGUN = re.compile(r"[a-z][a-z _/()]{0,60}['\"]?\s{0,4}[:=]\s{0,4}$")
"""A name at the end of a line that was cut to a width: its number begins the next one."""
_SKIPPED = re.compile(rf"\bnumber of skipped iterations{_IS}{_NUMBER}")
_CELL = re.compile(rf"{_NUMBER}|[+-]?(?:nan|inf)")
_RULER = re.compile(r"[-+|:= ]{3,}")
_WORDS = re.compile(r"[^a-z0-9]+")
_ROW = re.compile(rf"\s*(\d{{1,12}})[\t ,;|]+{_NUMBER}(?:[\t ,;|]+{_NUMBER})?\s*")


@attrs.frozen
class Curve:
    """What a series of lines shows.

    Args:
        kind: ``spike``, ``recovered``, ``not-finite``, ``scale``, ``skipped``, ``overflow``, ``slower`` or empty.
        told: in words.
        who: who is slower than the others, if somebody is.
    """

    kind: str = ""
    told: str = ""
    who: str = ""


@attrs.define
class Series:
    """Collects the numbers, line by line."""

    loss: list[float] = attrs.field(factory=list)
    norm: list[float] = attrs.field(factory=list)
    time: list[float] = attrs.field(factory=list)
    rate: list[float] = attrs.field(factory=list)
    scale: list[float] = attrs.field(factory=list)
    skipped: list[float] = attrs.field(factory=list)
    of: dict[str, float] = attrs.field(factory=dict)
    rows: list[tuple[int, float]] = attrs.field(factory=list)
    not_finite: int = 0
    _columns: tuple[str, ...] = ()
    _begun: str = ""

    def add(self, line: str, who: str = "") -> None:
        """Take a line's numbers, if it has any.

        Args:
            line: the line.
            who: who wrote it; empty if it does not say.
        """
        head = line[:LINE_CHARS]
        row = _ROW.fullmatch(head) if head[:1].isdigit() or head[:1] == " " else None
        if row is not None and len(self.rows) < POINTS_MAX:
            self.rows.append((int(row[1]), float(row[2])))
        if self._columns and self._row(head):
            return
        low = self._begun + head.lower()
        begun = _BEGUN.search(low, max(0, len(low) - 80)) if low.rstrip().endswith((":", "=")) else None
        self._begun = begun[0] + " " if begun is not None else ""
        has_loss = "loss" in low
        if has_loss and ":" not in head and "=" not in head and self._head(low):
            return
        if has_loss or "ppl" in low or "perplexity" in low:
            _take(_LOSS.search(low) or _PPL.search(low), self.loss)
        if "norm" in low:
            _take(_norm(low), self.norm)
        if "scale" in low:
            _take(_SCALE.search(low), self.scale)
        if "time" in low:
            found = _TIME.search(low)
            _take(found, self.time)
            if found is not None and who and (who in self.of or len(self.of) < POINTS_MAX):
                self.of[who] = float(found[1])
            if "{" in low:
                self._times_of_many(low)
        if "skipped" in low:
            _take(_SKIPPED.search(low), self.skipped)
        if any(word in low for word in _RATE_WORDS):
            _take(_RATE.search(low) or ("/s" in low and _STEPS_PER.search(low)) or None, self.rate)
        if "s/" in low:
            _take(_PER_STEP.search(low), self.time)

    def read(self) -> Curve:
        """What they show by themselves."""
        loss = self.loss or self._bare()
        if self.not_finite and loss:
            return Curve("not-finite", f"loss {loss[0]:g}, then not finite")
        if len(loss) > ZEROS_MIN and not any(loss[-ZEROS_MIN:]):
            return Curve("not-finite", f"loss {loss[0]:g}, then just 0")
        if len(loss) > 1 and loss[0] > 0:
            before = self._left_at(loss)
            if before > 0:
                told = f"loss {loss[0]:g}, at its highest {max(loss):g}, at the end {loss[-1]:g}"
                back = loss[-1] <= min(BACK_TO_NORMAL * before, (before + max(loss)) / 2)
                calm = len(self.norm) < POINTS_MIN or self.norm[-1] <= max(self.norm) / 2
                return Curve("recovered" if back and calm else "spike", told)
            if self._comes_back(loss):
                return Curve("recovered", f"loss {loss[0]:g} at first, at the end {loss[-1]:g}")
        if not loss and self._swell() >= NORM_RISE_ALONE:
            return Curve("spike", f"gradient norm {self.norm[0]:g}, at its highest {max(self.norm):g}")
        if len(self.scale) >= POINTS_MIN and self.scale[-1] <= max(self.scale) / SCALE_FALL:
            return Curve("scale", f"loss scale {max(self.scale):g}, at the end {self.scale[-1]:g}")
        last = self.skipped[-SKIPPED_MIN:]
        if (len(last) == SKIPPED_MIN and all(last)) or (last and last[-1] >= SKIPPED_AT_ONCE):
            return Curve("skipped", f"each of the last {SKIPPED_MIN} reports or more tells of iterations left out")
        return self._slower()

    def _bare(self) -> list[float]:
        """The first numbers of a table without a head, if its steps grow from row to row."""
        steps = [step for step, _ in self.rows]
        grow = len(steps) >= ROWS_MIN and all(a < b for a, b in itertools.pairwise(steps))
        return [value for _, value in self.rows] if grow else []

    def _times_of_many(self, low: str) -> None:
        """Take a line that lists times by node or rank, as ``elapsed: {0: 12.1, 1: 40.3}``."""
        for name, value in _TIMES_OF.findall(low[low.index("{") :]):
            if name in self.of or len(self.of) < POINTS_MAX:
                self.of[name] = float(value)

    def _left_at(self, loss: list[float]) -> float:
        """The loss from which it left its course; 0 if it did not."""
        rise, before = _rise(loss)
        swell = self._swell()
        alone = rise >= LOSS_RISE_ALONE and math.log(rise) >= TIMES_THE_NOISE * _noise(loss)
        both = rise >= LOSS_RISE_WITH_NORM and swell >= NORM_RISE_WITH_LOSS
        if alone or both or swell >= NORM_RISE_ALONE:
            return before
        if len(loss) >= DRIFT_POINTS_MIN and loss[-1] >= DRIFT_RISE * loss[0] and loss == sorted(loss):
            return loss[0]
        return _shift(loss)

    def _comes_back(self, loss: list[float]) -> bool:
        """Whether the text begins within a spike: the gradient norm falls far, and the loss with it."""
        norm = self.norm
        fell = len(norm) >= POINTS_MIN and 0 < NORM_RISE_WITH_LOSS * norm[-1] <= norm[0]
        return fell and LOSS_RISE_WITH_NORM * loss[-1] <= loss[0]

    def _swell(self) -> float:
        """The highest ratio of a gradient norm to the lowest before it; 0 if there are too few."""
        norm = self.norm
        return _rise(norm)[0] if len(norm) >= POINTS_MIN and norm[0] > 0 else 0.0

    def _slower(self) -> Curve:
        if len(self.of) >= OTHERS_MIN:
            usual, slowest = statistics.median(self.of.values()), max(self.of, key=lambda who: self.of[who])
            if 0 < usual * SLOWER_THAN_OTHERS <= self.of[slowest]:
                return Curve("slower", f"{slowest} takes {self.of[slowest]:g}, the others {usual:g}", slowest)
        inverse = [1 / value for value in self.rate] if min(self.rate, default=0) > TINY else []
        for name, time in (("time per iteration", self.time), ("time per unit of work", inverse)):
            if _stepped_up(time):
                return Curve("slower", f"{name} {time[0]:g}, at the end {time[-1]:g}")
        if any(self.skipped) or any(b < a for a, b in itertools.pairwise(self.scale)):
            return Curve("overflow", "an iteration was left out, or the loss scale lowered")
        return Curve()

    def _head(self, line: str) -> bool:
        """Whether the line is a table's head with a column of losses."""
        cells = [_WORDS.sub("_", cell).strip("_") for cell in _cells(line)]
        if (
            len(cells) < 2
            or not any("loss" in cell.split("_") for cell in cells)
            or any(char.isdigit() for char in line)
        ):
            return False
        self._columns = tuple(cells)
        return True

    def _row(self, line: str) -> bool:
        """Whether the line is one of a table below its head; if so its numbers are taken."""
        cells = _cells(line)
        if len(cells) != len(self._columns):
            return _RULER.fullmatch(line.strip()) is not None
        for words, kept in (({"loss"}, self.loss), ({"norm", "gnorm"}, self.norm)):
            at = next((n for n, name in enumerate(self._columns) if words & set(name.split("_"))), -1)
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


def _norm(low: str) -> re.Match[str] | None:
    """The gradient's norm, if the line has several; else the first that is told as ``norm`` alone."""
    found = list(_NORM.finditer(low))
    of_gradient = (match for match in found if _OF_GRADIENT.search(low, max(0, match.start() - 12), match.start()))
    alone = (match for match in found if not low[: match.start()][-1:].isalnum() and low[: match.start()][-1:] != "_")
    return next(of_gradient, None) or next(alone, None)


def _take(found: re.Match[str] | None, kept: list[float]) -> None:
    if found is not None:
        _keep(kept, float(found[1]))


def _keep(kept: list[float], value: float) -> None:
    if not math.isfinite(value):
        return
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


def _stepped_up(time: list[float]) -> bool:
    """Whether all of the last times are longer than all before, by more than those differ among themselves."""
    for at in range(2, len(time) - 1):
        before, after = time[:at], time[at:]
        if min(before) <= 0:
            return False
        inner = max(before) / min(before) - 1
        bound = SLOWER - 1 if len(time) >= SLOWER_POINTS_MIN else MUCH_SLOWER - 1
        if min(after) / max(before) - 1 >= max(bound, TIMES_AMONG * inner):
            return True
    return False


def _noise(loss: list[float]) -> float:
    """The median change from point to point, as a logarithm; 0 where there are too few."""
    changes = [abs(math.log(b / a)) for a, b in itertools.pairwise(loss) if a > 0 and b > 0]
    return statistics.median(changes) if len(changes) >= NOISE_POINTS_MIN else 0.0


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
