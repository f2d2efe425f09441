"""Data queues as they are folded: which data shards are to do, leased, and done after which step. Pure.

Shards are ranges of places, never objects: a queue of millions of them is a few ranges. A reader's leases of a round
are one sequence. Its marks say how far in it the reader was after which step. So what was done after any step of the
living lineage follows: the *base*, and for each segment (a round) what its readers had used up. A committed checkpoint
makes what its step contains the new base. A round that continues after an earlier step cuts there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import attrs
import msgspec

from ftcore.events.queue import DataLease, QueueMark, QueueSpec, UnsureReader
from ftcore.sample_ranges import SampleRange, merged, without

LeasedRange: TypeAlias = tuple[int, int, int]
"""First place, place after the last one, and the samples of the first one that were used before."""

Position: TypeAlias = tuple[int, int]
"""Whole data shards of a sequence, and samples of the next one."""

MARKS_MAX = 256
"""Marks of a reader that are remembered; steps that take equal numbers of samples need one."""

SEGMENTS_MAX = 16
"""Rounds without a committed checkpoint whose readers are remembered one by one."""

CUTS_MAX = 64
"""Steps of checkpoints for which it is remembered what was done."""


@attrs.define(kw_only=True)
class QueueReader:
    """A reader in one round.

    Args:
        node: its node.
        base: data shards of its sequence before those of ``leases``.
        leases: the leases, in order.
        marks: how far it was; the first one is where it began, or that of a committed checkpoint.
        want: how many data shards it wants in all.
        over: it was told that nothing is left.
        closed: it has ended.
    """

    node: str
    marks: list[QueueMark]
    base: int = 0
    leases: list[LeasedRange] = attrs.field(factory=list)
    want: int = 0
    over: bool = False
    closed: bool = False

    @property
    def leased(self) -> int:
        """Data shards of its sequence."""
        return self.base + sum(after - first for first, after, _ in self.leases)


@attrs.define(kw_only=True)
class QueueSegment:
    """The steps of one round.

    Args:
        round: the round.
        step: the completed step after which it began.
        end: the last of its steps that count; None: it is the newest.
        readers: its readers, by global rank.
    """

    round: int
    step: int
    end: int | None = None
    readers: dict[int, QueueReader] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class QueueCut:
    """What is used after a step.

    Args:
        done: places of data shards that are used up, as ranges in order.
        offsets: by place: how many samples are used, of data shards that are used in part.
    """

    done: list[SampleRange] = attrs.field(factory=list)
    offsets: dict[int, int] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class QueueState:
    """A queue.

    Args:
        spec: what it consists of.
        base: what is used after ``base_step``.
        base_step: the step of the newest committed checkpoint, or that at which the job opened the queue.
        next: the first place that was never leased.
        todo: places before it that are to do, as ranges in order.
        offsets: by place: how many samples are used, of those among them that are used in part.
        segments: the rounds since the base, the newest one last.
        cuts: what is used after the steps of committed checkpoints.
        committing: steps of committed checkpoints that not all readers have reported yet.
        left: by epoch, from 0: data shards of begun epochs that are not done.
        joining: readers of a round that the queue has not continued in yet, by rank: their nodes.
    """

    spec: QueueSpec
    base: QueueCut = attrs.field(factory=QueueCut)
    base_step: int
    next: int = 0
    todo: list[SampleRange] = attrs.field(factory=list)
    offsets: dict[int, int] = attrs.field(factory=dict)
    segments: list[QueueSegment]
    cuts: dict[int, QueueCut] = attrs.field(factory=dict)
    committing: list[int] = attrs.field(factory=list)
    left: dict[int, int] = attrs.field(factory=dict)
    joining: dict[int, str] = attrs.field(factory=dict)

    @property
    def live(self) -> QueueSegment:
        """The newest round."""
        return self.segments[-1]

    @property
    def end(self) -> int | None:
        """The place after the last one; None: there is no last one."""
        return self.spec.shards * self.spec.epochs or None

    @property
    def remaining(self) -> int | None:
        """Data shards that can be leased; None: without end."""
        return None if self.end is None else self.end - self.next + sum(after - first for first, after in self.todo)


# -- positions


def position_at(spec: QueueSpec, reader: QueueReader, step: int) -> tuple[Position, UnsureReader | None]:
    """How far a reader was after a step.

    Between two marks, and after the last one of a reader that was lost, the position follows if all steps took equal
    numbers of samples.

    Args:
        spec: the queue.
        reader: the reader; ``UnsureReader.rank`` is left to the caller.
        step: the step.

    Returns:
        The position, and the last mark if what followed it is not known.
    """
    before = reader.marks[0]
    for mark in reader.marks[1:]:
        if mark.step > step:
            found = _further(spec, reader, before, mark, step)
            return (found, None) if found is not None else ((before.done, before.offset), _unsure(before, step))
        before = mark
    last = (before.done, before.offset)
    if reader.closed or before.step >= step:
        return last, None
    found = _further(spec, reader, before, before, step)
    return (found, None) if found is not None else (last, _unsure(before, step))


def _unsure(mark: QueueMark, step: int) -> UnsureReader | None:
    return UnsureReader(rank=-1, step=mark.step) if mark.step < step else None


def _further(spec: QueueSpec, reader: QueueReader, origin: QueueMark, pace: QueueMark, step: int) -> Position | None:
    """The position at a step after a mark, at the pace of the same or the next one; None: it is not known."""
    if step == origin.step:
        return origin.done, origin.offset
    if pace.rate < 0 or not spec.size:
        return None
    return walk(spec, reader, (origin.done, origin.offset), (step - origin.step) * pace.rate)


def walk(spec: QueueSpec, reader: QueueReader, position: Position, samples: int) -> Position:
    """The position of a reader after it has used so many samples, at most to the end of its leases."""
    done, offset = position
    at = reader.base
    for first, after, used in reader.leases:
        count = after - first
        if done < at + count:
            place = first + max(0, done - at)
            begun = offset if offset or place != first else used
            start, end = sample_of(spec, place) + begun, sample_of(spec, after)
            if start + samples < end:
                reached, rest = place_of(spec, start + samples)
                return at + reached - first, rest
            samples -= end - start
            done, offset = at + count, 0
        at += count
    return done, offset


def sample_of(spec: QueueSpec, place: int) -> int:
    """The first sample of the data shard at a place, counted over all epochs."""
    epoch, within = divmod(place, spec.shards)
    return epoch * spec.samples + min(within * spec.size, spec.samples)


def place_of(spec: QueueSpec, sample: int) -> Position:
    """The place of the data shard with a sample, and the sample's number in it."""
    epoch, within = divmod(sample, spec.samples)
    return epoch * spec.shards + within // spec.size, within % spec.size


def used_between(reader: QueueReader, begin: int, end: int) -> list[SampleRange]:
    """Places of a part of a reader's sequence, by the numbers of its data shards."""
    found, at = [], reader.base
    for first, after, _ in reader.leases:
        low, high = max(begin, at), min(end, at + after - first)
        if low < high:
            found.append((first + low - at, first + high - at))
        at += after - first
    return found


# -- what was done after a step


def cut_at(queue: QueueState, step: int) -> tuple[QueueCut, list[UnsureReader]]:
    """What is used after a step of the living lineage that is not before the base, and readers that are not sure."""
    done, offsets, unsure = list(queue.base.done), dict(queue.base.offsets), []
    for segment in queue.segments:
        if segment.step >= step:
            continue
        limit = step if segment.end is None else min(step, segment.end)
        for rank, reader in segment.readers.items():
            (count, offset), doubt = position_at(queue.spec, reader, limit)
            done += used_between(reader, reader.base, count)
            for place, _ in used_between(reader, count, count + 1):
                if offset > offsets.get(place, 0):
                    offsets[place] = offset
            if doubt is not None:
                unsure.append(msgspec.structs.replace(doubt, rank=rank))
    ranges = merged(done)
    left = {place: offset for place, offset in sorted(offsets.items()) if not is_in(ranges, place)}
    return QueueCut(done=ranges, offsets=left), unsure


def cut_for(queue: QueueState, step: int) -> tuple[QueueCut, list[UnsureReader]]:
    """What is used after a step to which training goes back, and readers that are not sure."""
    if step >= queue.base_step:
        return cut_at(queue, step)
    known = max((each for each in queue.cuts if each <= step), default=0)
    cut = queue.cuts.get(known, QueueCut())
    ranks = queue.segments[-1].readers if known != step else ()
    copy = QueueCut(done=list(cut.done), offsets=dict(cut.offsets))
    return copy, [UnsureReader(rank=rank, step=known) for rank in ranks]


def is_in(ranges: Sequence[SampleRange], place: int) -> bool:
    """Whether a place is in one of the ranges, which are in order and without overlap."""
    found = bisect_right(ranges, place, key=lambda each: each[0])
    return found > 0 and place < ranges[found - 1][1]


def size_of(ranges: Iterable[SampleRange]) -> int:
    """How many places are in ranges."""
    return sum(after - first for first, after in ranges)


def returning(queue: QueueState, step: int) -> tuple[list[SampleRange], list[SampleRange], QueueCut]:
    """What a round that continues after a step returns.

    Returns:
        Places of data shards that were leased and not done; those of data shards that were done after the step; what is
        used after it.
    """
    cut, _ = cut_for(queue, step)
    leased = without([(0, queue.next)], queue.todo)
    done = merged([*queue.base.done, *(place for segment in queue.segments for place in done_of(segment))])
    return without(leased, done), without(done, cut.done), cut


def done_of(segment: QueueSegment) -> list[SampleRange]:
    """Places of what the readers of a round had used up, as far as it counts."""
    return [
        place
        for reader in segment.readers.values()
        for place in used_between(reader, reader.base, reader.marks[-1].done)
    ]


# -- changes


def begin(queue: QueueState, round_: int, step: int) -> None:
    """Continue in a round after a step: what was not used up by then is to do again."""
    for committed in [each for each in queue.committing if each <= step]:
        save_cut(queue, committed)
    cut, _ = cut_for(queue, step)
    if step < queue.base_step:
        queue.base, queue.base_step, queue.segments = cut, step, []
    queue.segments = [each for each in queue.segments if each.step < step]
    for segment in queue.segments:
        _close(queue.spec, segment, step)
    if len(queue.segments) >= SEGMENTS_MAX:
        queue.base, queue.base_step, queue.segments = cut, step, []
        queue.cuts[step] = _copy(cut)
    queue.cuts = {each: known for each, known in queue.cuts.items() if each <= step}
    queue.committing = []
    queue.todo, queue.offsets = without([(0, queue.next)], cut.done), dict(sorted(cut.offsets.items()))
    queue.left = _left(queue, cut.done)
    readers = {rank: _reader(node, step) for rank, node in queue.joining.items()}
    queue.segments.append(QueueSegment(round=round_, step=step, readers=readers))
    queue.joining = {}


def _close(spec: QueueSpec, segment: QueueSegment, step: int) -> None:
    """End a round's part of the living lineage with a step; what its readers did later does not count any more."""
    if segment.end is not None and segment.end <= step:
        return
    for reader in segment.readers.values():
        (done, offset), doubt = position_at(spec, reader, step)
        later = next((each for each in reader.marks if each.step >= step), reader.marks[-1])
        rate = -1 if doubt is not None or later is reader.marks[0] else later.rate
        reader.marks = [each for each in reader.marks if each.step < step]
        reader.marks.append(QueueMark(step=step, done=done, offset=offset, rate=rate))
        reader.closed = True
    segment.end = step


def join(queue: QueueState, rank: int, node: str) -> None:
    """Add a reader to the newest round."""
    queue.live.readers.setdefault(rank, _reader(node, queue.live.step))


def _reader(node: str, step: int) -> QueueReader:
    return QueueReader(node=node, marks=[QueueMark(step=step, done=0)])


def _left(queue: QueueState, done: Sequence[SampleRange]) -> dict[int, int]:
    """By epoch that was begun, and is not done: how many of its data shards are left."""
    shards = queue.spec.shards
    left: dict[int, int] = {}
    for first, after in without([(0, -(-queue.next // shards) * shards)], done):
        for epoch in range(first // shards, (after - 1) // shards + 1):
            count = min(after, (epoch + 1) * shards) - max(first, epoch * shards)
            left[epoch] = left.get(epoch, 0) + count
    return left


def save_cut(queue: QueueState, step: int) -> list[SampleRange]:
    """Make what a committed checkpoint contains the base; returns the places that it adds."""
    before = queue.base.done
    cut, _ = cut_at(queue, step)
    queue.base, queue.base_step = cut, step
    queue.cuts[step] = _copy(cut)
    for old in sorted(queue.cuts)[:-CUTS_MAX]:
        del queue.cuts[old]
    queue.segments = [each for each in queue.segments if each.end is None or each.end > step]
    for segment in queue.segments:
        for reader in segment.readers.values():
            _trim(queue.spec, reader, step)
    return without(cut.done, before)


def _copy(cut: QueueCut) -> QueueCut:
    return QueueCut(done=list(cut.done), offsets=dict(cut.offsets))


def _trim(spec: QueueSpec, reader: QueueReader, step: int) -> None:
    """Drop what a reader had used up after a step; it begins there from now on."""
    if step < reader.marks[0].step:
        return
    (done, offset), _ = position_at(spec, reader, step)
    reader.marks = [
        QueueMark(step=step, done=done, offset=offset),
        *(mark for mark in reader.marks if mark.step > step),
    ]
    while reader.leases and reader.base + reader.leases[0][1] - reader.leases[0][0] <= done:
        first, after, _ = reader.leases.pop(0)
        reader.base += after - first
    if reader.leases and done > reader.base:
        first, after, _ = reader.leases[0]
        reader.leases[0] = (first + done - reader.base, after, 0)
        reader.base = done


def is_reported(queue: QueueState, step: int) -> bool:
    """Whether all readers of the newest round have reported a step, or have ended."""
    live = queue.live
    return step <= live.step or all(each.closed or each.marks[-1].step >= step for each in live.readers.values())


def mark(queue: QueueState, reader: QueueReader, new: QueueMark) -> list[SampleRange]:
    """Record how far a reader is; returns the places that it has used up since its last mark."""
    last = reader.marks[-1]
    done = min(new.done, reader.leased)
    if new.step < last.step or done < last.done:
        return []
    new = msgspec.structs.replace(new, done=done)
    continues = new.rate >= 0 and new.rate == last.rate and len(reader.marks) > 1
    if (new.step == last.step or continues) and len(reader.marks) > 1:
        reader.marks[-1] = new
    else:
        reader.marks.append(new)
    if len(reader.marks) > MARKS_MAX:
        reader.marks[1:3] = [msgspec.structs.replace(reader.marks[2], rate=-1)]
    places = used_between(reader, last.done, done)
    for first, after in places:
        for epoch in range(first // queue.spec.shards, (after - 1) // queue.spec.shards + 1):
            low, high = epoch * queue.spec.shards, (epoch + 1) * queue.spec.shards
            queue.left[epoch] = queue.left.get(epoch, 0) - (min(after, high) - max(first, low))
    return places


def lease(queue: QueueState, given: DataLease) -> None:
    """Record a lease."""
    shards = queue.spec.shards
    for epoch in range(-(-queue.next // shards), -(-given.after // shards)):
        queue.left[epoch] = shards
    queue.next = max(queue.next, given.after)
    lowest = queue.todo[0] if queue.todo else (given.first, given.first)
    if lowest[0] == given.first and given.after <= lowest[1]:  # a round of many readers returns as many ranges
        queue.todo[:1] = [(given.after, lowest[1])] if given.after < lowest[1] else []
    else:
        queue.todo = without(queue.todo, [(given.first, given.after)])
    queue.offsets.pop(given.first, None)
    queue.live.readers[given.rank].leases.append((given.first, given.after, given.offset))


def grants(queue: QueueState, wants: Iterable[tuple[int, int]]) -> list[DataLease]:
    """Choose data shards for readers: those of the lowest places.

    Args:
        queue: the queue.
        wants: readers, and how many data shards each of them gets at most.
    """
    wants = list(wants)
    most = sum(count for _, count in wants)
    parts = _parts(queue, most)
    found: list[DataLease] = []
    part = next(parts, None)
    for rank, count in wants:
        at = queue.live.readers[rank].leased
        while count and part is not None:
            first, end, offset = part
            after = min(end, first + count)
            found.append(DataLease(rank=rank, at=at, first=first, after=after, offset=offset))
            at, count = at + after - first, count - (after - first)
            part = (after, end, 0) if after < end else next(parts, None)
    return found


def _parts(queue: QueueState, most: int) -> Iterator[LeasedRange]:
    """What can be leased, in order; a data shard that is used in part is one of its own."""
    partial = iter(queue.offsets)  # in order, and all of them are to do
    place = next(partial, None)
    fresh = (queue.next, queue.end if queue.end is not None else queue.next + most)
    for first, after in chain(queue.todo, [fresh]):
        at = first
        while place is not None and place < after:
            if at < place:
                yield at, place, 0
            yield place, place + 1, queue.offsets[place]
            at, place = place + 1, next(partial, None)
        if at < after:
            yield at, after, 0
