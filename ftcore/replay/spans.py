"""The use of a job's time as a row of spans without gap or overlap, in nanoseconds."""

from collections.abc import Collection, Iterator
from typing import Final

import attrs

PRODUCTIVE: Final = "productive"
USES: Final = (
    PRODUCTIVE,
    "checkpoint",
    "detect",
    "decide",
    "stop",
    "rendezvous",
    "start",
    "load",
    "recompute",
    "idle",
    "paused",
)
"""What a job's time is used for, in the order of tables; ``docs/explanation/goodput.md`` defines each."""


@attrs.define(kw_only=True)
class Span:
    """A stretch of time with one use.

    Args:
        begin: nanoseconds since the epoch, the master's clock.
        end: likewise.
        use: one of ``USES``.
        incident: the incident that it is due to; None: none.
    """

    begin: int
    end: int
    use: str
    incident: str | None = None


class SpanRow:
    """Spans in order of time. New ones are added at the end; the newest can get another use."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @property
    def end(self) -> int | None:
        """End of the last span; None: there is none."""
        return self.spans[-1].end if self.spans else None

    def add(self, begin: int, end: int, use: str, incident: str | None) -> None:
        """Add a span behind the last one; an empty one is left out, one like the last prolongs it."""
        if end <= begin:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.use, last.incident, last.end) == (use, incident, begin):
            last.end = end
        else:
            self.spans.append(Span(begin=begin, end=end, use=use, incident=incident))

    def change(self, begin: int, end: int, uses: Collection[str], use: str, incident: str | None) -> None:
        """Give another use to the part of the newest spans that is between two times and has one of some uses."""
        taken = self._taken_since(begin)
        for span in taken:
            low, high = max(span.begin, begin), min(span.end, end)
            if span.use not in uses or low >= high:
                self.add(span.begin, span.end, span.use, span.incident)
                continue
            self.add(span.begin, low, span.use, span.incident)
            self.add(low, high, use, incident)
            self.add(high, span.end, span.use, span.incident)

    def divide(self, begin: int, use: str, parts: list[tuple[int, str, str | None]]) -> None:
        """Divide the time with one use since ``begin`` into parts, in order of time.

        Args:
            begin: where to begin.
            use: the use to replace.
            parts: length in nanoseconds, use and incident of each; the last one gets what is left.
        """
        rest = list(parts)
        for span in self._taken_since(begin):
            if span.use != use:
                self.add(span.begin, span.end, span.use, span.incident)
                continue
            at = max(span.begin, begin)
            self.add(span.begin, at, span.use, span.incident)
            while at < span.end:
                length, name, incident = rest[0]
                until = span.end if len(rest) == 1 else min(span.end, at + length)
                self.add(at, until, name, incident)
                if len(rest) > 1:
                    left = length - (until - at)
                    rest[0:1] = [(left, name, incident)] if left > 0 else []
                at = until

    def length(self, begin: int, use: str) -> int:
        """Nanoseconds with one use since ``begin``."""
        return sum(span.end - max(span.begin, begin) for span in self._since(begin) if span.use == use)

    def _since(self, begin: int) -> Iterator[Span]:
        for span in reversed(self.spans):
            if span.end <= begin:
                return
            yield span

    def _taken_since(self, begin: int) -> list[Span]:
        """Remove the spans that end after a time, and return them."""
        keep = len(self.spans)
        while keep and self.spans[keep - 1].end > begin:
            keep -= 1
        taken = self.spans[keep:]
        del self.spans[keep:]
        return taken
