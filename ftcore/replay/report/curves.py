"""Curves of a report: loss, seconds per step, flagged steps, rollbacks and skipped data."""

import math
from collections import deque
from typing import Any, Final

from ftcore.events.envelope import Event
from ftcore.events.job import DataSkipped, JobProgressed, JobRolledBack
from ftcore.events.worker import CURVES, FaultObserved
from ftcore.ids import SECOND
from ftcore.replay.report.limits import MARKS_MAX, POINTS_MAX
from ftcore.replay.report.text import line
from ftcore.replay.report.thinning import ThinnedCurve


class Curves:
    """Collects curves from samples of progress (``job.progressed``) and from what detectors flag."""

    READS: Final = frozenset({JobProgressed, FaultObserved, JobRolledBack, DataSkipped})

    def __init__(self) -> None:
        self._loss = ThinnedCurve(POINTS_MAX)
        self._pace = ThinnedCurve(POINTS_MAX)
        self._progress = ThinnedCurve(POINTS_MAX)
        self._last: tuple[int, int, int] | None = None
        self._flags: deque[tuple[int, int | None, str, float | None, str]] = deque(maxlen=MARKS_MAX)
        self._norms: deque[tuple[int, int | None, float]] = deque(maxlen=MARKS_MAX)
        self._rollbacks: deque[tuple[int, int, int | None, str]] = deque(maxlen=MARKS_MAX)
        self._skips: deque[tuple[int, int, int, str, str]] = deque(maxlen=MARKS_MAX)

    def feed(self, event: Event) -> None:
        """Note an event."""
        data = event.data
        if type(data) is JobProgressed:
            self._sample(event.time, data)
        elif type(data) is FaultObserved:
            if data.kind in CURVES:
                self._flagged(event.time, data)
        elif type(data) is JobRolledBack:
            self._rollbacks.append((event.time, data.step, data.before, line(data.reason)))
        elif type(data) is DataSkipped:
            self._skips.append((event.time, data.step, data.amount, data.unit, line(data.reason)))

    def _sample(self, time: int, data: JobProgressed) -> None:
        step, round_, loss, last = data.step, data.round, data.loss, self._last
        self._progress.add(time, step, round_, float(step))
        if loss is not None and math.isfinite(loss):
            self._loss.add(time, step, round_, loss)
        if last is not None:
            then, before, its_round = last
            if its_round == round_ and step > before and time > then:
                self._pace.add(time, step, round_, (time - then) / SECOND / (step - before))
        self._last = (time, step, round_)

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
