"""Reports notes on workers' pages as facts: findings of detectors, and completed checkpoints.

In a data-parallel job several ranks of a node have the same finding at the same step: one of them is reported, with
their number. The first finding of a kind in a round is reported at once; later ones at most once per ``QUIET_S``, with
a count. A spike of twice as many ranks as were reported, or of all, is reported at once nevertheless: they may be those
that make up the agreement. Each round starts afresh, so that a finding that recurs after a rollback is reported at
once. A loss that stays non-finite is reported a second time.

House rules: no I/O and no clock here; the caller reads the pages and the clock. Before a worker's failure is reported,
its page is read once more, so that a NaN that ends a script precedes the failure in the log.
"""

import math
from collections.abc import Sequence
from typing import Final

import attrs

from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.events.worker import AGREED, LASTING_NAN, NAN_STEPS, FaultObserved
from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.shm.notes import CheckpointNote, FindingNote
from ftcore.states.spikes import ranks_reporting

PAGES_POLL_S: Final = 0.2
"""Interval of reading the pages, in seconds: shared memory has no notification."""

QUIET_S: Final = 60.0
"""Time after a report in which findings of that kind are only counted, in seconds."""

STEPS_MAX: Final = 256
"""Limit of remembered findings, which deduplicate those of other ranks."""


@attrs.frozen
class NoteFact:
    """A fact to report.

    Args:
        fact: the fact.
        mono: time of its origin in monotonic nanoseconds; None: now.
    """

    fact: FaultObserved | CheckpointCommitted
    mono: int | None = None


@attrs.define
class _FindingCount:
    """A kind of finding that was reported in this round, and the count since then."""

    reported_at: float
    ranks: int = 0
    count: int = 0
    newest: tuple[int, FindingNote] | None = None


class NotesWatch:
    """Reads the notes of a node's workers.

    Args:
        node: the node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.begin(Round(0), 0)

    def begin(self, round_: Round, base_rank: int) -> None:
        """Begin a new round, with new pages.

        Args:
            round_: the round.
            base_rank: global rank of the first worker.
        """
        self._round, self._base_rank = round_, base_rank
        self._read: dict[int, tuple[int, int]] = {}
        self._kinds: dict[str, _FindingCount] = {}
        self._ranks: dict[tuple[str, int], list[int]] = {}
        self._reporting = 0
        self._saved: dict[int, None] = {}
        self._bad_steps: tuple[int, set[int]] | None = None

    def read(self, pages: Sequence[Progress | None], now: float, incarnation: str) -> list[NoteFact]:
        """Process the new notes on the pages; returns the facts to report.

        Args:
            pages: contents of the pages, by local rank.
            now: monotonic seconds.
            incarnation: the agent's incarnation.
        """
        found: list[tuple[int, FindingNote]] = []
        facts: list[NoteFact] = []
        for local, page in enumerate(pages):
            if page is None or not (page.findings or page.saves):
                continue
            findings, saves = self._read.get(local, (0, 0))
            found += ((local, finding) for finding in page.findings if finding.number > findings)
            for saved in page.saves:
                if saved.number > saves and self._is_new_save(saved.step):
                    facts.append(NoteFact(self._committed(saved)))
            self._read[local] = (
                max((finding.number for finding in page.findings), default=findings),
                max((saved.number for saved in page.saves), default=saves),
            )
        if found:
            self._reporting = ranks_reporting(pages)
            found.sort(key=lambda pair: (pair[1].step, pair[0]))
        for local, finding in found:
            self._add_rank(local, finding)
        for local, finding in found:
            facts += self._take(local, finding, now, incarnation)
        for kind in self._kinds.values():
            if kind.newest is not None and now - kind.reported_at >= QUIET_S:
                facts.append(self._report(kind, now, incarnation))
        return facts

    def _committed(self, saved: CheckpointNote) -> CheckpointCommitted:
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

    def _add_rank(self, local: int, found: FindingNote) -> None:
        """Keep that a rank has a finding."""
        ranks = self._ranks.setdefault((found.kind, found.step), [])
        if local not in ranks:
            ranks.append(local)
        if len(self._ranks) > STEPS_MAX:
            del self._ranks[next(iter(self._ranks))]

    def _take(self, local: int, found: FindingNote, now: float, incarnation: str) -> list[NoteFact]:
        ranks = self._ranks.get((found.kind, found.step), [local])
        kind = self._kinds.get(found.kind)
        new = kind is None
        kind = self._kinds.setdefault(found.kind, _FindingCount(now))
        wider = found.kind in AGREED and self._is_wider(len(ranks), kind.ranks)
        lasting = False
        if local == ranks[0]:  # another rank's is the same one
            lasting = found.kind == "loss-nan" and self._is_lasting(found)
            kind.count += 1
            kind.newest = (local, found)
        elif wider:
            kind.newest = (local, found)
        facts = [self._report(kind, now, incarnation)] if kind.newest is not None and (new or wider) else []
        return [*facts, self._lasting(local, found, incarnation)] if lasting else facts

    def _is_wider(self, ranks: int, reported: int) -> bool:
        return ranks > reported and (ranks >= 2 * reported or ranks == self._reporting)

    def _is_lasting(self, found: FindingNote) -> bool:
        """Whether this is the ``NAN_STEPS``-th consecutive step; true once per sequence."""
        if self._bad_steps is None or self._bad_steps[0] != found.since:
            self._bad_steps = (found.since, set())
        steps = self._bad_steps[1]
        if len(steps) >= NAN_STEPS:
            return False
        steps.add(found.step)
        return len(steps) == NAN_STEPS

    def _lasting(self, local: int, found: FindingNote, incarnation: str) -> NoteFact:
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
        return NoteFact(fact, found.mono)

    def _report(self, kind: _FindingCount, now: float, incarnation: str) -> NoteFact:
        assert kind.newest is not None
        local, found = kind.newest
        figure = found.kind.partition("-")[0]
        ranks = len(self._ranks.get((found.kind, found.step), (local,)))
        figures = {
            figure: found.value,
            "at": float(found.step),
            "usual": found.usual,
            "score": found.score,
            "limit": found.limit,
            "count": float(max(kind.count, 1)),
        }
        if figure == "loss":
            figures |= {"ranks": float(ranks), "reporting": float(max(self._reporting, ranks))}
        kind.reported_at, kind.count, kind.newest = now, 0, None
        kind.ranks = ranks
        fact = FaultObserved(
            node=self._node,
            incarnation=incarnation,
            round=self._round,
            source="detector",
            kind=found.kind,
            rank=self._base_rank + local,
            message=_message(found),
            # All steps of the episode are affected, so the last good state is from before its first step.
            step=max(0, found.since - 1),
            absolute=True,
            values={name: value for name, value in figures.items() if math.isfinite(value)},
        )
        return NoteFact(fact, found.mono)


def _message(found: FindingNote) -> str:
    usual = f", where {found.usual:.4g} is usual" if math.isfinite(found.usual) else ""
    limit = f", where the threshold is {found.limit:.4g}" if found.kind == "norm" else usual
    since = f", since step {found.since}" if found.since < found.step else ""
    return f"{found.kind}: {found.value:.4g} at step {found.step}{limit}{since}"
