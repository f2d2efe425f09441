"""Tells what workers leave on their pages: findings of their detectors, and checkpoints that are complete.

In a data-parallel job all ranks of a node find the same thing at the same step: one of them is told. A finding is told
at once where its kind is new in the round; after that a kind is told at most once in ``QUIET_S``, with a count. Rounds
begin anew, so that what comes again after a rollback is told at once. A loss that stays not finite is told once more.

House rules: pure but for what it is given; the caller reads the pages and the clock. Before a worker's failure is told,
its page is read once more: a NaN that ends a script stands in the log before its end.
"""

import math
from collections.abc import Sequence
from typing import Final

import attrs

from ftcore.events.job import CheckpointCommitted
from ftcore.events.worker import LASTING_NAN, NAN_STEPS, FaultObserved
from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.shm.notes import Found, Saved

LOOK_S: Final = 0.2
"""How often the pages are looked at."""

QUIET_S: Final = 60.0
"""How long a kind of finding is only counted after it was told."""

STEPS_MAX: Final = 256
"""Findings remembered, to know the same one of another rank."""


@attrs.frozen
class Told:
    """What is to be told.

    Args:
        fact: the fact.
        mono: monotonic nanoseconds at which it came to be; None: now.
    """

    fact: FaultObserved | CheckpointCommitted
    mono: int | None = None


@attrs.define
class _Kind:
    """A kind of finding that was told in this round, and how many came since."""

    told_at: float
    count: int = 0
    newest: tuple[int, Found] | None = None


class NotesWatch:
    """Reads the notes of a node's workers.

    Args:
        node: the node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.begin(Round(0), 0)

    def begin(self, round_: Round, base_rank: int) -> None:
        """Workers of a new round run, with new pages.

        Args:
            round_: the round.
            base_rank: global rank of the first of them.
        """
        self._round, self._base_rank = round_, base_rank
        self._read: dict[int, tuple[int, int]] = {}
        self._kinds: dict[str, _Kind] = {}
        self._ranks: dict[tuple[str, int], int] = {}
        self._saved: dict[int, None] = {}
        self._bad_steps: tuple[int, set[int]] | None = None

    def look(self, pages: Sequence[Progress | None], now: float, incarnation: str) -> list[Told]:
        """Take in what is new on the pages; returns the facts to tell.

        Args:
            pages: what they say, by local rank.
            now: monotonic seconds.
            incarnation: the agent's life.
        """
        found: list[tuple[int, Found]] = []
        told: list[Told] = []
        for local, page in enumerate(pages):
            if page is None:
                continue
            findings, saves = self._read.get(local, (0, 0))
            found += ((local, one) for one in page.findings if one.number > findings)
            for saved in page.saves:
                if saved.number > saves and self._is_new_save(saved.step):
                    told.append(Told(self._committed(saved)))
            self._read[local] = (
                max((one.number for one in page.findings), default=findings),
                max((one.number for one in page.saves), default=saves),
            )
        for local, one in sorted(found, key=lambda pair: (pair[1].step, pair[0])):
            told += self._take(local, one, now, incarnation)
        for kind in self._kinds.values():
            if kind.newest is not None and now - kind.told_at >= QUIET_S:
                told.append(self._tell(kind, now, incarnation))
        return told

    def _committed(self, saved: Saved) -> CheckpointCommitted:
        return CheckpointCommitted(
            round=self._round, step=saved.step, where=saved.path, seconds=saved.seconds, kept=saved.kept
        )

    def _is_new_save(self, step: int) -> bool:
        if step in self._saved:
            return False
        self._saved[step] = None
        if len(self._saved) > STEPS_MAX:
            del self._saved[next(iter(self._saved))]
        return True

    def _take(self, local: int, found: Found, now: float, incarnation: str) -> list[Told]:
        key = (found.kind, found.step)
        if self._ranks.setdefault(key, local) != local:
            return []
        if len(self._ranks) > STEPS_MAX:
            del self._ranks[next(iter(self._ranks))]
        kind = self._kinds.get(found.kind)
        new = kind is None
        lasting = found.kind == "loss-nan" and self._is_lasting(found)
        kind = self._kinds.setdefault(found.kind, _Kind(now))
        kind.count += 1
        kind.newest = (local, found)
        told = [self._tell(kind, now, incarnation)] if new else []
        return [*told, self._lasting(local, found, incarnation)] if lasting else told

    def _is_lasting(self, found: Found) -> bool:
        """Whether this is the ``NAN_STEPS``-th step in a row; it is so once in a row."""
        if self._bad_steps is None or self._bad_steps[0] != found.since:
            self._bad_steps = (found.since, set())
        steps = self._bad_steps[1]
        if len(steps) >= NAN_STEPS:
            return False
        steps.add(found.step)
        return len(steps) == NAN_STEPS

    def _lasting(self, local: int, found: Found, incarnation: str) -> Told:
        fact = FaultObserved(
            node=self._node,
            incarnation=incarnation,
            round=self._round,
            source="detector",
            kind=LASTING_NAN,
            rank=self._base_rank + local,
            message=f"the loss was not finite in {NAN_STEPS} steps in a row, since step {found.since}",
            step=found.step,
            absolute=True,
            values={"since": float(found.since), "count": float(NAN_STEPS)},
        )
        return Told(fact, found.mono)

    def _tell(self, kind: _Kind, now: float, incarnation: str) -> Told:
        assert kind.newest is not None
        local, found = kind.newest
        figures = {
            found.kind.partition("-")[0]: found.value,
            "at": float(found.step),
            "usual": found.usual,
            "score": found.score,
            "limit": found.limit,
            "count": float(kind.count),
        }
        kind.told_at, kind.count, kind.newest = now, 0, None
        fact = FaultObserved(
            node=self._node,
            incarnation=incarnation,
            round=self._round,
            source="detector",
            kind=found.kind,
            rank=self._base_rank + local,
            message=_message(found),
            # The step itself went wrong, and so did those before it in its episode: a state from before them is sound.
            step=max(0, found.since - 1),
            absolute=True,
            values={name: value for name, value in figures.items() if math.isfinite(value)},
        )
        return Told(fact, found.mono)


def _message(found: Found) -> str:
    usual = f", where {found.usual:.4g} is usual" if math.isfinite(found.usual) else ""
    limit = f", where the threshold is {found.limit:.4g}" if found.kind == "norm" else usual
    since = f", since step {found.since}" if found.since < found.step else ""
    return f"{found.kind}: {found.value:.4g} at step {found.step}{limit}{since}"
