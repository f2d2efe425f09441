"""The frame with which a master hands data shards to the readers of a node."""

import msgspec

from ftcore.events.queue import DataLease


class QueueNews(msgspec.Struct, frozen=True, tag_field="f", tag="queue", omit_defaults=True):
    """Data shards for readers of a node; sent again when its agent connects.

    Args:
        queue: the queue's name.
        round: the round of the readers.
        leases: the leases.
        over: global ranks for which nothing is left.
        refused: global ranks whose report does not count.
        reason: why.
    """

    queue: str
    round: int
    leases: tuple[DataLease, ...] = ()
    over: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    reason: str = ""
