"""The runtime's clock."""

import time
from functools import cache
from pathlib import Path

from ftcore.events.envelope import At
from ftcore.ids import Nanoseconds


class SystemClock:
    """Wall time that starts at the system's clock and then follows the monotonic one.

    Stepping the system's clock by an hour therefore moves no deadline of a master in office; ``not_before`` keeps a new
    master from starting behind the log that it continues, and ``ahead`` from running ahead of it: a host whose clock is
    an hour off neither lets deadlines pass nor budgets grow old when it takes over.

    Args:
        not_before: nanoseconds since the epoch below which ``now`` never is.
        ahead: by how much the log's clock is ahead of this boot's monotonic one, if known; else the system's clock
            counts.
    """

    def __init__(self, not_before: int = 0, ahead: int | None = None) -> None:
        mono = time.monotonic_ns()
        self._base = max(time.time_ns() if ahead is None else mono + ahead, not_before) - mono

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""
        return Nanoseconds(self._base + time.monotonic_ns())

    def mono(self) -> Nanoseconds:
        """Nanoseconds of the boot's monotonic clock."""
        return Nanoseconds(time.monotonic_ns())


UNKNOWN = "unknown"
"""The boot id of a machine that does not tell it."""


@cache
def boot_id() -> str:
    """This boot of the machine, or ``UNKNOWN``: what clocks that count from a boot are to be compared within."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN


def at(mono_ns: int | None = None) -> At:
    """This machine's clocks, for the ``at`` of a fact.

    Args:
        mono_ns: monotonic nanoseconds at which the thing happened; now if None.
    """
    mono = time.monotonic_ns()
    wall = time.time_ns()
    if mono_ns is not None:
        wall -= mono - mono_ns
        mono = mono_ns
    return At(wall=wall, mono=mono, boot=boot_id())
