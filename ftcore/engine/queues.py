"""Data queues: what a round continues with, which data shards a reader gets, what is refused. Pure.

A reader asks for many data shards at once, before it needs them. Near the end of the data it gets fewer than it wants,
so that no reader holds what others could use. The next epoch begins as soon as nothing of the present one is left to
lease: ranks that train in step would wait for each other for ever if one waited for the shards of another.
"""

from collections.abc import Iterable

import msgspec

from ftcore.engine.turn import Turn
from ftcore.events.envelope import Event
from ftcore.events.queue import (
    DataLease,
    QueueEpochEnded,
    QueueLeased,
    QueueOpened,
    QueueRefused,
    QueueReported,
    QueueReturned,
    QueueSpec,
)
from ftcore.states.model import JobState
from ftcore.states.queue import QueueState, cut_for, grants, is_in, returning, size_of

LISTED_MAX = 100
"""Ranges and offsets that ``queue.returned`` lists."""

SHARE = 2
"""Near the end of the data a lease is at most this part of what each reader could still get."""

LEASED_MAX = 1 << 20
"""Data shards of one lease at most."""


def serve_queues(turn: Turn) -> None:
    """Decide what follows from a fact about a queue."""
    data = turn.fact.data
    if isinstance(data, QueueOpened):
        _opened(turn, data)
    elif isinstance(data, QueueReported):
        _reported(turn, data)


def _opened(turn: Turn, data: QueueOpened) -> None:
    queue = turn.state.queues.get(data.queue)
    if queue is None or not _is_newest(turn.state, data):
        _refuse(turn, data, data.ranks, "its round has ended")
    elif queue.spec != data.spec:
        _refuse(turn, data, data.ranks, f"other ranks opened {data.queue} with {_text(queue.spec)}")
    elif queue.joining:
        turn.emit(_returned(data.queue, queue, data))


def _text(spec: QueueSpec) -> str:
    return ", ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(spec).items())


def _is_newest(state: JobState, data: QueueOpened) -> bool:
    world, node = state.rounds.world, state.membership.current(data.node, data.incarnation)
    return world is not None and world.round == data.round and node is not None


def _returned(name: str, queue: QueueState, data: QueueOpened) -> QueueReturned:
    doing, done, cut = returning(queue, data.step)
    _, unsure = cut_for(queue, data.step)
    returned = sorted([*doing, *done])
    offsets = [(place, offset) for place, offset in cut.offsets.items() if is_in(returned, place)]
    return QueueReturned(
        queue=name,
        round=data.round,
        step=data.step,
        doing=size_of(doing),
        done=size_of(done),
        ranges=tuple(returned[:LISTED_MAX]),
        offsets=tuple(offsets[:LISTED_MAX]),
        unsure=tuple(unsure[:LISTED_MAX]),
    )


def _reported(turn: Turn, data: QueueReported) -> None:
    queue = turn.state.queues.get(data.queue)
    counts = queue is not None and queue.live.round == data.round
    known = queue.live.readers if queue is not None and counts else {}
    late = tuple(each.rank for each in data.readers if each.rank not in known or known[each.rank].node != data.node)
    if late:
        _refuse(turn, data, late, "the leases have expired with their round")
    if queue is None or not counts:
        return
    for epoch in sorted(epoch for epoch, left in queue.left.items() if left <= 0):
        turn.emit(QueueEpochEnded(queue=data.queue, epoch=epoch + 1, round=data.round))
    share = _share(turn.state, queue)
    asking = [(each.rank, known[each.rank]) for each in data.readers if each.rank not in late]
    asking = [(rank, reader) for rank, reader in asking if not reader.closed and reader.want > reader.leased]
    leases = grants(queue, [(rank, min(reader.want - reader.leased, share)) for rank, reader in asking])
    served = {each.rank for each in leases}
    over = tuple(rank for rank, reader in asking if rank not in served and not reader.over)
    if leases or over:
        turn.emit(QueueLeased(queue=data.queue, round=data.round, leases=tuple(leases), over=over))


def _share(state: JobState, queue: QueueState) -> int:
    """How many data shards a reader gets at most, so that something is left for the others."""
    if queue.remaining is None:
        return LEASED_MAX
    world = state.rounds.world
    readers = max(len(queue.live.readers), world.size if world is not None else 1)
    return min(LEASED_MAX, max(1, queue.remaining // (SHARE * readers)))


def _refuse(turn: Turn, data: QueueOpened | QueueReported, ranks: tuple[int, ...], reason: str) -> None:
    turn.emit(QueueRefused(queue=data.queue, node=data.node, round=data.round, ranks=ranks, reason=reason))


def answers_of(state: JobState, batch: Iterable[Event]) -> dict[str, list[QueueLeased | QueueRefused]]:
    """By node: what a durable batch says to its readers.

    Args:
        state: the folded state exactly at the end of the batch.
        batch: durable events.
    """
    found: dict[str, list[QueueLeased | QueueRefused]] = {}
    for event in batch:
        data = event.data
        if not isinstance(data, QueueLeased | QueueRefused):
            continue
        queue = state.queues.get(data.queue)
        live = queue.live if queue is not None and queue.live.round == data.round else None
        if isinstance(data, QueueRefused):
            if live is not None:  # else its readers have ended with their round
                found.setdefault(data.node, []).append(data)
        else:
            ranks = dict.fromkeys([*(each.rank for each in data.leases), *data.over])
            for node in dict.fromkeys(live.readers[rank].node for rank in ranks if live and rank in live.readers):
                found.setdefault(node, []).append(data)
    return found


def leased_to(state: JobState, node: str) -> list[QueueLeased]:
    """What the readers of a node were leased in the newest round; it is sent again when its agent connects."""
    found = []
    for name, queue in state.queues.items():
        leases: list[DataLease] = []
        over = []
        for rank, reader in queue.live.readers.items():
            at = reader.base
            for first, after, offset in reader.leases if reader.node == node else ():
                leases.append(DataLease(rank=rank, at=at, first=first, after=after, offset=offset))
                at += after - first
            over += [rank] if reader.over and reader.node == node else []
        if leases or over:
            found.append(QueueLeased(queue=name, round=queue.live.round, leases=tuple(leases), over=tuple(over)))
    return found
