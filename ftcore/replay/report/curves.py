"""Curves of a report: loss, seconds per step, flagged steps, rollbacks and skipped data."""

import math
from collections import deque
from itertools import pairwise
from typing import Any, Final, TypeAlias

from ftcore.events.envelope import Event
from ftcore.events.job import DataSkipped, JobProgressed, JobRolledBack
from ftcore.events.worker import CURVES, FaultObserved
from ftcore.ids import SECOND
from ftcore.replay.report.limits import MARKS_MAX, POINTS_MAX
from ftcore.replay.report.text import line
from ftcore.replay.report.thinning import ThinnedCurve

SAMPLES_MAX: Final = 4096
"""Samples that are added to the curves at once."""

_Sample: TypeAlias = tuple[int, int, int, float | None]
"""Time in nanoseconds, step, round and loss."""


class Curves:
    """Collects curves from samples of progress (``job.progressed``) and from what detectors flag."""

    READS: Final = frozenset({JobProgressed, FaultObserved, JobRolledBack, DataSkipped})

    def __init__(self) -> None:
        self._loss = ThinnedCurve(POINTS_MAX)
        self._pace = ThinnedCurve(POINTS_MAX)
        self._progress = ThinnedCurve(POINTS_MAX)
        self._samples: list[_Sample] = []
        """The newest samples, which are in no curve yet."""
        self._before: list[_Sample] = []
        """The sample before them, if there is one."""
        self._flags: deque[tuple[int, int | None, str, float | None, str]] = deque(maxlen=MARKS_MAX)
        self._norms: deque[tuple[int, int | None, float]] = deque(maxlen=MARKS_MAX)
        self._rollbacks: deque[tuple[int, int, int | None, str]] = deque(maxlen=MARKS_MAX)
        self._skips: deque[tuple[int, int, int, str, str]] = deque(maxlen=MARKS_MAX)

    def feed(self, event: Event) -> None:
        """Note an event."""
        data = event.data
        if type(data) is JobProgressed:
            self._samples.append((event.time, data.step, data.round, data.loss))
            if len(self._samples) == SAMPLES_MAX:
                self._draw()
        elif type(data) is FaultObserved:
            if data.kind in CURVES:
                self._flagged(event.time, data)
        elif type(data) is JobRolledBack:
            self._rollbacks.append((event.time, data.step, data.before, line(data.reason)))
        elif type(data) is DataSkipped:
            self._skips.append((event.time, data.step, data.amount, data.unit, line(data.reason)))

    def _draw(self) -> None:
        """Add the newest samples to the curves."""
        new, self._samples = self._samples, []
        self._progress.extend([(time, step, round_, float(step)) for time, step, round_, _ in new])
        self._loss.extend(
            [(time, step, round_, loss) for time, step, round_, loss in new if loss is not None and math.isfinite(loss)]
        )
        self._pace.extend(
            [
                (time, step, round_, (time - then) / SECOND / (step - before))
                for (then, before, its_round, _), (time, step, round_, _) in pairwise([*self._before, *new])
                if its_round == round_ and step > before and time > then
            ]
        )
        self._before = new[-1:] or self._before

    def _flagged(self, time: int, data: FaultObserved) -> None:
        figure = data.kind.partition("-")[0]
        value = data.values.get(figure)
        at = data.values.get("at")
        step = int(at) if at is not None and math.isfinite(at) else data.step
        finite = value if value is not None and math.isfinite(value) else None
        self._flags.append((time, step, data.kind, finite, line(data.message)))
        if figure == "norm" and finite is not None:
            self._norms.append((time, step, finite))

    def to_json(self, begin: int) -> dict[str, Any]:
        """Plain JSON values; times in seconds since ``begin`` (nanoseconds)."""
        self._draw()

        def at(time: int) -> float:
            return round((time - begin) / SECOND, 3)

        def listed(curve: ThinnedCurve) -> list[tuple[float, int, int, float]]:
            return [(at(time), step, round_, value) for time, step, round_, value in curve.points()]

        return {
            "loss": listed(self._loss),
            "pace": listed(self._pace),
            "progress": listed(self._progress),
            "sample_count": self._loss.count,
            "flags": [(at(time), *rest) for time, *rest in self._flags],
            "norms": [(at(time), *rest) for time, *rest in self._norms],
            "rollbacks": [(at(time), *rest) for time, *rest in self._rollbacks],
            "skips": [(at(time), *rest) for time, *rest in self._skips],
        }
