"""Selecting events of a log by position, time, type, node or incident."""

import difflib
import fnmatch
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from ftcore.commands import CheckHealth, DeleteNodes, ReplaceNodes
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event, Unknown
from ftcore.events.health import HealthJudged
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentOpened, IncidentRediagnosed
from ftcore.events.registry import Kind, all_types
from ftcore.events.world import WorldFormed, WorldMembers
from ftcore.replay.bounds import Bound
from ftcore.wording import listed

NAMED_MAX = 10
"""Known names listed in the message about an unknown name."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on events; None means no condition.

    Args:
        since: the first position, included.
        until: the last position, included.
        types: globs of event types, as ``worker.*``, separated by commas.
        node: a node that the event comes from or names.
        incident: the incident that the event belongs to; a fact belongs to the incident of its decisions.
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
        """Whether the event is after ``until``."""
        return self.until is not None and self.until.compare(event) > 0

    def wants(self, event: Event, members: Collection[str] = ()) -> bool:
        """Whether the event meets all conditions but ``incident``; ``members`` as for ``nodes_of``."""
        if self.since is not None and self.since.compare(event) < 0:
            return False
        if self.is_past(event):
            return False
        if self.types is not None and not any(fnmatch.fnmatchcase(event.type, glob) for glob in globs(self.types)):
            return False
        return self.node is None or self.node in nodes_of(event, members)


class Selector:
    """Picks the selected events of a log that is read in order."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._fact: Event | None = None
        self._round = 0
        self._members: set[str] = set()

    def feed(self, event: Event) -> Iterator[Event]:
        """Yield the events to show after this one was read: itself, or its fact before it."""
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
    """Split a comma-separated list of globs."""
    return [glob.strip() for glob in types.split(",")]


class Names:
    """Collects the names that a log knows: nodes (and the other sources of events), incidents, types of events."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.incidents: dict[str, None] = {}
        self.types = {known.name for known in all_types()}

    def feed(self, event: Event) -> None:
        """Collect the names of an event."""
        self.nodes.update(nodes_of(event))
        self.types.add(event.type)
        if event.incident is not None:
            self.incidents[event.incident] = None

    def unknown(self, selection: Selection) -> str:
        """A message about the first name of a selection that is not in the log; empty if all are."""
        for glob in globs(selection.types) if selection.types is not None else ():
            if not fnmatch.filter(self.types, glob):
                return f"no event type matches {glob!r}{_near(glob, sorted(self.types))}"
        if selection.node is not None and selection.node not in self.nodes:
            return f"no event comes from or names node {selection.node!r}{_near(selection.node, sorted(self.nodes))}"
        if selection.incident is not None and selection.incident not in self.incidents:
            return f"no incident {selection.incident!r}{_near(selection.incident, list(self.incidents))}"
        return ""


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are: {listed(known, NAMED_MAX)}" if known else "; the log has none"


def nodes_of(event: Event, members: Collection[str] = ()) -> Iterator[str]:
    """The nodes that an event comes from or names.

    Args:
        event: the event.
        members: nodes of the newest world before the event: the recipients of an order to all members.
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
