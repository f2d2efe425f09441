"""When the next step is overdue: a deadline learned from the steps that were made.

What passes between two steps is usually one step's time, and now and then much more: an evaluation, a checkpoint, a
first step that compiles. The deadline is the last step's time plus an allowance:

| the next step | allowance |
|---|---|
| is the first of a round, or nothing is known yet | ``first_s`` |
| is any other | ``factor`` times the usual step time |
| is where a long pause is due | ``LONG_FACTOR`` times the longest of the last ``LONG_KEPT`` pauses, if that is more |
| is one whose allowance ran out before | ``PATIENCE`` times what it was then |

and never less than ``floor_s`` nor more than ``cap_s``. The usual step time is the median of the last ``WINDOW`` steps
that were no long pauses. A pause is long if it takes more than ``LONG`` times the usual; where most of the last few
steps took so long, that is the usual from then on. Long pauses are *due* at every
step until they are known to keep a rhythm: when the distances, in steps, between the last three of them are equal, they
are due a step before and after the next beat, and where a beat came and no pause with it, everywhere again. So a hang
is found soon even where each evaluation takes an hour, if evaluations come regularly.

That a deadline passed is an opinion: the job may only have been slower than ever before. So after a deadline the same
step gets four times the allowance when it is tried again, and a pause that ended by itself was no hang and is learned.

Times are seconds of any one clock that does not stop; the module reads none.
"""

import math
from collections import deque

from ftcore.faults.detectors.robust import Window

WINDOW = 64
FACTOR = 10.0
FLOOR_S = 60.0
CAP_S = 3600.0
FIRST_S = 1800.0
"""First steps load data, compile and set up communication; half an hour is what launchers give them."""

LONG = 3.0
LONG_KEPT = 8
LONG_FACTOR = 2.0
PATIENCE = 4.0


class NoProgress:
    """Learns how long steps take, and says when the next one is overdue.

    Args:
        factor: times the usual step time that a step may take.
        floor_s: least allowance, in seconds.
        cap_s: largest allowance, at least ``floor_s``; that of a first step may be larger.
        first_s: allowance of a round's first step.
    """

    __slots__ = ("_last", "_longs", "_overdue", "_steps", "cap_s", "factor", "first_s", "floor_s")

    def __init__(
        self, *, factor: float = FACTOR, floor_s: float = FLOOR_S, cap_s: float = CAP_S, first_s: float = FIRST_S
    ) -> None:
        if not factor > 1 or not 0 < floor_s <= cap_s < math.inf or not 0 < first_s < math.inf:
            raise ValueError(
                f"expected factor > 1, 0 < floor_s <= cap_s, first_s > 0; found {factor}, {floor_s}, {cap_s}, {first_s}"
            )
        self.factor = factor
        self.floor_s = floor_s
        self.cap_s = cap_s
        self.first_s = first_s
        self._steps = Window(WINDOW)
        self._longs: deque[tuple[int, float]] = deque(maxlen=LONG_KEPT)
        self._last: tuple[int, float, bool] | None = None
        """Of the last step: its number, its time, and whether it was one (else a round began there)."""
        self._overdue: tuple[int, int] | None = None
        """The step that was overdue, and how many times."""

    def begin(self, time: float, step: int = 0) -> None:
        """A round begins: its first step follows.

        Args:
            time: now, in seconds.
            step: the last step that was completed before.
        """
        self._last = (step, time, False)

    def observe(self, step: int, time: float) -> None:
        """A step is complete.

        Args:
            step: its number. If several were made since the last one seen, the time between is divided among them; a
                number that is not above the last one says that the training went back, and no time is learned.
            time: when, in seconds.
        """
        last = self._last
        if last is not None and last[2] and step > last[0] and time >= last[1]:
            self._learn(step, step - last[0], time - last[1])
        self._last = (step, time, True)
        if self._overdue is not None and step > self._overdue[0]:
            self._overdue = None

    def excuse(self, seconds: float) -> None:
        """The next step may come so much later: the machine, or whoever observes, stood still for so long."""
        if self._last is not None:
            step, time, made = self._last
            self._last = (step, time + seconds, made)

    def usual_s(self) -> float | None:
        """The usual step time; None if no step's time is known yet."""
        return self._steps.median() if len(self._steps) else None

    def deadline(self, least_s: float = 0.0) -> float | None:
        """When the next step is overdue, in seconds of the observer's clock; None if neither begun nor stepped.

        Args:
            least_s: a floor for this step, where the observer knows of a reason for more patience.
        """
        if self._last is None:
            return None
        step, time, made = self._last
        allowance = max(least_s, self._allowance(step + 1) if made else self.first_s)
        if self._overdue is not None and self._overdue[0] == step + 1:
            allowance *= PATIENCE ** self._overdue[1]
        return time + min(allowance, max(self.cap_s, least_s, 0.0 if made else self.first_s))

    def overdue(self) -> None:
        """The deadline has passed and was told: when the step is tried again, it gets more time."""
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
        allowance = self.factor * usual
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
