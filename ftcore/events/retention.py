"""Events of the log itself: what was taken out of its store, and how full that is.

The state of a job does not depend on them; they are here so that people can read what became of their log.
"""

import attrs

from ftcore.events.registry import fact


@fact("archive.extended", ignorable=True)
@attrs.frozen(kw_only=True)
class ArchiveExtended:
    """Events were archived and taken out of the live log.

    Args:
        archive: the directory that they are in.
        until: the last archived event.
        floor: the last event that is no longer in the live log.
    """

    archive: str
    until: int
    floor: int


@fact("archive.failed", ignorable=True)
@attrs.frozen(kw_only=True)
class ArchiveFailed:
    """The archive cannot be used now; nothing is taken out of the live log meanwhile.

    Args:
        archive: the directory.
        error: why.
    """

    archive: str
    error: str


@fact("space.ran_low", ignorable=True)
@attrs.frozen(kw_only=True)
class SpaceRanLow:
    """The log's store is nearly full, or full; samples of progress are left out until it is not.

    Args:
        used: bytes that count against its limit.
        limit: its limit in bytes; 0 if the store does not tell.
        full: it took no events.
    """

    used: int
    limit: int
    full: bool


@fact("space.recovered", ignorable=True)
@attrs.frozen(kw_only=True)
class SpaceRecovered:
    """The log's store has room again.

    Args:
        used: bytes that count against its limit.
        limit: its limit in bytes; 0 if the store does not tell.
    """

    used: int
    limit: int
