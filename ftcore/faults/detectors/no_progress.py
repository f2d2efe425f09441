"""The deadline of the next step, learned from completed steps.

The time between two steps is usually one step time, but an evaluation, a checkpoint or a first step that compiles takes
far more. The deadline is the completion time of the last step plus an allowance:

| the next step | allowance |
|---|---|
| is the first of a round, or no step time is known yet | ``first_s`` |
| is any other step | ``FACTOR`` times the usual step time |
| is at a long pause that is due | ``LONG_FACTOR`` times the longest of the last ``LONG_KEPT`` pauses, if that is more |
| exceeded its allowance before | ``PATIENCE`` times that allowance |

but at least ``floor_s`` and at most ``cap_s``. The usual step time is the median of the last ``WINDOW`` steps that were
not long pauses. A pause is long if it takes more than ``LONG`` times the usual step time; if most of the recent steps
took that long, that becomes the usual step time. Long pauses are *due* at every step until they are periodic: if the
last three are equally many steps apart, the next one is due from one step before the expected step on. So a hang is
found soon even if each evaluation takes an hour, provided that evaluations are periodic.

Sections of the script (``shm/sections.py``), such as evaluations, are not part of a step's time.

From ``LEARNED_STEPS`` steps on there is a limit as well, beyond which a job without any activity counts as a hang:
``PATIENCE`` times the allowance of an ordinary step, or ``PATIENCE`` times the longest time without any activity after
which the rank went on by itself, if that is more. Long pauses do not raise it: an evaluation is an activity.

A missed deadline is not proof of a hang: the job may just be slower than before. So the same step gets four times the
allowance when it is tried again, and a pause that ends by itself is learned as a long pause.

Times are seconds of one clock that does not stop; the module reads no clock.
"""

import math
from collections import deque

from ftcore.faults.detectors.robust import Window

WINDOW = 64
FACTOR = 10.0
FLOOR_S = 60.0
CAP_S = 3600.0
FIRST_S = 1800.0
"""First steps load data, compile and set up communication; launchers allow half an hour for them."""

LONG = 3.0
LONG_KEPT = 8
LONG_FACTOR = 2.0
PATIENCE = 4.0
LEARNED_STEPS = 20


class NoProgress:
    """Learns step times, and computes the deadline of the next step.

    Args:
        floor_s: least allowance, in seconds.
        cap_s: largest allowance, at least ``floor_s``; that of a first step may be larger.
        first_s: allowance of a round's first step, in seconds.
    """

    __slots__ = (
        "_covered_s",
        "_idle_s",
        "_last",
        "_longs",
        "_made",
        "_overdue",
        "_steps",
        "cap_s",
        "first_s",
        "floor_s",
    )

    def __init__(self, *, floor_s: float = FLOOR_S, cap_s: float = CAP_S, first_s: float = FIRST_S) -> None:
        if not 0 < floor_s <= cap_s < math.inf or not 0 < first_s < math.inf:
            raise ValueError(f"expected 0 < floor_s <= cap_s, first_s > 0; found {floor_s}, {cap_s}, {first_s}")
        self.floor_s = floor_s
        self.cap_s = cap_s
        self.first_s = first_s
        self._steps = Window(WINDOW)
        self._longs: deque[tuple[int, float]] = deque(maxlen=LONG_KEPT)
        self._last: tuple[int, float, bool] | None = None
        """Number and time of the last step; False: a round began there instead."""
        self._covered_s = 0.0
        self._made = 0
        self._idle_s = 0.0
        self._overdue: tuple[int, int] | None = None
        """The overdue step, and how many times it was overdue."""

    def begin(self, time: float, step: int = 0) -> None:
        """Begin a round.

        Args:
            time: now, in seconds.
            step: the last completed step.
        """
        self._last = (step, time, False)
        self._covered_s = 0.0

    def observe(self, step: int, time: float, covered_s: float = 0.0) -> None:
        """Learn from a completed step.

        Args:
            step: its number. If several steps were completed since the last call, the time is divided among them. If
                the number is not above the last one, the training was rolled back, and no time is learned.
            time: its completion time, in seconds.
            covered_s: seconds of all sections of the process so far; they are no part of a step's time.
        """
        last, covered_s, self._covered_s = self._last, max(0.0, covered_s - self._covered_s), covered_s
        if last is not None and last[2] and step > last[0] and time >= last[1]:
            self._made += step - last[0]
            self._learn(step, step - last[0], max(0.0, time - last[1] - covered_s))
        self._last = (step, time, True)
        if self._overdue is not None and step > self._overdue[0]:
            self._overdue = None

    def excuse(self, seconds: float) -> None:
        """Postpone the deadline by the seconds for which the machine or the observer was suspended."""
        if self._last is not None:
            step, time, made = self._last
            self._last = (step, time + seconds, made)

    def usual_s(self) -> float | None:
        """Return the usual step time in seconds; None: no step time is known yet."""
        return self._steps.median() if len(self._steps) else None

    def deadline(self) -> float | None:
        """Return the deadline of the next step, in seconds of the observer's clock; None: no round has begun."""
        if self._last is None:
            return None
        step, time, made = self._last
        allowance = self._allowance(step + 1) if made else self.first_s
        if self._overdue is not None and self._overdue[0] == step + 1:
            allowance *= PATIENCE ** self._overdue[1]
        return time + min(allowance, max(self.cap_s, 0.0 if made else self.first_s))

    def limit_s(self) -> float | None:
        """Return the seconds after the last step from which on a job without activity hangs; None: not learned yet."""
        usual = self.usual_s()
        if usual is None or self._made < LEARNED_STEPS:
            return None
        again = self._overdue[1] - 1 if self._overdue is not None else 0
        return PATIENCE ** (1 + again) * max(FACTOR * usual, self._idle_s, self.floor_s)

    def idled(self, seconds: float) -> None:
        """Take in a time without any activity, outside of collectives, after which the rank went on by itself."""
        self._idle_s = max(self._idle_s, seconds)

    def overdue(self) -> None:
        """Record that the deadline was missed and reported: the step gets more time when it is tried again."""
        assert self._last is not None, "nothing can be overdue before a round has begun"
        due = self._last[0] + 1
        times = self._overdue[1] + 1 if self._overdue is not None and self._overdue[0] == due else 1
        self._overdue = (due, times)

    def _learn(self, step: int, steps: int, seconds: float) -> None:
        usual = self.usual_s()
        each = seconds / steps
        if usual is None or seconds <= LONG * usual * steps:
            self._steps.push(each)
            return
        self._longs.append((step, seconds - usual * (steps - 1)))
        recent = [pause for number, pause in self._longs if number > step - LONG_KEPT]
        if len(recent) > LONG_KEPT // 2:  # steps have become slower
            self._steps.clear()
            for pause in recent:
                self._steps.push(pause)
            self._longs = deque((long for long in self._longs if long[0] <= step - LONG_KEPT), LONG_KEPT)

    def _allowance(self, step: int) -> float:
        usual = self.usual_s()
        if usual is None:
            return self.first_s
        allowance = FACTOR * usual
        if self._longs and self._is_due(step):
            allowance = max(allowance, LONG_FACTOR * max(seconds for _, seconds in self._longs))
        return max(allowance, self.floor_s)

    def _is_due(self, step: int) -> bool:
        """Whether a long pause may come before this step is complete."""
        numbers = [number for number, _ in self._longs]
        if len(numbers) < 3:
            return True
        beat = numbers[-1] - numbers[-2]
        if beat < 1 or numbers[-2] - numbers[-3] != beat:
            return True
        return step >= numbers[-1] + beat - 1
