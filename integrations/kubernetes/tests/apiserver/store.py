"""The objects, one revision counter for all of them, and the log of changes that watches read.

As in etcd behind a Kubernetes API server: each write has the next revision, which is the object's
``resourceVersion``; old entries of the log are dropped, and who asks for them gets a 410.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from .resources import Resource
from .selector import Matcher
from .status import Json, expired

Key = tuple[str, str]
"""Namespace ("" for cluster-wide resources) and name."""

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

FIRST_REVISION = 1000
"""Revision of an empty store: revision 1 is too old from the start, as in a cluster that has lived for a while."""

encode = msgspec.json.encode
decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode


class Stored:
    """One version of an object. ``object`` is never changed: use ``copy()``.

    ``rest``: the object's JSON without kind, apiVersion and the opening brace. Lists of built-in kinds leave those out,
    and each version of a custom resource has its own.
    """

    __slots__ = ("object", "rest", "revision")

    def __init__(self, obj: Json, revision: int) -> None:
        self.object, self.revision = obj, revision
        self.rest: bytes = encode({key: each for key, each in obj.items() if key not in ("kind", "apiVersion")})[1:]

    def copy(self) -> Json:
        """A copy that may be changed."""
        found: Json = decode(b"{" + self.rest)
        return {"kind": self.object["kind"], "apiVersion": self.object["apiVersion"]} | found

    @property
    def meta(self) -> Json:
        """Its metadata."""
        found: Json = self.object["metadata"]
        return found

    @property
    def key(self) -> Key:
        """Where it is stored."""
        return self.meta.get("namespace", ""), self.meta["name"]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log. ``previous``: the object before it."""

    type: EventType
    stored: Stored
    previous: Stored | None


def seen(change: Change, namespace: str, match: Matcher | None) -> EventType | None:
    """As which event a watch with a selector sees a change; None: not at all."""
    if namespace and change.stored.meta.get("namespace") != namespace:
        return None
    if match is None:
        return change.type
    now = change.type != "DELETED" and match(change.stored.object)
    before = change.previous is not None and match(change.previous.object)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else None


class Watch:
    """Receives the changes of one resource: asynchronous iteration, or ``take()``."""

    def __init__(self, namespace: str, match: Matcher | None, since: int = 0) -> None:
        self.namespace, self.match, self.since = namespace, match, since
        self._waiting: list[tuple[EventType, Stored]] = []
        self._wake = asyncio.Event()
        self.closed = False

    def push(self, change: Change) -> None:
        """A change happened."""
        if change.stored.revision <= self.since:
            return
        if (event := seen(change, self.namespace, self.match)) is not None:
            self.add(event, change.stored)

    def add(self, event: EventType, stored: Stored) -> None:
        """Add an event."""
        self._waiting.append((event, stored))
        self._wake.set()

    def close(self) -> None:
        """End the watch."""
        self.closed = True
        self._wake.set()

    def take(self) -> list[tuple[EventType, Stored]]:
        """All events that wait."""
        found, self._waiting = self._waiting, []
        self._wake.clear()
        return found

    async def wait(self, timeout_s: float | None) -> None:
        """Until there is an event, the watch is closed, or the time is over."""
        if self.closed or self._waiting or (timeout_s is not None and timeout_s <= 0):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass


@dataclass(slots=True)
class Table:
    """The objects of one resource."""

    objects: dict[Key, Stored] = field(default_factory=dict)
    log: deque[Change] = field(default_factory=deque)
    floor: int = 0
    watches: list[Watch] = field(default_factory=list)


class Store:
    """``history``: entries that the log of one resource keeps."""

    def __init__(self, history: int = 10_000) -> None:
        self.history = history
        self.revision = FIRST_REVISION
        self.floor = FIRST_REVISION
        self.tables: dict[tuple[str, str], Table] = {}
        self.listeners: list[Callable[[Resource, Change], None]] = []
        self.writes: Counter[str] = Counter()

    def table(self, resource: Resource) -> Table:
        """The table of a resource; an empty one is made."""
        found = self.tables.get(resource.key)
        if found is None:
            found = self.tables[resource.key] = Table()
        return found

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        """One object."""
        return self.table(resource).objects.get((namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> Iterator[Stored]:
        """The objects of a namespace, or of all, in the order of their names."""
        found = self.table(resource).objects
        keys = sorted(key for key in found if key[0] == namespace) if namespace else sorted(found)
        return iter([found[key] for key in keys])

    def put(self, resource: Resource, obj: Json) -> Stored:
        """Write an object; it belongs to the store from now on."""
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        stored, table = Stored(obj, self.revision), self.table(resource)
        previous = table.objects.get(stored.key)
        table.objects[stored.key] = stored
        self._publish(resource, table, Change("ADDED" if previous is None else "MODIFIED", stored, previous))
        return stored

    def remove(self, resource: Resource, key: Key, obj: Json | None = None) -> Stored:
        """Remove an object; its last form, ``obj`` if given, gets a revision too."""
        table = self.table(resource)
        previous = table.objects.pop(key)
        self.revision += 1
        last = obj if obj is not None else previous.copy()
        last["metadata"]["resourceVersion"] = str(self.revision)
        stored = Stored(last, self.revision)
        self._publish(resource, table, Change("DELETED", stored, previous))
        return stored

    def _publish(self, resource: Resource, table: Table, change: Change) -> None:
        table.log.append(change)
        if len(table.log) > self.history:
            table.floor = table.log.popleft().stored.revision
        self.writes[resource.plural] += 1
        for watch in table.watches:
            watch.push(change)
        for listener in self.listeners:
            listener(resource, change)

    def check_age(self, resource: Resource, revision: int) -> None:
        """Raise a 410 if the log does not reach back to ``revision``."""
        oldest = max(self.floor, self.table(resource).floor)
        if revision < oldest:
            raise expired(f"too old resource version: {revision} ({oldest})")

    def past(self, resource: Resource, revision: int, namespace: str = "") -> list[Stored]:
        """The objects as they were at an earlier revision; a 410 if the log does not reach back so far."""
        self.check_age(resource, revision)
        table = self.table(resource)
        found = dict(table.objects)
        for change in reversed(table.log):
            if change.stored.revision <= revision:
                break
            if change.previous is None:
                found.pop(change.stored.key, None)
            else:
                found[change.stored.key] = change.previous
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def compact(self) -> None:
        """Forget the history: a watch from an earlier revision gets a 410."""
        self.floor = self.revision
        for table in self.tables.values():
            table.log.clear()

    def watch(self, resource: Resource, since: int | None, namespace: str = "", match: Matcher | None = None) -> Watch:
        """Begin a watch after revision ``since``; None: with the present objects as ADDED. A 410 if that is too old."""
        table, watch = self.table(resource), Watch(namespace, match, since or 0)
        if since is None:
            for stored in self.all(resource, namespace):
                if match is None or match(stored.object):
                    watch.add("ADDED", stored)
        else:
            self.check_age(resource, since)
            for change in table.log:
                watch.push(change)
        table.watches.append(watch)
        return watch

    def unwatch(self, resource: Resource, watch: Watch) -> None:
        """End a watch."""
        watch.close()
        if watch in (watches := self.table(resource).watches):
            watches.remove(watch)
