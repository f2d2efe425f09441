"""The clock of the runtime."""

from ftcore.events.envelope import At
from ftcore.ids import Nanoseconds
from ftcore.ports import Host
from ftcore.runtime.host import THIS_HOST


class SystemClock:
    """Wall time that starts at the host's clock and then follows the monotonic clock.

    So a step of the host's clock does not move the deadlines of a leading master. ``not_before`` prevents a new master
    from starting behind the log, and ``ahead`` from running ahead of it: a failover to a host with a wrong clock
    neither expires deadlines nor ages budgets.

    Args:
        not_before: lower bound of ``now``, in nanoseconds since the epoch.
        ahead: nanoseconds by which the log's clock is ahead of this boot's monotonic clock; None: unknown, the host's
            clock is used.
        host: the machine.
    """

    def __init__(self, not_before: int = 0, ahead: int | None = None, host: Host = THIS_HOST) -> None:
        mono = host.mono()
        self._base = max(host.wall() if ahead is None else mono + ahead, not_before) - mono
        self._host = host

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""
        return Nanoseconds(self._base + self._host.mono())

    def mono(self) -> Nanoseconds:
        """Nanoseconds of the boot's monotonic clock."""
        return self._host.mono()


def at(mono_ns: int | None = None, host: Host = THIS_HOST) -> At:
    """The time by a host's clocks, for the ``at`` of a fact.

    Args:
        mono_ns: when the fact happened, in monotonic nanoseconds; None: now.
        host: the machine.
    """
    mono, wall = int(host.mono()), int(host.wall())
    if mono_ns is not None:
        wall -= mono - mono_ns
        mono = mono_ns
    return At(wall=wall, mono=mono, boot=host.boot)
