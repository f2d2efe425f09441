"""The registry of event types: stable names, versions, upcasters.

House rules: a type name has the form ``noun.past_tense`` and, once released, is never renamed, re-used or removed
(``tests/golden/event_registry.json`` holds the list and only grows). A version is raised when stored data would no
longer load unchanged; the class then has an upcaster from the version before. A change of *meaning* is a new type.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

C = TypeVar("C")
Fields = dict[str, Any]
Upcaster = Callable[[Fields], Fields]


class Kind(StrEnum):
    """Origin of an event: a fact was reported, a decision was made by the master."""

    FACT = "fact"
    DECISION = "decision"


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """One registered type of event.

    Args:
        name: the stable name.
        version: the schema version that this ftcore writes.
        kind: fact or decision.
        ignorable: whether a reader that does not know the type may skip the event.
        payload: the class of ``Event.data``.
        upcasters: by the version that they read; each returns the fields of the next version.
    """

    name: str
    version: int
    kind: Kind
    ignorable: bool
    payload: type[Any]
    upcasters: Mapping[int, Upcaster]


_types: dict[str, EventType] = {}
_by_payload: dict[type[Any], EventType] = {}


def _register(
    kind: Kind, name: str, version: int, ignorable: bool, upcasters: Mapping[int, Upcaster]
) -> Callable[[type[C]], type[C]]:
    if name in _types:
        raise ValueError(f"event type {name!r} is declared twice")
    if set(upcasters) != set(range(1, version)):
        raise ValueError(f"event type {name!r} v{version} needs one upcaster for each older version")

    def declare(payload: type[C]) -> type[C]:
        known = EventType(
            name=name, version=version, kind=kind, ignorable=ignorable, payload=payload, upcasters=dict(upcasters)
        )
        _types[name] = known
        _by_payload[payload] = known
        return payload

    return declare


def fact(
    name: str, *, version: int = 1, ignorable: bool = False, upcasters: Mapping[int, Upcaster] | None = None
) -> Callable[[type[C]], type[C]]:
    """Declare a class as the payload of a fact."""
    return _register(Kind.FACT, name, version, ignorable, upcasters or {})


def decision(
    name: str, *, version: int = 1, ignorable: bool = False, upcasters: Mapping[int, Upcaster] | None = None
) -> Callable[[type[C]], type[C]]:
    """Declare a class as the payload of a decision."""
    return _register(Kind.DECISION, name, version, ignorable, upcasters or {})


def lookup(name: str) -> EventType | None:
    """Return the type of that name, or None if this ftcore does not know it."""
    return _types.get(name)


def type_of(payload: object) -> EventType:
    """Return the event type of a payload object.

    Raises:
        TypeError: the object's class is not declared as an event.
    """
    try:
        return _by_payload[type(payload)]
    except KeyError:
        raise TypeError(f"{type(payload).__name__} is not declared as an event") from None


def all_types() -> tuple[EventType, ...]:
    """Return every declared type, sorted by name."""
    return tuple(_types[name] for name in sorted(_types))
