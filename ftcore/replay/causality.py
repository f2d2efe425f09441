"""What led to what in an incident: its events as a tree.

A decision follows from the fact of its turn, an answer from its order, the start of workers from the world that was
formed, a consequence of the fault from its root. An expired timer follows from the newest decision of the incident.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import attrs
import msgspec

from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import StateLoaded
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentExhausted, IncidentOpened, IncidentRediagnosed, IncidentResolved
from ftcore.events.policy import PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.worker import WorkersStarted, WorkersStepped
from ftcore.events.world import WorldFormed

ALIKE_MAX: Final = 4
"""Events of one type and cause that are kept; more are counted."""

RECENT_MAX: Final = 256
"""Facts before an incident among which its root and its consequences are looked for."""


@attrs.define(kw_only=True)
class CauseNode:
    """An event of an incident.

    Args:
        event: the event.
        parent: seq of the event that it follows from; None: of none in this incident.
        alike: further events of its type with the same cause that are not kept.
    """

    event: Event
    parent: int | None
    alike: int = 0


def depth_first(nodes: Sequence[CauseNode]) -> list[tuple[CauseNode, int]]:
    """The events as they are shown: each with its depth, below the event that it follows from.

    Policies that pass are left out: the list of decisions has them.
    """
    children: dict[int | None, list[CauseNode]] = {}
    for node in nodes:
        data = node.event.data
        if not (type(data) is PolicyConsidered and data.verdict == "pass"):
            children.setdefault(node.parent, []).append(node)
    order: list[tuple[CauseNode, int]] = []
    pending = [(node, 0) for node in reversed(children.get(None, ()))]
    while pending:
        node, depth = pending.pop()
        order.append((node, depth))
        pending += [(child, depth + 1) for child in reversed(children.get(node.event.seq, ()))]
    return order


@attrs.define(kw_only=True)
class IncidentRange:
    """The events of a log that the tree of one incident is made of.

    Args:
        id: the incident.
        first: seq of the first of them.
        last: seq of the last; None: the incident is not over.
    """

    id: str
    first: int
    last: int | None = None


class SavedRanges(msgspec.Struct, frozen=True):
    """An ``IncidentRanges``: the ranges in order, and the seqs of the newest facts."""

    ranges: list[IncidentRange]
    recent: list[int]


class IncidentRanges:
    """A reader that notes for each incident which events ``CausalTree`` needs: fed with these alone, the tree is the
    same as if it was fed with the whole log."""

    def __init__(self) -> None:
        self._ranges: list[IncidentRange] = []
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if event.kind is Kind.FACT:
            self._recent.append(event.seq)
        elif type(event.data) is IncidentOpened and event.incident is not None:
            self._ranges.append(IncidentRange(id=event.incident, first=self._recent[0] if self._recent else event.seq))
        elif isinstance(event.data, IncidentResolved | IncidentExhausted):
            for entry in self._ranges:
                if entry.id == event.incident and entry.last is None:
                    entry.last = event.seq

    def of(self, incident: str) -> IncidentRange | None:
        """The range of an incident; None: it was not opened."""
        return next((entry for entry in reversed(self._ranges) if entry.id == incident), None)

    def saved(self) -> SavedRanges:
        """The ranges as a record, to continue from."""
        return SavedRanges(self._ranges, list(self._recent))

    @classmethod
    def restored(cls, saved: SavedRanges) -> "IncidentRanges":
        """The ranges of a record."""
        ranges = cls()
        ranges._ranges = saved.ranges
        ranges._recent.extend(saved.recent)
        return ranges


class CausalTree:
    """A reader that keeps the tree of one incident.

    Args:
        incident: its id; None: the newest incident.
    """

    def __init__(self, incident: str | None = None) -> None:
        self._wanted = incident
        self._recent: deque[Event] = deque(maxlen=RECENT_MAX)
        self._nodes: dict[int, CauseNode] = {}
        self._id: str | None = None
        self._open = False
        self._orders: dict[str, int] = {}
        self._worlds: dict[int, int] = {}
        self._collateral: dict[int, int] = {}
        self._alike: dict[tuple[int | None, str], list[CauseNode]] = {}
        self._decided: int | None = None
        self._counted: tuple[int, CauseNode] | None = None

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if type(event.data) is IncidentOpened and self._wanted in (None, event.incident):
            self._begin(event)
        if event.kind is Kind.FACT:
            self._recent.append(event)
        if not self._open:
            return
        if event.incident == self._id and event.incident is not None:
            self._decision(event)
        elif event.kind is Kind.FACT and (parent := self._parent_of(event)) is not None:
            self._add(event, parent)
        elif event.kind is Kind.DECISION and event.cause in self._nodes and event.incident is None:
            self._decision(event)

    def nodes(self) -> list[CauseNode]:
        """The events in order; parents come before their children."""
        return list(self._nodes.values())

    def _begin(self, event: Event) -> None:
        self._id, self._open, self._decided, self._counted = event.incident, True, None, None
        for kept in (self._nodes, self._orders, self._worlds, self._collateral, self._alike):
            kept.clear()

    def _decision(self, event: Event) -> None:
        data = event.data
        if isinstance(data, IncidentOpened | IncidentRediagnosed):
            self._collateral |= dict.fromkeys(data.fault.collateral, data.fault.root)
            for seq in (data.fault.root, *data.fault.collateral):
                self._add_recent(seq)
        if event.cause is not None:
            self._add_recent(event.cause)
        self._add(event, event.cause if event.cause in self._nodes else None)
        self._decided = event.seq
        if type(data) is ActionOrdered:
            self._orders[data.effect] = event.seq
        elif type(data) is WorldFormed:
            self._worlds[data.round] = event.seq
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            self._open = False

    def _add_recent(self, seq: int) -> None:
        if seq in self._nodes:
            return
        found = next((fact for fact in reversed(self._recent) if fact.seq == seq), None)
        if found is None:
            return
        if self._counted is not None and self._counted[0] == seq:  # it has a consequence, so it is kept
            self._counted[1].alike -= 1
        self._add(found, self._parent_of(found), keep=True)

    def _parent_of(self, fact: Event) -> int | None:
        """What a fact follows from in this incident, as far as is known."""
        data: Any = fact.data
        if (root := self._collateral.get(fact.seq)) is not None:
            return root if root in self._nodes else None
        if (order := self._orders.get(getattr(data, "effect", "") or "")) is not None:
            return order
        if isinstance(data, WorkersStarted | WorkersStepped | StateLoaded):
            return self._worlds.get(data.round)
        return self._decided if type(data) is DeadlineExpired else None

    def _add(self, event: Event, parent: int | None, *, keep: bool = False) -> None:
        if event.seq in self._nodes:
            return
        several = self._alike.setdefault((parent, event.type), [])
        if len(several) >= ALIKE_MAX and event.kind is Kind.FACT and not keep:
            several[-1].alike += 1
            self._counted = event.seq, several[-1]
            return
        node = CauseNode(event=event, parent=parent)
        several.append(node)
        self._nodes[event.seq] = node
