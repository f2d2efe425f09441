"""The events of a report: all of a short log; of a long one, routine events are thinned out first, landmarks last.

Of a thinned class every second, fourth, ... event is left, so what is shown is spread evenly over the log.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs

from ftcore.events.envelope import Event
from ftcore.replay.report.limits import EVENTS_MAX
from ftcore.replay.report.text import line

ROUTINE: Final = frozenset(
    {
        "action.done",
        "checkpoint.committed",
        "deadline.expired",
        "health.checked",
        "interval.chosen",
        "job.progressed",
        "memory.held",
        "node.warmed",
        "order.obeyed",
        "shard.persisted",
        "state.loaded",
        "workers.started",
        "workers.stepped",
        "workers.stopped",
    }
)
"""Types of events that a healthy job has in great number."""

LANDMARKS: Final = frozenset(
    {
        "incident.exhausted",
        "incident.opened",
        "incident.resolved",
        "job.finished",
        "job.rolled_back",
        "job.submitted",
        "master.elected",
        "node.lost",
        "operator.commanded",
        "operator.noted",
        "worker.failed",
        "world.formed",
    }
)
"""Types of events that a reader looks for: they are thinned out only if nothing else is left."""

_FEW: Final = 8
"""A class is spared once it holds less than one in so many of the rows."""

_MILLISECOND: Final = 1_000_000


@attrs.define
class _Class:
    """Events of one importance, as rows."""

    rows: list[tuple[int, int, str, str, str | None, str, str]] = attrs.field(factory=list)
    stride: int = 1
    seen: int = 0

    def thin(self) -> None:
        """Leave every second one."""
        self.rows = self.rows[::2]
        self.stride *= 2


class EventTable:
    """Collects the rows of the event table.

    Args:
        summary: an event in one line.
        style: how an event is shown: ``bad``, ``good``, ``warn``, ``strong``, ``quiet`` or empty.
        most: the limit.
    """

    def __init__(self, summary: Callable[[Event], str], style: Callable[[Event], str], most: int = EVENTS_MAX) -> None:
        self._summary, self._style, self._most = summary, style, most
        self._routine, self._other, self._landmarks = self._classes = (_Class(), _Class(), _Class())
        self._by_type: dict[str, _Class] = {
            **dict.fromkeys(LANDMARKS, self._landmarks),
            **dict.fromkeys(ROUTINE, self._routine),
        }

    def feed(self, event: Event) -> None:
        """Add an event, unless its class is thinned out and it is one of those left out."""
        kept = self._by_type.get(event.type, self._other)
        place = kept.seen
        kept.seen += 1
        if place % kept.stride:
            return
        text, style = line(self._summary(event)), self._style(event)
        kept.rows.append((event.seq, event.time, event.type, event.source, event.incident, style, text))
        if self._shown() > self._most:
            # The most routine class that is not spared; above the limit not all three can be.
            next(each for each in self._classes if len(each.rows) * _FEW > self._most).thin()

    def _shown(self) -> int:
        return len(self._routine.rows) + len(self._other.rows) + len(self._landmarks.rows)

    def to_json(self, begin: int) -> dict[str, Any]:
        """The rows by column; numbers as differences from the row before, which compress well.

        Args:
            begin: time of the first event, nanoseconds since the epoch.
        """
        rows = sorted(row for each in self._classes for row in each.rows)
        words: dict[str, int] = {}
        columns: dict[str, list[Any]] = {name: [] for name in ("seq", "ms", "type", "source", "incident", "style")}
        last_seq = last_ms = 0
        for seq, time, kind, source, incident, style, _ in rows:
            now = (time - begin) // _MILLISECOND
            columns["seq"].append(seq - last_seq)
            columns["ms"].append(now - last_ms)
            last_seq, last_ms = seq, now
            for name, word in (
                ("type", kind),
                ("source", line(source)),
                ("incident", incident or ""),
                ("style", style),
            ):
                columns[name].append(words.setdefault(word, len(words)))
        return {**columns, "text": [row[-1] for row in rows], "words": list(words)}

    def left_out(self) -> dict[str, int]:
        """How the events were thinned out: every ``routine``-th, ``other``-th and ``landmarks``-th is shown."""
        return {
            "total": sum(each.seen for each in self._classes),
            "shown": self._shown(),
            "routine": self._routine.stride,
            "other": self._other.stride,
            "landmarks": self._landmarks.stride,
        }
