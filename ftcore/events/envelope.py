"""The envelope: the fields of every event besides its data.

House rules: an event is immutable. Only the sequencing master sets ``seq`` and ``time``. ``time`` is the only time that
the core reads; it never decreases, and a decision has the time of its fact. ``at`` holds the source's own clocks: for
display and for measuring phases, never for decisions.
"""

from typing import Any, NamedTuple

import msgspec

from ftcore.events.registry import Kind, type_of
from ftcore.ids import IncidentId, Nanoseconds, Seq, Term


class EventId(NamedTuple):
    """Source of an event and sequence number within the source; duplicates have the same ID and are dropped.

    Args:
        source: a node's name, or ``master``.
        incarnation: the incarnation of the source; for a master its term.
        n: sequence number within the incarnation, from 1, without gaps.
    """

    source: str
    incarnation: str
    n: int


class At(msgspec.Struct, frozen=True):
    """The source's own clocks at the time of the event.

    Args:
        wall: nanoseconds since the epoch.
        mono: nanoseconds of the boot's monotonic clock; comparable only between equal ``boot``.
        boot: the kernel's boot ID.
    """

    wall: int
    mono: int
    boot: str


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a job's log.

    Args:
        seq: position in the log, from 1, without gaps.
        id: identity given by the source.
        time: nanoseconds since the epoch, set by the master, never decreasing.
        type: stable name of the type, for example ``worker.failed``.
        kind: fact or decision.
        source: the node or master that reported or decided it.
        term: the term of the master that sequenced it.
        v: schema version of ``data``.
        data: the payload: an instance of the type's class, or ``Unknown``.
        at: the source's clocks, if reported.
        cause: of a decision: seq of its fact; of a fact: seq of the event that caused it, if known.
        incident: the incident it belongs to, if any.
        ignorable: a reader that does not know the type may skip the event.
    """

    seq: Seq
    id: EventId
    time: Nanoseconds
    type: str
    kind: Kind
    source: str
    term: Term
    v: int = 1
    at: At | None = None
    cause: Seq | None = None
    incident: IncidentId | None = None
    ignorable: bool = False
    data: Any = None


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact before it is sequenced, as a source sends it to the master.

    Args:
        id: identity; sending a fact again under the same ID is idempotent.
        data: payload of a declared fact type.
        at: the source's clocks when it happened.
        cause: seq of the event that caused it, if known.
    """

    id: EventId
    data: Any
    at: At | None = None
    cause: Seq | None = None

    @property
    def type(self) -> str:
        """The stable name of the fact's type."""
        return type_of(self.data).name


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of an event whose type or version this ftcore does not know: kept and shown, never interpreted.

    Args:
        fields: the data as recorded in the log.
    """

    fields: Any
