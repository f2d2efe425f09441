"""The ledger of data queues: which samples of each queue the living lineage has used, from leases and reports alone.

It does not rely on the folded queue, which forgets what checkpoints contain: it keeps each reader's leases and marks of
all rounds, so what two readers have both used, or what the fold takes for done and nobody has used, is found.
"""

from typing import Any, Final

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.queue import (
    QueueLeased,
    QueueMark,
    QueueOpened,
    QueueRefused,
    QueueReported,
    QueueReturned,
    QueueSpec,
)
from ftcore.sample_ranges import SampleRange, merged, without
from ftcore.states.model import JobState
from ftcore.states.queue import QueueReader, QueueSegment, position_at, sample_of

SHARD: Final = 1 << 40
"""Units of a data shard in the ledger's ranges; samples of it that are used are so many of them, the rest is void."""


@attrs.frozen(kw_only=True)
class QueueEpochUse:
    """The samples of an epoch of a queue; data shards, if it is not known how many samples they have.

    Args:
        epoch: its number, from 1.
        used: how many were used.
        to_come: how many are still to come.
    """

    epoch: int
    used: int
    to_come: int


@attrs.frozen(kw_only=True)
class QueueReturn:
    """Data shards that returned, as a round continued after an earlier step or readers were lost.

    Args:
        seq: the event.
        round, step: the round, and the completed step that it continued after.
        leased: how many were leased, and not used up.
        done: how many were used up after that step.
    """

    seq: int
    round: int
    step: int
    leased: int
    done: int


@attrs.frozen(kw_only=True)
class QueueDoubt:
    """Samples that may have been used twice: it is not known how far a reader was.

    Args:
        seq: the event that returned them.
        rank: the reader.
        after: the last step after which it is known.
        step: the step up to which it may have used more.
    """

    seq: int
    rank: int
    after: int
    step: int


@attrs.frozen(kw_only=True)
class QueueDiscrepancy:
    """Data shards that were used twice, or taken for done and not used.

    Args:
        first, after: the first place, and the place after the last one.
        kind: ``repeated`` or ``lost``.
    """

    first: int
    after: int
    kind: str


@attrs.define
class _Ledger:
    spec: QueueSpec
    segments: list[QueueSegment] = attrs.field(factory=list)
    returned: list[QueueReturn] = attrs.field(factory=list)
    refused: list[int] = attrs.field(factory=list)
    unsure: list[QueueDoubt] = attrs.field(factory=list)


class QueueLedgers:
    """The ledgers of a job's queues, by name. Feed it each event after it is folded."""

    def __init__(self) -> None:
        self._of: dict[str, _Ledger] = {}

    def feed(self, event: Event, state: JobState) -> None:
        """Take in an event; ``state`` is the folded state after it."""
        data = event.data
        if type(data) is QueueOpened:
            self._opened(data, state)
        elif type(data) is QueueReturned:
            self._returned(event, data)
        elif type(data) is QueueLeased:
            readers = self._of[data.queue].segments[-1].readers
            for each in data.leases:
                reader = readers.setdefault(each.rank, _reader(self._of[data.queue].segments[-1]))
                reader.leases.append((each.first, each.after, each.offset))
        elif type(data) is QueueReported:
            self._reported(data)
        elif type(data) is QueueRefused and data.queue in self._of:
            self._of[data.queue].refused.append(event.seq)

    def _opened(self, data: QueueOpened, state: JobState) -> None:
        queue = state.queues.get(data.queue)
        if queue is None or queue.spec != data.spec:
            return
        if data.queue not in self._of or self._of[data.queue].spec != data.spec:
            self._of[data.queue] = _Ledger(data.spec, [QueueSegment(round=data.round, step=queue.base_step)])

    def _returned(self, event: Event, data: QueueReturned) -> None:
        ledger = self._of[data.queue]
        for segment in ledger.segments:
            segment.end = data.step if segment.end is None else min(segment.end, data.step)
        ledger.segments.append(QueueSegment(round=data.round, step=data.step))
        about = {"seq": event.seq, "round": data.round, "step": data.step}
        ledger.returned.append(QueueReturn(**about, leased=data.doing, done=data.done))
        ledger.unsure += [
            QueueDoubt(seq=event.seq, rank=each.rank, after=each.step, step=data.step) for each in data.unsure
        ]

    def _reported(self, data: QueueReported) -> None:
        ledger = self._of.get(data.queue)
        if ledger is None or ledger.segments[-1].round != data.round:
            return
        segment = ledger.segments[-1]
        for told in data.readers:
            reader = segment.readers.setdefault(told.rank, _reader(segment))
            for each in told.marks:
                _add(reader, each)
            reader.closed = told.closed

    def discrepancies(self, state: JobState) -> bool:
        """Whether samples of any queue were lost or used twice, or may have been."""
        return any(each["discrepancies"] or each["unsure"] for each in self.to_json(state).values())

    def to_json(self, state: JobState) -> dict[str, Any]:
        """Plain JSON values, by queue."""
        return {name: _to_json(ledger, state, name) for name, ledger in self._of.items()}


def _reader(segment: QueueSegment) -> QueueReader:
    return QueueReader(node="", marks=[QueueMark(step=segment.step, done=0)])


def _add(reader: QueueReader, new: QueueMark) -> None:
    last = reader.marks[-1]
    if new.step < last.step or new.done < last.done:
        return
    if len(reader.marks) > 1 and (new.step == last.step or (new.rate >= 0 and new.rate == last.rate)):
        reader.marks[-1] = new
    else:
        reader.marks.append(new)


def _uses(ledger: _Ledger) -> list[SampleRange]:
    """What each reader has used of each lease, in the units of ``SHARD``, in no order and perhaps more than once."""
    found = []
    for segment in ledger.segments:
        for reader in segment.readers.values():
            limit = reader.marks[-1].step if segment.end is None else segment.end
            (done, offset), _ = position_at(ledger.spec, reader, limit)
            at = 0
            for first, after, used in reader.leases:
                count = min(done - at, after - first)
                if count < 0:
                    break
                reached = (first + count) * SHARD + (offset if count < after - first else 0)
                begun = first * SHARD + used
                if reached > begun:
                    found.append((begun, reached))
                at += after - first
    return found


def _to_json(ledger: _Ledger, state: JobState, name: str) -> dict[str, Any]:
    uses = _uses(ledger)
    used = merged(uses)
    return {
        **{
            ("data_shards" if key == "shards" else key): value
            for key, value in msgspec.structs.asdict(ledger.spec).items()
        },
        "epochs": [attrs.asdict(each) for each in _epochs(ledger.spec, used)],
        "returned": [attrs.asdict(each) for each in ledger.returned],
        "refused": ledger.refused,
        "unsure": [attrs.asdict(each) for each in ledger.unsure],
        "discrepancies": [attrs.asdict(each) for each in _discrepancies(ledger, uses, state, name)],
    }


def _discrepancies(ledger: _Ledger, uses: list[SampleRange], state: JobState, name: str) -> list[QueueDiscrepancy]:
    twice, reached = [], 0
    for first, after in sorted(uses):
        if first < reached:
            twice.append((first, min(after, reached)))
        reached = max(reached, after)
    queue = state.queues.get(name)
    lost = []
    if queue is not None and queue.spec == ledger.spec:
        done = [(first * SHARD, after * SHARD) for first, after in queue.base.done]
        lost = [each for each in without(done, _whole(ledger.spec, merged(uses))) if each[1] > each[0]]
    return [
        QueueDiscrepancy(first=first // SHARD, after=-(-after // SHARD), kind=kind)
        for kind, ranges in (("repeated", twice), ("lost", lost))
        for first, after in ranges
    ]


def _whole(spec: QueueSpec, used: list[SampleRange]) -> list[SampleRange]:
    """Ranges with what lies between a shard's last sample and the next shard."""
    return merged((first, _rounded(spec, after)) for first, after in used)


def _rounded(spec: QueueSpec, unit: int) -> int:
    place, offset = divmod(unit, SHARD)
    full = spec.size and offset >= sample_of(spec, place + 1) - sample_of(spec, place)
    return (place + 1) * SHARD if full else unit


def _epochs(spec: QueueSpec, used: list[SampleRange]) -> list[QueueEpochUse]:
    if not used:
        return []
    total = spec.samples or spec.shards
    found = []
    for epoch in range(used[0][0] // SHARD // spec.shards, (used[-1][1] - 1) // SHARD // spec.shards + 1):
        begin, end = epoch * spec.shards * SHARD, (epoch + 1) * spec.shards * SHARD
        parts = ((max(first, begin), min(after, end)) for first, after in used if first < end and after > begin)
        count = sum(_count(spec, after) - _count(spec, first) for first, after in parts)
        found.append(QueueEpochUse(epoch=epoch + 1, used=count, to_come=total - count))
    return found


def _count(spec: QueueSpec, unit: int) -> int:
    """Samples before a point of the ledger's ranges; data shards, if they have no known size."""
    place, offset = divmod(unit, SHARD)
    return sample_of(spec, place) + offset if spec.size else place
