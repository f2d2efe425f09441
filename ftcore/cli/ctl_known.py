"""Points of a log, and the state there, as far as the log can be read."""

from typing import Any

import msgspec

from ftcore.cli.ctl_events import settled_bound
from ftcore.cli.ctl_reading import LogReading
from ftcore.errors import NotFound
from ftcore.ids import Seq
from ftcore.policies.targets import hidden
from ftcore.replay.bounds import Bound
from ftcore.replay.differences import ABSENT, FieldChange
from ftcore.replay.reading import Folder
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall
from ftcore.wording import printable

VALUE_CHARS_MAX = 200
"""Most characters of a value in a line of ``--diff``; JSON has it whole."""


async def known_state(reading: LogReading, until: Seq | None) -> JobState:
    """The state after an event, or as far as the log can be read."""
    restored = await recall(reading.log, until)
    folder = Folder(restored.state)
    await reading.feed(folder, after=Seq(restored.state.seq), until=until)
    if reading.halfway and (until is None or until > reading.ends):  # the event may be half folded
        return await known_state(reading, reading.ends)
    return folder.state


async def seq_of(bound: Bound | None, reading: LogReading) -> Seq | None:
    """The event at a position: the last one at or before a time.

    Raises:
        NotFound: the position is after the last event or before the first one.
    """
    if bound is None:
        return None
    log = reading.log
    last = await log.last_seq()
    settled = await settled_bound(bound, log)
    assert settled is not None
    if settled.seq is not None:
        if settled.seq > last:
            raise NotFound(f"the log of {log.job} ends at event {last}")
        return Seq(settled.seq)
    found = Seq(0)
    async for event in reading.events():
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
