"""The last steps of a node's workers, kept so that a fault can tell what came before it.

A ring of ``MARKS_MAX`` marks per worker, fed from the progress pages whenever somebody reads them anyway. The worker
says itself when it completed a step, so the times are exact, however late the page is read; steps that are shorter than
the time between two readings share one entry. What a fault tells is the window up to it, as many entries per worker as
fit into its share of the evidence.

House rules: memory is bounded; time is given. A window is told once: until a worker of the round has made another step,
further faults tell none. So ranks that fall with the first one, and restarts that get nowhere, do not swell the log.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ftcore.events.worker import EVIDENCE_BYTES_MAX, StepTimes
from ftcore.ports import Progress

MARKS_MAX: Final = 64
"""Kept per worker."""

WINDOW_BYTES_MIN: Final = EVIDENCE_BYTES_MAX // 16
WINDOW_BYTES_MAX: Final = EVIDENCE_BYTES_MAX // 4
"""What a window takes of a fact's evidence: the rest of it goes first, down to the least."""

_MS: Final = 1_000_000


class _Mark(NamedTuple):
    """Of a page: steps completed since the process started, the last one's number, and when it was completed."""

    steps: int
    step: int
    mono: int


class StepRing:
    """The last steps of the workers of one node."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, base_rank: int) -> None:
        """Workers of a new round run, with new pages.

        Args:
            base_rank: global rank of the first of them.
        """
        self._base_rank = base_rank
        self._marks: dict[int, deque[_Mark]] = {}
        self._moved = False

    def take(self, pages: Sequence[Progress | None]) -> None:
        """Take in what the pages say, by local rank."""
        for local, page in enumerate(pages):
            if page is None or not page.steps:
                continue
            marks = self._marks.setdefault(local, deque(maxlen=MARKS_MAX))
            if not marks or page.steps > marks[-1].steps:
                marks.append(_Mark(page.steps, page.step, page.mono))
                self._moved = True

    def window(self, mono: int, rank: int = -1, used: int = 0) -> tuple[StepTimes, ...]:
        """What led to a fault, for its fact; empty if no step was completed since a window was told.

        Args:
            mono: monotonic nanoseconds of the fact.
            rank: the global rank that it is about, told first; -1: the whole node.
            used: bytes of other evidence in the fact.
        """
        if not self._moved:
            return ()
        self._moved = False
        limit = min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, EVIDENCE_BYTES_MAX - used))
        order = sorted(self._marks, key=lambda local: (self._base_rank + local != rank, local))
        length = MARKS_MAX
        while length > 4 and len(msgspec.json.encode(self._told(order, length, mono))) > limit:
            length = length * 3 // 4
        while order and len(msgspec.json.encode(self._told(order, length, mono))) > limit:
            order.pop()
        return self._told(order, length, mono)

    def _told(self, order: Sequence[int], length: int, mono: int) -> tuple[StepTimes, ...]:
        told: list[StepTimes] = []
        for local in order:
            marks = list(self._marks[local])[-length:]
            pairs = list(itertools.pairwise(marks))
            told.append(
                StepTimes(
                    rank=self._base_rank + local,
                    step=marks[-1].step,
                    ago_ms=max(0, mono - marks[-1].mono) // _MS,
                    steps=tuple(after.steps - before.steps for before, after in pairs),
                    took_ms=tuple((after.mono - before.mono) // _MS for before, after in pairs),
                )
            )
        return tuple(told)
