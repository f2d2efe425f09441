"""Events of log retention: events moved to the archive, and the space left in the store.

The state of a job does not depend on them; they are for operators.
"""

import attrs

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("archive.extended", ignorable=True)
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ArchiveExtended(Payload):
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
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ArchiveFailed(Payload):
    """The archive is unavailable; no event is removed from the live log meanwhile.

    Args:
        archive: the directory.
        error: why.
    """

    archive: str
    error: str


@fact("space.ran_low", ignorable=True)
@attrs.frozen(kw_only=True, repr=False, eq=False)
class SpaceRanLow(Payload):
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
@attrs.frozen(kw_only=True, repr=False, eq=False)
class SpaceRecovered(Payload):
    """The log's store has space again.

    Args:
        used: bytes that count against its limit.
        limit: its limit in bytes; 0: not known.
    """

    used: int
    limit: int
