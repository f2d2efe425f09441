"""Handlers of data queues: opened, reported, leased, returned, and saved with a checkpoint."""

from collections.abc import Iterable

from ftcore.events import queue as events
from ftcore.events.envelope import Event
from ftcore.sample_ranges import SampleRange, without
from ftcore.states import queue as queues
from ftcore.states.data import DATA, DataPhase
from ftcore.states.fold.base import Changes, on, step
from ftcore.states.model import JobState
from ftcore.states.queue import QueueSegment, QueueState


def _change(name: str, ranges: Iterable[SampleRange], source: DataPhase, trigger: str, changes: Changes) -> None:
    for first, after in ranges:
        step(DATA, f"{name}/{first}-{after}", source, trigger, changes)


@on(events.QueueOpened)
def _opened(state: JobState, event: Event, data: events.QueueOpened, changes: Changes) -> None:
    world = state.rounds.world
    if world is None or data.round != world.round or state.membership.current(data.node, data.incarnation) is None:
        return
    known = state.queues.get(data.queue)
    if known is None or (known.spec != data.spec and known.live.round < data.round):
        known = QueueState(
            spec=data.spec, base_step=data.step, segments=[QueueSegment(round=data.round, step=data.step)]
        )
        state.queues[data.queue] = known
    if known.spec != data.spec:
        return
    for rank in data.ranks:
        if known.live.round == data.round:
            queues.join(known, rank, data.node)
        else:
            known.joining[rank] = data.node


@on(events.QueueReported)
def _reported(state: JobState, event: Event, data: events.QueueReported, changes: Changes) -> None:
    known = state.queues.get(data.queue)
    if known is None:
        return
    for told in data.readers:
        reader = known.live.readers.get(told.rank)
        if known.live.round != data.round or reader is None or reader.node != data.node:
            step(DATA, f"{data.queue}/rank {told.rank}", DataPhase.DOING, "queue.reported/late", changes)
            continue
        for each in told.marks:
            places = queues.mark(known, reader, each)
            _change(data.queue, places, DataPhase.DOING, "queue.reported/done", changes)
        reader.want = max(reader.want, told.want)
        reader.closed = told.closed
    _save(data.queue, known, changes)


@on(events.QueueLeased)
def _leased(state: JobState, event: Event, data: events.QueueLeased, changes: Changes) -> None:
    known = state.queues[data.queue]
    for given in data.leases:
        queues.lease(known, given)
        _change(data.queue, [(given.first, given.after)], DataPhase.TODO, "queue.leased", changes)
    for rank in data.over:
        known.live.readers[rank].over = True


@on(events.QueueReturned)
def _returned(state: JobState, event: Event, data: events.QueueReturned, changes: Changes) -> None:
    known = state.queues[data.queue]
    doing, done, _ = queues.returning(known, data.step)
    _change(data.queue, doing, DataPhase.DOING, "queue.returned", changes)
    unsaved = without(done, known.base.done)
    _change(data.queue, unsaved, DataPhase.DONE, "queue.returned", changes)
    _change(data.queue, without(done, unsaved), DataPhase.SAVED, "queue.returned", changes)
    queues.begin(known, data.round, data.step)


@on(events.QueueEpochEnded)
def _epoch_ended(state: JobState, event: Event, data: events.QueueEpochEnded, changes: Changes) -> None:
    state.queues[data.queue].left.pop(data.epoch - 1, None)


def committed(state: JobState, at: int, changes: Changes) -> None:
    """Fold a committed checkpoint: what it contains is returned only by going back to an older one."""
    kept = {*state.training.checkpoints, at}
    for name, known in state.queues.items():
        known.cuts = {each: cut for each, cut in known.cuts.items() if each in kept}
        if at >= known.base_step:
            known.committing.append(at)
            _save(name, known, changes)


def _save(name: str, known: QueueState, changes: Changes) -> None:
    while known.committing and queues.is_reported(known, known.committing[0]):
        places = queues.save_cut(known, known.committing.pop(0))
        _change(name, places, DataPhase.DONE, "checkpoint.committed", changes)
