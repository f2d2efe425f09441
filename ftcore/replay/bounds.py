"""Positions in a log. House rule: imports no events, because the command line parses its arguments with it."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ftcore.events.envelope import Event


class Bound(NamedTuple):
    """A position in a log, by one of three measures.

    Args:
        seq: sequence number.
        time: the events' time, nanoseconds since the epoch.
        ago: nanoseconds before now; call ``settled`` before use.
    """

    seq: int | None = None
    time: int | None = None
    ago: int | None = None

    def settled(self, now: int) -> "Bound":
        """The same position without ``ago``; ``now`` is the log's clock in nanoseconds."""
        return self if self.ago is None else Bound(time=now - self.ago)

    def compare(self, event: "Event") -> int:
        """Negative if the event is before the position, 0 if at it, positive if after it."""
        if self.seq is not None:
            return event.seq - self.seq
        assert self.time is not None
        return event.time - self.time

    def is_after(self, other: "Bound") -> bool:
        """Whether it is after another position of the same measure; both are settled."""
        if self.seq is not None and other.seq is not None:
            return self.seq > other.seq
        return self.time is not None and other.time is not None and self.time > other.time
