"""What changed in the folded state between two points of a log: fields by path, old and new, and the events.

A section of the state is compared as JSON after every event, and taken apart only if its bytes changed. The work is
bounded: if it would be too much, the differences stay exact, and only the events that made them are not known.
"""

from collections.abc import Iterator
from typing import Any, Final

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.policies.targets import hidden
from ftcore.replay.reading import fold_recorded
from ftcore.states.model import JobState

EVENTS_SHOWN: Final = 5
"""Events that are kept of one field; all are counted."""

WORK_MAX: Final = 2_000_000_000
"""Bytes of JSON that are compared, before events are no longer attributed."""

_TRIVIAL: Final = ("seq", "time")
"""Fields that every event changes."""

ABSENT: Final = "(absent)"

_encoder = msgspec.json.Encoder()


@attrs.define(kw_only=True)
class FieldChange:
    """A field that differs between two points.

    Args:
        path: its path, as ``membership.nodes.node1.phase``.
        old, new: plain values; ``ABSENT`` if there was no such field.
        events: seqs of the first events that changed it.
        count: number of events that changed it; 0: not known.
    """

    path: str
    old: Any
    new: Any
    events: list[int] = attrs.field(factory=list)
    count: int = 0


class StateDiffer:
    """A reader that follows the changes of a state.

    Args:
        state: the state at the first point; changed in place by the events after it.
        attribute: whether to note which event changed what.
    """

    def __init__(self, state: JobState, *, attribute: bool = True) -> None:
        self.state = state
        self._sections = [name for name in _section_names(state) if name not in _TRIVIAL]
        self._bytes = {name: _encoded(state, name) for name in self._sections}
        self._flat = {name: _flat(name, self._bytes[name]) for name in self._sections}
        self._before = dict(self._flat)
        self._touched: dict[str, FieldChange] = {}
        self._work = 0
        self.attributed = attribute

    def feed(self, event: Event) -> list[FieldChange]:
        """Fold the next event; returns what it changed, if changes are attributed."""
        fold_recorded(self.state, event)
        if not self.attributed:
            return []
        changes: list[FieldChange] = []
        for name in self._sections:
            body = _encoded(self.state, name)
            self._work += len(body)
            if body == self._bytes[name]:
                continue
            flat = _flat(name, body)
            changes += _compared(self._flat[name], flat)
            self._bytes[name], self._flat[name] = body, flat
        for change in changes:
            known = self._touched.setdefault(change.path, change)
            known.count += 1
            if len(known.events) < EVENTS_SHOWN:
                known.events.append(event.seq)
        if self._work > WORK_MAX:
            self.attributed = False
        return changes

    def changes(self) -> list[FieldChange]:
        """The fields that differ between the first point and now, in order of the state."""
        found = []
        for name in self._sections:
            now = _flat(name, _encoded(self.state, name))
            for change in _compared(self._before[name], now):
                known = self._touched.get(change.path) if self.attributed else None
                if known is not None:
                    change.events, change.count = known.events, known.count
                found.append(change)
        return found


def _section_names(state: JobState) -> list[str]:
    return list(msgspec.to_builtins(state, str_keys=True))


def _encoded(state: JobState, name: str) -> bytes:
    value = getattr(state, name)
    if name == "policy":  # URLs of alerts may hold secrets
        plain = msgspec.to_builtins(value, str_keys=True)
        value = {**plain, "chain": hidden(plain["chain"])}
    return _encoder.encode(value)


def _flat(name: str, body: bytes) -> dict[str, Any]:
    return dict(_leaves(name, msgspec.json.decode(body)))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value  # a list is one value: places in it mean nothing


def _compared(old: dict[str, Any], new: dict[str, Any]) -> list[FieldChange]:
    """The fields that differ. What was empty and has fields now, or the other way round, is told by these fields."""
    pairs = ((path, old.get(path, ABSENT), new.get(path, ABSENT)) for path in dict.fromkeys((*old, *new)))
    found = [FieldChange(path=path, old=before, new=after) for path, before, after in pairs if before != after]
    if old.keys() == new.keys():
        return found
    outer = {path[:at] for path in (*old, *new) for at, char in enumerate(path) if char == "."}
    return [each for each in found if each.path not in outer or not all(map(_is_empty, (each.old, each.new)))]


def _is_empty(value: Any) -> bool:
    return value is None or value == ABSENT or value == {}
