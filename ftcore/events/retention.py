"""Events of log retention: events moved to the archive, and the space left in the store.

The state of a job does not depend on them; they are for operators.
"""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("archive.extended", ignorable=True)
class ArchiveExtended(Payload, frozen=True, kw_only=True):
    """Events were archived and removed from the live log.

    Args:
        archive: the archive's directory.
        until: the last archived event.
        floor: the last event that is no longer in the live log.
    """

    archive: str
    until: int
    floor: int


@fact("archive.failed", ignorable=True)
class ArchiveFailed(Payload, frozen=True, kw_only=True):
    """The archive is unavailable; no event is removed from the live log meanwhile.

    Args:
        archive: the directory.
        error: why.
    """

    archive: str
    error: str


@fact("space.ran_low", ignorable=True)
class SpaceRanLow(Payload, frozen=True, kw_only=True):
    """The log's store is full or nearly full; progress samples are not recorded until it has space again.

    Args:
        used: bytes that count against its limit.
        limit: its limit in bytes; 0: not known.
        full: the store refused events.
    """

    used: int
    limit: int
    full: bool


@fact("space.recovered", ignorable=True)
class SpaceRecovered(Payload, frozen=True, kw_only=True):
    """The log's store has space again.

    Args:
        used: bytes that count against its limit.
        limit: its limit in bytes; 0: not known.
    """

    used: int
    limit: int
