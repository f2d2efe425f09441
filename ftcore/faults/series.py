"""Finds loss spikes and slowdowns in the numbers of a text: loss, gradient norm, time per iteration.

For a text without its job, as for ``ftctl classify``; a running job has the detectors, which know its history. A number
follows its name (``loss: 2.31``, ``"loss": "2.31"``) or is in the column of a table (commas, tabs, bars, blanks) below
the name. Few lines are weak evidence, so the bounds are wide, and any other evidence takes precedence.
"""

import itertools
import math
import re
import statistics

import attrs

POINTS_MAX = 256
"""Points kept of each series: the first half of them, and the newest."""
POINTS_MIN = 3
"""Two points are enough if the rise alone is evidence."""
LOSS_RISE_ALONE = 1.5
"""Least ratio of a loss to the lowest before it."""
TIMES_THE_NOISE = 4.0
"""Least ratio of such a rise to the usual one from point to point, as logarithms: small batches make a noisy loss."""
NORM_RISE_ALONE = 8.0
LOSS_RISE_WITH_NORM = 1.03
NORM_RISE_WITH_LOSS = 3.0
"""A small rise of the loss together with a large rise of the gradient norm is the start of a spike."""
BACK_TO_NORMAL = 1.1
DRIFT_POINTS_MIN = 5
"""Consecutive rising points: one of 120 such series rises by chance."""
DRIFT_RISE = 1.05
ZEROS_MIN = 2
"""Repeated losses of exactly 0: some trainers print 0 for a loss that is not finite."""
NOISE_POINTS_MIN = 8
SHIFT_POINTS_MIN = 6
"""Least points before a rise to know their spread."""
SHIFT_SPREADS = 10.0
"""Robust z-score of the public labels of loss spikes (10 and above is a spike, 6 to 10 is not scored)."""
SHIFT_RISE = 1.04
"""Least ratio to the level before, however small its spread was."""
MAD_TO_SIGMA = 1.4826
ROWS_MIN = 5
"""Least rows of a table without a header, each an increasing step and one or two numbers."""
OTHERS_MIN = 3
SLOWER_THAN_OTHERS = 1.5
"""Least ratio of one time to the median of all: the bound for stragglers in health checks of large jobs."""
SLOWER_POINTS_MIN = 5
TIMES_AMONG = 3.0
"""Least ratio of a slowdown to the variation of the times before it."""
MUCH_SLOWER = 1.2
"""As ``SLOWER``, for fewer points."""
SCALE_FALL = 8.0
"""Fall of the loss scale: three halvings in a row are not the usual search for the largest scale."""
SLOWER = 1.03
"""Least ratio of the shortest late iteration to the longest before; on thousands of devices they vary by under 1 %."""
SKIPPED_AT_ONCE = 10
"""Skipped iterations in one report."""
SKIPPED_MIN = 3
"""Consecutive reports with skipped iterations: the search for a loss scale causes fewer once training runs."""
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
"""A name at the end of a wrapped line: its number begins the next line."""
_SKIPPED = re.compile(rf"\bnumber of skipped iterations{_IS}{_NUMBER}")
_CELL = re.compile(rf"{_NUMBER}|[+-]?(?:nan|inf)")
_RULER = re.compile(r"[-+|:= ]{3,}")
_WORDS = re.compile(r"[^a-z0-9]+")
_ROW = re.compile(rf"\s*(\d{{1,12}})[\t ,;|]+{_NUMBER}(?:[\t ,;|]+{_NUMBER})?\s*")


@attrs.frozen
class Curve:
    """The finding in a series of lines.

    Args:
        kind: ``spike``, ``recovered``, ``not-finite``, ``scale``, ``skipped``, ``overflow``, ``slower`` or empty.
        summary: the finding as text.
        speaker: the rank, task or host that is slower than the others; empty: none.
    """

    kind: str = ""
    summary: str = ""
    speaker: str = ""


@attrs.define
class Series:
    """Collects the numbers, line by line."""

    loss: list[float] = attrs.field(factory=list)
    norm: list[float] = attrs.field(factory=list)
    time: list[float] = attrs.field(factory=list)
    rate: list[float] = attrs.field(factory=list)
    scale: list[float] = attrs.field(factory=list)
    skipped: list[float] = attrs.field(factory=list)
    time_of: dict[str, float] = attrs.field(factory=dict)
    rows: list[tuple[int, float]] = attrs.field(factory=list)
    not_finite: int = 0
    _columns: tuple[str, ...] = ()
    _begun: str = ""

    def add(self, line: str, speaker: str = "") -> None:
        """Read a line's numbers, if it has any.

        Args:
            line: the line.
            speaker: the rank, task or host that wrote it; empty: not known.
        """
        head = line[:LINE_CHARS]
        row = _ROW.fullmatch(head) if head[:1].isdigit() or head[:1] == " " else None
        if row is not None and len(self.rows) < POINTS_MAX:
            self.rows.append((int(row[1]), float(row[2])))
        if self._columns and self._read_row(head):
            return
        low = self._begun + head.lower()
        begun = _BEGUN.search(low, max(0, len(low) - 80)) if low.rstrip().endswith((":", "=")) else None
        self._begun = begun[0] + " " if begun is not None else ""
        has_loss = "loss" in low
        if has_loss and ":" not in head and "=" not in head and self._read_header(low):
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
            if found is not None and speaker and (speaker in self.time_of or len(self.time_of) < POINTS_MAX):
                self.time_of[speaker] = float(found[1])
            if "{" in low:
                self._times_of_many(low)
        if "skipped" in low:
            _take(_SKIPPED.search(low), self.skipped)
        if any(word in low for word in _RATE_WORDS):
            _take(_RATE.search(low) or ("/s" in low and _STEPS_PER.search(low)) or None, self.rate)
        if "s/" in low:
            _take(_PER_STEP.search(low), self.time)

    def read(self) -> Curve:
        """Return the finding of the numbers so far."""
        loss = self.loss or self._losses_without_header()
        if self.not_finite and loss:
            return Curve("not-finite", f"loss {loss[0]:g}, then not finite")
        if len(loss) > ZEROS_MIN and not any(loss[-ZEROS_MIN:]):
            return Curve("not-finite", f"loss {loss[0]:g}, then exactly 0")
        if len(loss) > 1 and loss[0] > 0:
            before = self._level_before_spike(loss)
            if before > 0:
                summary = f"loss {loss[0]:g}, at its highest {max(loss):g}, at the end {loss[-1]:g}"
                back = loss[-1] <= min(BACK_TO_NORMAL * before, (before + max(loss)) / 2)
                calm = len(self.norm) < POINTS_MIN or self.norm[-1] <= max(self.norm) / 2
                return Curve("recovered" if back and calm else "spike", summary)
            if self._recovers(loss):
                return Curve("recovered", f"loss {loss[0]:g} at first, at the end {loss[-1]:g}")
        if not loss and self._norm_rise() >= NORM_RISE_ALONE:
            return Curve("spike", f"gradient norm {self.norm[0]:g}, at its highest {max(self.norm):g}")
        if len(self.scale) >= POINTS_MIN and self.scale[-1] <= max(self.scale) / SCALE_FALL:
            return Curve("scale", f"loss scale {max(self.scale):g}, at the end {self.scale[-1]:g}")
        last = self.skipped[-SKIPPED_MIN:]
        if (len(last) == SKIPPED_MIN and all(last)) or (last and last[-1] >= SKIPPED_AT_ONCE):
            return Curve("skipped", f"at least the last {SKIPPED_MIN} reports have skipped iterations")
        return self._slower()

    def _losses_without_header(self) -> list[float]:
        """Return the first numbers of a table without a header, if its steps increase from row to row."""
        steps = [step for step, _ in self.rows]
        grow = len(steps) >= ROWS_MIN and all(a < b for a, b in itertools.pairwise(steps))
        return [value for _, value in self.rows] if grow else []

    def _times_of_many(self, low: str) -> None:
        """Read a line that lists times by node or rank, for example ``elapsed: {0: 12.1, 1: 40.3}``."""
        for name, value in _TIMES_OF.findall(low[low.index("{") :]):
            if name in self.time_of or len(self.time_of) < POINTS_MAX:
                self.time_of[name] = float(value)

    def _level_before_spike(self, loss: list[float]) -> float:
        """Return the loss before a spike; 0: there is no spike."""
        rise, before = _rise(loss)
        norm_rise = self._norm_rise()
        alone = rise >= LOSS_RISE_ALONE and math.log(rise) >= TIMES_THE_NOISE * _noise(loss)
        both = rise >= LOSS_RISE_WITH_NORM and norm_rise >= NORM_RISE_WITH_LOSS
        if alone or both or norm_rise >= NORM_RISE_ALONE:
            return before
        if len(loss) >= DRIFT_POINTS_MIN and loss[-1] >= DRIFT_RISE * loss[0] and loss == sorted(loss):
            return loss[0]
        return _shift(loss)

    def _recovers(self, loss: list[float]) -> bool:
        """Whether the text begins within a spike: gradient norm and loss fall far."""
        norm = self.norm
        fell = len(norm) >= POINTS_MIN and 0 < NORM_RISE_WITH_LOSS * norm[-1] <= norm[0]
        return fell and LOSS_RISE_WITH_NORM * loss[-1] <= loss[0]

    def _norm_rise(self) -> float:
        """Return the highest ratio of a gradient norm to the lowest before it; 0: too few points."""
        norm = self.norm
        return _rise(norm)[0] if len(norm) >= POINTS_MIN and norm[0] > 0 else 0.0

    def _slower(self) -> Curve:
        if len(self.time_of) >= OTHERS_MIN:
            usual = statistics.median(self.time_of.values())
            slowest = max(self.time_of, key=lambda speaker: self.time_of[speaker])
            if 0 < usual * SLOWER_THAN_OTHERS <= self.time_of[slowest]:
                return Curve("slower", f"{slowest} takes {self.time_of[slowest]:g}, the others {usual:g}", slowest)
        inverse = [1 / value for value in self.rate] if min(self.rate, default=0) > TINY else []
        for name, time in (("time per iteration", self.time), ("time per unit of work", inverse)):
            if _stepped_up(time):
                return Curve("slower", f"{name} {time[0]:g}, at the end {time[-1]:g}")
        if any(self.skipped) or any(b < a for a, b in itertools.pairwise(self.scale)):
            return Curve("overflow", "an iteration was skipped, or the loss scale lowered")
        return Curve()

    def _read_header(self, line: str) -> bool:
        """Whether the line is a table's header with a column of losses."""
        cells = [_WORDS.sub("_", cell).strip("_") for cell in _cells(line)]
        if (
            len(cells) < 2
            or not any("loss" in cell.split("_") for cell in cells)
            or any(char.isdigit() for char in line)
        ):
            return False
        self._columns = tuple(cells)
        return True

    def _read_row(self, line: str) -> bool:
        """Whether the line is a table's row; if so, read its numbers."""
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
    """Split a row of a table into cells."""
    text = line.strip()
    for mark in "\t|,;":
        if mark in text:
            return [cell.strip() for cell in text.strip(mark).split(mark, CELLS_MAX)]
    return text.split(None, CELLS_MAX)


def _norm(low: str) -> re.Match[str] | None:
    """Return the norm of the gradient if the line has several; else the first one named just ``norm``."""
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
    """Return the highest ratio of a loss to the lowest before it, and that lowest loss."""
    lowest, found, before = loss[0], 1.0, loss[0]
    for value in loss[1:]:
        if lowest > 0 and value / lowest > found:
            found, before = value / lowest, lowest
        lowest = min(lowest, value)
    return found, before


def _stepped_up(time: list[float]) -> bool:
    """Whether the last times all exceed the earlier ones by more than those vary."""
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
    """Return the median change from point to point, as a logarithm; 0: too few points."""
    changes = [abs(math.log(b / a)) for a, b in itertools.pairwise(loss) if a > 0 and b > 0]
    return statistics.median(changes) if len(changes) >= NOISE_POINTS_MIN else 0.0


def _shift(loss: list[float]) -> float:
    """Return the level before a loss rose, twice in a row at least, by far more than it varies; 0: it did not."""
    base = loss[: max(SHIFT_POINTS_MIN, len(loss) // 2)]
    if len(base) < SHIFT_POINTS_MIN or len(loss) < len(base) + 2:
        return 0.0
    level = statistics.median(base)
    spread = MAD_TO_SIGMA * statistics.median(abs(value - level) for value in base)
    bound = max(level + SHIFT_SPREADS * spread, SHIFT_RISE * level)
    rest = loss[len(base) :]
    high = any(a > bound and b > bound for a, b in itertools.pairwise(rest))
    return level if high and level > 0 else 0.0
