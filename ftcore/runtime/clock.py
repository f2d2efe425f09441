"""The runtime's clock."""

from ftcore.events.envelope import At
from ftcore.ids import Nanoseconds
from ftcore.ports import Host
from ftcore.runtime.host import HERE


class SystemClock:
    """Wall time that starts at the host's clock and then follows the monotonic one.

    Stepping the host's clock by an hour therefore moves no deadline of a master in office; ``not_before`` keeps a new
    master from starting behind the log that it continues, and ``ahead`` from running ahead of it: a host whose clock is
    an hour off neither lets deadlines pass nor budgets grow old when it takes over.

    Args:
        not_before: nanoseconds since the epoch below which ``now`` never is.
        ahead: by how much the log's clock is ahead of this boot's monotonic one, if known; else the host's clock
            counts.
        host: whose clocks.
    """

    def __init__(self, not_before: int = 0, ahead: int | None = None, host: Host = HERE) -> None:
        mono = host.mono()
        self._base = max(host.wall() if ahead is None else mono + ahead, not_before) - mono
        self._host = host

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""
        return Nanoseconds(self._base + self._host.mono())

    def mono(self) -> Nanoseconds:
        """Nanoseconds of the boot's monotonic clock."""
        return self._host.mono()


def at(mono_ns: int | None = None, host: Host = HERE) -> At:
    """A host's clocks, for the ``at`` of a fact.

    Args:
        mono_ns: monotonic nanoseconds at which the thing happened; now if None.
        host: whose clocks.
    """
    mono, wall = int(host.mono()), int(host.wall())
    if mono_ns is not None:
        wall -= mono - mono_ns
        mono = mono_ns
    return At(wall=wall, mono=mono, boot=host.boot)
