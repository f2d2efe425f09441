"""Steps and clocks in a text: a training that stands still, told by no line but by what the lines are.

Three signs: the same step over and over while the clock goes on (a heartbeat lives, the training does not), a clock
that goes on long after the last of many regular lines, and communicators that all ranks begin to set up and not all
complete. Any other evidence goes first. House rule: memory is bounded;
a clock is what stands in the line, never the reader's own.
"""

import itertools
import re
import statistics
from datetime import UTC, datetime

import attrs

HEAD_CHARS = 240
CLOCK_CHARS = 100
"""Where a line's clock stands: in front, behind a host or a rank."""
STEPS_MAX = 512
"""Kept of the newest lines with a step."""
SPEAKERS_MAX = 1024
SAME_MIN = 3
"""Lines with one step, from which on it is a standstill: a step may be told by two."""
SAME_SECONDS_MIN = 60.0
GAP_LONG_SECONDS = 1800.0
"""Where lines without steps are all there is: the default of gloo, and of NCCL before PyTorch 2.2."""
LINES_AFTER_MAX = 3
"""Lines behind a gap: more, and it went on."""
GAP_SECONDS_MIN = 600.0
"""What PyTorch waits for a collective of NCCL by default."""
TIMES_THE_USUAL = 10.0
"""Of the time between two steps."""

SET_UP_MIN = 8
"""Lines of NCCL about a set-up: fewer may be a mere excerpt."""
_SET_UP = ("Channel ", "Trees ", "Ring ", "Connected all ", "Using network")

_STEP = re.compile(
    r"(?i)\b(?:global[_ ]?)?(?:step|iter|iteration|update|batch)s?['\"]?\s{0,4}[:=#/]?\s{0,8}(\d{1,12})\b"
)
_STEP_WORDS = ("step", "iter", "update", "batch")
_BAR = re.compile(r"\b(\d{1,12})/\d{1,12} \[(\d{1,4}(?::\d\d){1,2})<")
"""A progress bar: done/all [elapsed<left."""
_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
_CLOCK = re.compile(r"(?:^|[\s\[(])(\d\d):(\d\d):(\d\d)(?=[\s\].,)]|$)")
_ELAPSED = re.compile(r"\b(?:elapsed|uptime|t)\s{0,2}[=:]\s{0,2}(\d{1,9}(?:\.\d{1,6})?)\s?s?\b")


@attrs.frozen
class Mark:
    """A line with a step.

    Args:
        step: the step.
        clock: seconds of whatever clock the line has; NaN if none.
    """

    step: int
    clock: float


@attrs.define
class Progress:
    """Collects steps and clocks, line by line."""

    _marks: dict[str, list[Mark]] = attrs.field(factory=dict)
    _clocks: list[float] = attrs.field(factory=list)
    _set_up: int = 0
    _began: int = 0
    _completed: int = 0
    _last: float = float("nan")
    _last_has_step: bool = False

    def add(self, line: str, who: str) -> None:
        """Take a line.

        Args:
            line: the line.
            who: who wrote it; empty if it does not say.
        """
        head = line[:HEAD_CHARS]
        clock = _clock(head)
        step, bar = _step(head)
        clock = bar if clock != clock else clock
        if clock == clock:
            self._last, self._last_has_step = clock, step >= 0
            self._clocks.append(clock)
            if len(self._clocks) > STEPS_MAX:
                del self._clocks[0]
        if "NCCL INFO" in head:
            self._set_up += any(word in line for word in _SET_UP)
            self._began += "Init START" in line
            self._completed += "Init COMPLETE" in line
        if step < 0 or (who not in self._marks and len(self._marks) >= SPEAKERS_MAX):
            return
        marks = self._marks.setdefault(who, [])
        marks.append(Mark(step, clock))
        if len(marks) > STEPS_MAX:
            del marks[0]

    def read(self) -> tuple[str, str]:
        """In words, how it stands still, and who is behind all others; empty if it does not, or nobody is."""
        still = {who: told for who, marks in self._marks.items() if (told := _same(marks))}
        if still and len(still) == len(self._marks):
            steps = {who: marks[-1].step for who, marks in self._marks.items()}
            behind = [who for who, step in steps.items() if step == min(steps.values())]
            return next(iter(still.values())), behind[0] if len(behind) == 1 < len(steps) else ""
        return self._silent() or self._halted() or self._not_set_up(), ""

    @property
    def voices(self) -> int:
        """How many tell of steps."""
        return len(self._marks)

    def _silent(self) -> str:
        marks = [mark for marks in self._marks.values() for mark in marks if mark.clock == mark.clock]
        if len(marks) <= SAME_MIN or self._last_has_step:
            return ""
        marks.sort(key=lambda mark: mark.clock)
        usual = statistics.median(b.clock - a.clock for a, b in itertools.pairwise(marks))
        gap = self._last - marks[-1].clock
        if gap < max(GAP_SECONDS_MIN, TIMES_THE_USUAL * usual):
            return ""
        return f"a step each {usual:g} s, then {gap:g} s without one"

    def _halted(self) -> str:
        """The last long gap between lines that came regularly before it; empty if there is none."""
        gaps = [b - a for a, b in itertools.pairwise(self._clocks)]
        if len(gaps) <= SAME_MIN:
            return ""
        at = max(range(len(gaps)), key=lambda number: gaps[number])
        if len(gaps) - at > LINES_AFTER_MAX or at < SAME_MIN:
            return ""
        usual = statistics.median(gaps[:at])
        if usual < 0 or gaps[at] < max(GAP_LONG_SECONDS, TIMES_THE_USUAL * usual):
            return ""
        return f"a line each {usual:g} s, then {gaps[at]:g} s without one"

    def _not_set_up(self) -> str:
        if self._completed == 0 and self._set_up >= SET_UP_MIN and not self._marks:
            return f"{self._set_up} lines of a communicator that is set up, none that it is complete"
        if self._began <= self._completed:
            return ""
        return f"{self._began} ranks begin to set up a communicator, {self._completed} complete it"


def _same(marks: list[Mark]) -> str:
    """How long the last step has been told again and again; empty if not long, or if that is usual."""
    tail = [mark for mark in marks if mark.clock == mark.clock]
    if not tail:
        return ""
    run = 0
    while run < len(tail) and tail[-1 - run].step == tail[-1].step:
        run += 1
    lasted = tail[-1].clock - tail[-run].clock
    before = tail[: len(tail) - run]
    changes = [b.clock - a.clock for a, b in itertools.pairwise(before) if a.step != b.step]
    usual = statistics.median(changes) if changes else 0.0
    if run < SAME_MIN or lasted < max(SAME_SECONDS_MIN, TIMES_THE_USUAL * usual):
        return ""
    return f"step {tail[-1].step} is told {run} times over {lasted:g} s"


def _step(head: str) -> tuple[int, float]:
    """The step that a line tells and the clock of its progress bar; -1 and NaN if there is none."""
    if "[" in head and "<" in head:
        bar = _BAR.search(head)
        if bar is not None:
            seconds = 0.0
            for part in bar[2].split(":"):
                seconds = 60 * seconds + int(part)
            return int(bar[1]), seconds
    low = head.lower()
    found = _STEP.search(head) if any(word in low for word in _STEP_WORDS) else None
    return (int(found[1]) if found is not None else -1), float("nan")


def _clock(head: str) -> float:
    """Seconds of the line's clock: a date, a time of day, or what has elapsed; NaN if it has none."""
    front = head[:CLOCK_CHARS]
    is_clock = front.count(":") >= 2
    found = _DATE.search(front) if is_clock and "-" in front else None
    if found is not None:
        try:
            year, month, day, hours, minutes, seconds = map(int, found.groups())
            return datetime(year, month, day, hours, minutes, seconds, tzinfo=UTC).timestamp()
        except ValueError:
            return float("nan")
    elapsed = _ELAPSED.search(head) if "lapsed" in head or "ptime" in head or " t=" in head else None
    if elapsed is not None:
        return float(elapsed[1])
    found = _CLOCK.search(front) if is_clock else None
    if found is not None:
        hours, minutes, seconds = map(int, found.groups())
        return 3600.0 * hours + 60.0 * minutes + seconds
    return float("nan")
