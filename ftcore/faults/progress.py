"""Finds a hang in a text by the steps and time stamps of its lines.

There are three signs: the same step is reported repeatedly while time passes; time passes without a line or a step
after many regular ones; all ranks begin to set up a communicator but not all complete it. Any other evidence takes
precedence. House rules: memory is bounded; time comes from the lines only.
"""

import itertools
import re
import statistics
from datetime import UTC, datetime

import attrs

HEAD_CHARS = 240
CLOCK_CHARS = 100
"""A line's time stamp is at its start, perhaps after a host or a rank."""
STEPS_MAX = 512
"""Newest lines with a step that are kept."""
SPEAKERS_MAX = 1024
SAME_MIN = 3
"""Least lines with the same step for a hang: a step may be reported twice."""
SAME_SECONDS_MIN = 60.0
GAP_LONG_SECONDS = 1800.0
"""Least gap between lines without steps: the default timeout of gloo, and of NCCL before PyTorch 2.2."""
LINES_AFTER_MAX = 3
"""Most lines after a gap: more lines mean that the training continued."""
GAP_SECONDS_MIN = 600.0
"""Least gap between steps: PyTorch's default timeout for NCCL collectives."""
TIMES_THE_USUAL = 10.0
"""Least gap as a multiple of the usual time between two steps."""

SET_UP_MIN = 8
"""Least NCCL lines about a set-up: fewer may be an excerpt."""
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
class StepLine:
    """A line with a step.

    Args:
        step: the step.
        clock: the line's time stamp in seconds; NaN: none.
    """

    step: int
    clock: float


@attrs.define
class ProgressCollector:
    """Collects steps and time stamps, line by line."""

    _marks: dict[str, list[StepLine]] = attrs.field(factory=dict)
    _clocks: list[float] = attrs.field(factory=list)
    _set_up: int = 0
    _began: int = 0
    _completed: int = 0
    _last: float = float("nan")
    _last_has_step: bool = False

    def add(self, line: str, speaker: str) -> None:
        """Read a line.

        Args:
            line: the line.
            speaker: the rank, task or host that wrote it; empty: not known.
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
        if step < 0 or (speaker not in self._marks and len(self._marks) >= SPEAKERS_MAX):
            return
        marks = self._marks.setdefault(speaker, [])
        marks.append(StepLine(step, clock))
        if len(marks) > STEPS_MAX:
            del marks[0]

    def read(self) -> tuple[str, str]:
        """Return a description of the hang, and the rank, task or host that is behind all others; both may be empty."""
        stopped = {speaker: text for speaker, marks in self._marks.items() if (text := _repeated_step(marks))}
        if stopped and len(stopped) == len(self._marks):
            steps = {speaker: marks[-1].step for speaker, marks in self._marks.items()}
            behind = [speaker for speaker, step in steps.items() if step == min(steps.values())]
            return next(iter(stopped.values())), behind[0] if len(behind) == 1 < len(steps) else ""
        return self._gap_without_step() or self._gap_without_line() or self._incomplete_set_up(), ""

    @property
    def speakers(self) -> int:
        """Number of ranks, tasks or hosts that report steps."""
        return len(self._marks)

    def _gap_without_step(self) -> str:
        marks = [mark for marks in self._marks.values() for mark in marks if mark.clock == mark.clock]
        if len(marks) <= SAME_MIN or self._last_has_step:
            return ""
        marks.sort(key=lambda mark: mark.clock)
        usual = statistics.median(b.clock - a.clock for a, b in itertools.pairwise(marks))
        gap = self._last - marks[-1].clock
        if gap < max(GAP_SECONDS_MIN, TIMES_THE_USUAL * usual):
            return ""
        return f"a step every {usual:g} s, then {gap:g} s without a step"

    def _gap_without_line(self) -> str:
        """Describe a long gap near the end, after regular lines; empty if there is none."""
        gaps = [b - a for a, b in itertools.pairwise(self._clocks)]
        if len(gaps) <= SAME_MIN:
            return ""
        at = max(range(len(gaps)), key=lambda number: gaps[number])
        if len(gaps) - at > LINES_AFTER_MAX or at < SAME_MIN:
            return ""
        usual = statistics.median(gaps[:at])
        if usual < 0 or gaps[at] < max(GAP_LONG_SECONDS, TIMES_THE_USUAL * usual):
            return ""
        return f"a line every {usual:g} s, then {gaps[at]:g} s without a line"

    def _incomplete_set_up(self) -> str:
        if self._completed == 0 and self._set_up >= SET_UP_MIN and not self._marks:
            return f"{self._set_up} lines about the set-up of a communicator, none about its completion"
        if self._began <= self._completed:
            return ""
        return f"{self._began} ranks begin to set up a communicator, {self._completed} complete it"


def _repeated_step(marks: list[StepLine]) -> str:
    """Describe how often the last step was repeated; empty if not for long, or if that is usual."""
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
    return f"step {tail[-1].step} is reported {run} times over {lasted:g} s"


def _step(head: str) -> tuple[int, float]:
    """Return a line's step and the time of its progress bar; -1 and NaN if there is none."""
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
    """Return the line's time stamp in seconds: date, time of day or elapsed time; NaN if it has none."""
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
