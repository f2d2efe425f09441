"""The last steps of a node's workers, for the report of a fault.

A ring of ``MARKS_MAX`` marks per worker, filled whenever the progress pages are read for another purpose. The worker
itself records when it completed a step, so the times are exact even if the page is read late; steps shorter than the
time between two reads share one entry. A fault is reported with the window before it, with as many entries per worker
as fit into its share of the evidence.

House rules: memory is bounded; time is an argument. A window is reported once: until a worker of the round has
completed another step, further faults have none. So collateral failures and failing restarts do not bloat the log.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ftcore.events.worker import EVIDENCE_BYTES_MAX, StepTimes
from ftcore.ports import Progress

MARKS_MAX: Final = 64
"""Marks kept per worker."""

WINDOW_BYTES_MIN: Final = EVIDENCE_BYTES_MAX // 16
WINDOW_BYTES_MAX: Final = EVIDENCE_BYTES_MAX // 4
"""Size of a window in a fact: other evidence takes precedence, down to the minimum."""

_MS: Final = 1_000_000


class _StepMark(NamedTuple):
    """Contents of a page: steps since the process started, number of the last one, and when it was completed."""

    steps: int
    step: int
    mono: int


class StepRing:
    """The last steps of the workers of one node."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, base_rank: int) -> None:
        """Reset for the workers of a new round.

        Args:
            base_rank: global rank of the first worker.
        """
        self._base_rank = base_rank
        self._marks: dict[int, deque[_StepMark]] = {}
        self._moved = False

    def take(self, pages: Sequence[Progress | None]) -> None:
        """Record the contents of the pages, which are in order of local rank."""
        for local, page in enumerate(pages):
            if page is None or not page.steps:
                continue
            marks = self._marks.setdefault(local, deque(maxlen=MARKS_MAX))
            if not marks or page.steps > marks[-1].steps:
                marks.append(_StepMark(page.steps, page.step, page.mono))
                self._moved = True

    def window(self, mono: int, rank: int = -1, used: int = 0) -> tuple[StepTimes, ...]:
        """Return the steps before a fault; empty if no step was completed since the last reported window.

        Args:
            mono: monotonic time of the fact, in nanoseconds.
            rank: the affected global rank, which comes first; -1: the whole node.
            used: bytes of other evidence in the fact.
        """
        if not self._moved:
            return ()
        self._moved = False
        limit = min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, EVIDENCE_BYTES_MAX - used))
        order = sorted(self._marks, key=lambda local: (self._base_rank + local != rank, local))
        length = MARKS_MAX
        while length > 4 and len(msgspec.json.encode(self._times(order, length, mono))) > limit:
            length = length * 3 // 4
        while order and len(msgspec.json.encode(self._times(order, length, mono))) > limit:
            order.pop()
        return self._times(order, length, mono)

    def _times(self, order: Sequence[int], length: int, mono: int) -> tuple[StepTimes, ...]:
        times: list[StepTimes] = []
        for local in order:
            marks = list(self._marks[local])[-length:]
            pairs = list(itertools.pairwise(marks))
            times.append(
                StepTimes(
                    rank=self._base_rank + local,
                    step=marks[-1].step,
                    ago_ms=max(0, mono - marks[-1].mono) // _MS,
                    steps=tuple(after.steps - before.steps for before, after in pairs),
                    took_ms=tuple((after.mono - before.mono) // _MS for before, after in pairs),
                )
            )
        return tuple(times)
