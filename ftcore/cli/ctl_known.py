"""Points of a log, and the state as far as this ftcore understands the log."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import msgspec

from ftcore.cli.ctl_events import settled_bound
from ftcore.errors import NotFound, UnknownEvent
from ftcore.events.envelope import Event, Unknown
from ftcore.events.master import MasterElected
from ftcore.ids import Seq
from ftcore.policies.targets import hidden
from ftcore.ports import AppendOnlyLog
from ftcore.replay.bounds import Bound
from ftcore.replay.differences import ABSENT, FieldChange
from ftcore.replay.reading import fold_recorded
from ftcore.states.model import JobState
from ftcore.states.revisions import NEWEST
from ftcore.states.snapshot import recall
from ftcore.wording import plural, printable

VALUE_CHARS_MAX = 200
"""Most characters of a value in a line of ``--diff``; JSON has it whole."""


@attrs.define
class KnownState:
    """A state, and what could not be understood on the way to it.

    Attributes:
        state: the state.
        skipped: number of ignorable events of unknown types that were skipped, by type.
        stopped: why the state ends before the requested point; empty: it does not.
        newer: the newest unknown revision of the decision rules that a master used; 0: all are known.
    """

    state: JobState
    skipped: dict[str, int] = attrs.field(factory=dict)
    stopped: str = ""
    newer: int = 0

    def note(self, event: Event) -> None:
        """Note an event that was folded."""
        if type(event.data) is Unknown:
            self.skipped[event.type] = self.skipped.get(event.type, 0) + 1
        elif type(event.data) is MasterElected and event.data.decides > NEWEST:
            self.newer = max(self.newer, event.data.decides)

    def lines(self) -> list[str]:
        """What the reader should know, as messages."""
        found = []
        if self.skipped:
            types = ", ".join(f"{name} ({count})" for name, count in self.skipped.items())
            found.append(f"skipped {plural(sum(self.skipped.values()), 'event')} of unknown types: {types}")
        if self.newer:
            found.append(
                f"a master decided by revision {self.newer} of the rules, this ftcore knows up to {NEWEST}: the state "
                "may lack what is newer, and decisions cannot be compared"
            )
        if self.stopped:
            found.append(f"the state is known up to event {self.state.seq}: {self.stopped}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"skipped_types": self.skipped, "stopped": self.stopped or None, "newer_revision": self.newer or None}


async def fold_known(
    events: AsyncIterator[Event], known: KnownState, feed: Callable[[Event], object] | None = None
) -> KnownState:
    """Fold events until the first one that may not be skipped.

    Args:
        events: the events after the state.
        known: the state; changed in place.
        feed: folds an event into that state; None: ``fold_recorded``.
    """
    async for event in events:
        try:
            if feed is None:
                fold_recorded(known.state, event)
            else:
                feed(event)
        except UnknownEvent as error:
            known.stopped = str(error)
            break
        known.note(event)
    return known


async def known_state(log: AppendOnlyLog, until: Seq | None) -> KnownState:
    """The state after an event, or at the end of the log."""
    restored = await recall(log, until)
    return await fold_known(log.read(Seq(restored.state.seq), until), KnownState(restored.state))


async def seq_of(bound: Bound | None, log: AppendOnlyLog) -> Seq | None:
    """The event at a position: the last one at or before a time.

    Raises:
        NotFound: the position is after the last event or before the first one.
    """
    if bound is None:
        return None
    last = await log.last_seq()
    settled = await settled_bound(bound, log)
    assert settled is not None
    if settled.seq is not None:
        if settled.seq > last:
            raise NotFound(f"the log of {log.job} ends at event {last}")
        return Seq(settled.seq)
    found = Seq(0)
    async for event in log.read():
        if settled.compare(event) > 0:
            break
        found = event.seq
    if not found:
        raise NotFound(f"the log of {log.job} begins after that time" if last else f"the log of {log.job} is empty")
    return found


def shown_state(state: JobState) -> dict[str, Any]:
    """The state as plain JSON; URLs in the chain's options are reduced to their scheme."""
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    return {**plain, "policy": {**plain["policy"], "chain": hidden(plain["policy"]["chain"])}}


def change_line(change: FieldChange) -> str:
    """A changed field in one line, without control characters."""
    events = f"  (event {', '.join(map(str, change.events))}" if change.events else ""
    more = f" and {change.count - len(change.events)} more" if change.count > len(change.events) else ""
    return printable(
        f"{change.path}: {_value(change.old)} -> {_value(change.new)}{events}{more}{')' if events else ''}"
    )


def _value(value: Any) -> str:
    text = value if value == ABSENT else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 1]}…"
