"""The envelope: what every event carries besides its data.

House rules: an event is immutable. ``seq`` and ``time`` are stamped by the sequencing master alone; ``time`` is the
only time the core ever reads, it never decreases, and a decision carries the time of its fact. ``at`` is what the
source's own clocks said: for display and for correcting phases, never for deciding.
"""

from typing import Any, NamedTuple

import attrs
import msgspec

from ftcore.events.registry import Kind, type_of
from ftcore.ids import IncidentId, Nanoseconds, Seq, Term


class EventId(NamedTuple):
    """Who says so, and the how-manieth thing it says: duplicates carry the same id and are dropped.

    Args:
        source: a node's name, or ``master``.
        incarnation: the life of the source that made the event; for a master its term.
        n: dense from 1 within the incarnation.
    """

    source: str
    incarnation: str
    n: int


class At(msgspec.Struct, frozen=True):
    """The source's own clocks when the thing happened.

    Args:
        wall: nanoseconds since the epoch.
        mono: nanoseconds of the boot's monotonic clock; comparable only between equal ``boot``.
        boot: the kernel's boot id.
    """

    wall: int
    mono: int
    boot: str


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a job's log.

    Args:
        seq: position in the log, dense from 1.
        id: identity given by the source.
        time: nanoseconds since the epoch, stamped by the master, never decreasing.
        type: stable name of the type, as ``worker.failed``.
        kind: fact or decision.
        source: who reported or decided it.
        term: the term of the master that sequenced it.
        v: schema version of ``data``.
        data: the payload: an instance of the type's attrs class, or ``Unknown``.
        at: the source's clocks, if it told.
        cause: seq of the fact that a decision answers; of the earlier event that provoked a fact, if known.
        incident: the incident it belongs to, if any.
        ignorable: a reader that does not know the type may go on without it.
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
    """A fact before it is sequenced: what a source sends to the master.

    Args:
        id: identity; sending it again with the same id is harmless.
        data: payload of a declared fact type.
        at: the source's clocks when it happened.
        cause: seq of the event that provoked it, if known.
    """

    id: EventId
    data: Any
    at: At | None = None
    cause: Seq | None = None

    @property
    def type(self) -> str:
        """The stable name of the fact's type."""
        return type_of(self.data).name


@attrs.frozen(kw_only=True)
class Unknown:
    """Payload of an event whose type or version this ftcore does not know: kept and shown, never interpreted.

    Args:
        fields: the data as it stands in the log.
    """

    fields: Any
