"""Events of data queues: the data shards that readers take through the master, and what became of them.

A *data shard* is a range of samples, or a file. The shards of all epochs are one sequence of places: place ``shards``
is the first of the second epoch. A *reader* is a rank that takes shards of the queue; what it was leased in a round is
a sequence, and its position in it is a number of whole shards and of samples of the next one.
"""

from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact


class QueueSpec(Payload, frozen=True, kw_only=True):
    """What a queue consists of.

    Args:
        shards: data shards of an epoch.
        epochs: number of epochs; 0: without end.
        samples: samples of an epoch; 0: what a shard holds is known when it is read.
        size: samples of a shard; the last one of an epoch may have fewer. 0: as for ``samples``.
        seed: of the order of the shards.
        shuffle: whether they are shuffled.
    """

    shards: int
    epochs: int
    samples: int = 0
    size: int = 0
    seed: int = 0
    shuffle: bool = False


class QueueMark(Payload, frozen=True, kw_only=True):
    """How far a reader was after a step.

    Args:
        step: the number of the completed step.
        done: data shards of its sequence that it had used up.
        offset: samples that it, or readers before it, had used of the next one.
        rate: samples that each step took since the mark before; -1: not known, or not the same.
    """

    step: int
    done: int
    offset: int = 0
    rate: int = -1


class ReaderReport(Payload, frozen=True, kw_only=True):
    """What a reader reports.

    Args:
        rank: its global rank.
        want: how many data shards it wants to be leased in this round, those before included.
        marks: how far it was, oldest first.
        closed: it has ended: it was never further than the last mark.
    """

    rank: int
    want: int = 0
    marks: tuple[QueueMark, ...] = ()
    closed: bool = False


class DataLease(Payload, frozen=True, kw_only=True):
    """Consecutive data shards for one reader.

    Args:
        rank: its global rank.
        at: data shards that were leased to it before in this round.
        first: the first place.
        after: the place after the last one.
        offset: samples of the first one that are used already.
    """

    rank: int
    at: int
    first: int
    after: int
    offset: int = 0


@fact("queue.opened")
class QueueOpened(Payload, frozen=True, kw_only=True):
    """Readers of a node begin to take data shards of a queue in a round.

    Args:
        node: the node that reports it.
        incarnation: the agent's incarnation.
        round: the round of the readers.
        queue: the queue's name.
        spec: what it consists of.
        step: the number of the last completed step.
        ranks: global ranks of the readers.
    """

    node: str
    incarnation: str
    round: int
    queue: str
    spec: QueueSpec
    step: int
    ranks: tuple[int, ...]


@fact("queue.reported")
class QueueReported(Payload, frozen=True, kw_only=True):
    """Readers of a node report how far they are, and what they want; many steps and shards in one event.

    Args:
        node: the node that reports it.
        incarnation: the agent's incarnation.
        round: the round of the readers.
        queue: the queue's name.
        readers: their reports.
    """

    node: str
    incarnation: str
    round: int
    queue: str
    readers: tuple[ReaderReport, ...]


@decision("queue.leased")
class QueueLeased(Payload, frozen=True, kw_only=True):
    """Data shards are leased to readers, for this round.

    Args:
        queue: the queue's name.
        round: the round of the readers; the leases expire with it.
        leases: the leases.
        over: global ranks for which nothing is left in this round.
    """

    queue: str
    round: int
    leases: tuple[DataLease, ...]
    over: tuple[int, ...] = ()


class UnsureReader(Payload, frozen=True, kw_only=True):
    """A reader of which it is not known how far it was.

    Args:
        rank: its global rank.
        step: the last step after which it is known; what it has used since is used again.
    """

    rank: int
    step: int


@decision("queue.returned")
class QueueReturned(Payload, frozen=True, kw_only=True):
    """A round continues after a step: data shards that were not used up by then are to do again.

    Args:
        queue: the queue's name.
        round: the round.
        step: the number of the last completed step.
        doing: how many of them were leased, and not used up.
        done: how many were used up after that step.
        ranges: the first 100 ranges of their places: first place, place after the last one.
        offsets: of the first 100 that continue at an offset: the place, and the samples that are used.
        unsure: readers of which it is not known how far they were after that step.
    """

    queue: str
    round: int
    step: int
    doing: int
    done: int
    ranges: tuple[tuple[int, int], ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
    unsure: tuple[UnsureReader, ...] = ()


@decision("queue.refused")
class QueueRefused(Payload, frozen=True, kw_only=True):
    """What readers of a node reported does not count.

    Args:
        queue: the queue's name.
        node: the node.
        round: the round of its readers.
        ranks: their global ranks.
        reason: why.
    """

    queue: str
    node: str
    round: int
    ranks: tuple[int, ...]
    reason: str


@decision("queue.epoch_ended")
class QueueEpochEnded(Payload, frozen=True, kw_only=True):
    """All data shards of an epoch are done.

    Args:
        queue: the queue's name.
        epoch: its number, from 1.
        round: the round in which the last one was used up.
    """

    queue: str
    epoch: int
    round: int
