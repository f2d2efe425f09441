"""Which events of a log somebody wants to see."""

import difflib
import fnmatch
from collections.abc import Collection, Iterator
from typing import Any

import attrs

from ftcore.commands import CheckHealth, DeleteNodes, ReplaceNodes
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event, Unknown
from ftcore.events.health import HealthJudged
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentOpened, IncidentRediagnosed
from ftcore.events.registry import Kind, all_types
from ftcore.events.world import WorldFormed, WorldMembers
from ftcore.wording import listed

NAMED_MAX = 10
"""Names that a message about an unknown one lists."""


@attrs.frozen(kw_only=True)
class Bound:
    """A place in a log.

    Args:
        seq: by position; or
        time: by the events' time, nanoseconds since the epoch; or
        ago: by how long before now it was, nanoseconds; of no use before it is ``settled``.
    """

    seq: int | None = None
    time: int | None = None
    ago: int | None = None

    def settled(self, now: int) -> "Bound":
        """The same place, told by the time that it is now by the log's clock."""
        return self if self.ago is None else Bound(time=now - self.ago)

    def compare(self, event: Event) -> int:
        """Negative if the event lies before the place, 0 if on it, positive behind it."""
        if self.seq is not None:
            return event.seq - self.seq
        assert self.time is not None
        return event.time - self.time


@attrs.frozen(kw_only=True)
class Selection:
    """Events wanted; what is None does not narrow.

    Args:
        since: the first place, included.
        until: the last place, included.
        types: glob on the type's name, as ``worker.*``; several separated by commas.
        node: a node that the event comes from or names.
        incident: the incident that it belongs to; a fact belongs to it if a decision that answers it does.
    """

    since: Bound | None = None
    until: Bound | None = None
    types: str | None = None
    node: str | None = None
    incident: str | None = None

    @property
    def after(self) -> int:
        """The seq after which reading may begin."""
        return self.since.seq - 1 if self.since is not None and self.since.seq else 0

    def is_past(self, event: Event) -> bool:
        """Whether the event and all behind it are not wanted."""
        return self.until is not None and self.until.compare(event) > 0

    def wants(self, event: Event, members: Collection[str] = ()) -> bool:
        """Whether the event is wanted, whatever its incident; ``members`` as for ``nodes_of``."""
        if self.since is not None and self.since.compare(event) < 0:
            return False
        if self.is_past(event):
            return False
        if self.types is not None and not any(fnmatch.fnmatchcase(event.type, glob) for glob in globs(self.types)):
            return False
        return self.node is None or self.node in nodes_of(event, members)


class Selector:
    """Picks the wanted events of a log that is read in order.

    Args:
        selection: what is wanted.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._fact: Event | None = None
        self._round = 0
        self._members: set[str] = set()

    def feed(self, event: Event) -> Iterator[Event]:
        """The events to show now that this one was read."""
        if isinstance(event.data, WorldMembers):
            if event.data.round != self._round:
                self._round, self._members = event.data.round, set()
            self._members.update(member.node for member in event.data.members)
        wanted = self._selection.wants(event, self._members)
        if self._selection.incident is None:
            if wanted:
                yield event
        elif event.kind is Kind.FACT:
            self._fact = event if wanted else None
        elif event.incident == self._selection.incident:
            if self._fact is not None and event.cause == self._fact.seq:
                yield self._fact
                self._fact = None
            if wanted:
                yield event


def globs(types: str) -> list[str]:
    """The globs of a list with commas."""
    return [glob.strip() for glob in types.split(",")]


class Names:
    """Collects the names that a log knows: nodes (and the other sources of events), incidents, types of events."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.incidents: dict[str, None] = {}
        self.types = {known.name for known in all_types()}

    def feed(self, event: Event) -> None:
        """Take in an event of the log."""
        self.nodes.update(nodes_of(event))
        self.types.add(event.type)
        if event.incident is not None:
            self.incidents[event.incident] = None

    def unknown(self, selection: Selection) -> str:
        """Which name of a selection the log does not know, with what it does know; empty if it knows all."""
        for glob in globs(selection.types) if selection.types is not None else ():
            if not fnmatch.filter(self.types, glob):
                return f"no type of events is called {glob!r}{_near(glob, sorted(self.types))}"
        if selection.node is not None and selection.node not in self.nodes:
            return (
                f"no event comes from or names the node {selection.node!r}{_near(selection.node, sorted(self.nodes))}"
            )
        if selection.incident is not None and selection.incident not in self.incidents:
            return f"no incident {selection.incident!r}{_near(selection.incident, list(self.incidents))}"
        return ""


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are: {listed(known, NAMED_MAX)}" if known else "; the log holds none"


def nodes_of(event: Event, members: Collection[str] = ()) -> Iterator[str]:
    """The nodes that an event comes from or names.

    Args:
        event: the event.
        members: those of the newest world before it, as far as it was read: what an order to all is addressed to.
    """
    yield event.source
    data: Any = event.data
    if isinstance(data, ActionOrdered):
        yield from data.nodes
        if isinstance(data.command, CheckHealth):
            for group in data.command.groups:
                yield from group
        elif isinstance(data.command, ReplaceNodes | DeleteNodes):
            yield from data.command.nodes
        elif not data.nodes:
            yield from members
    elif isinstance(data, HealthJudged):
        yield from (ill.node for ill in data.ill)
        for nodes in (found.nodes for several in (data.links, data.apart) for found in several):
            yield from nodes
    elif isinstance(data, DepartureDeferred | DepartureBegun):
        yield from data.nodes
    elif isinstance(data, IncidentOpened | IncidentRediagnosed):
        yield from data.fault.nodes
    elif isinstance(data, WorldMembers):
        yield from (member.node for member in data.members)
    elif isinstance(data, WorldFormed):
        yield from (*data.joined, *data.gone)
    else:
        named = data.fields.get("node") if isinstance(data, Unknown) and isinstance(data.fields, dict) else None
        named = named if named is not None else getattr(data, "node", None)
        if isinstance(named, str):
            yield named
