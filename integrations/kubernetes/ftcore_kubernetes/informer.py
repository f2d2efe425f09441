"""The objects of a collection, kept current: list, then watch from the list's resource version.

| happens | then |
|---|---|
| the server ends the watch, or it is cut | watch again from the last resource version, that of bookmarks included |
| 410: the resource version is too old | list again; what vanished meanwhile is reported as deleted |
| a page of a list has expired (410) | list anew, in one answer |
| an event or a list that is older than the cache | newer entries are kept, and deleted objects do not come back |
| the server does not answer | ``Unreachable``; the cache stays, and the next call of ``changes`` goes on from it |

Resource versions are compared as numbers, and only if both are numbers.

Source: "Efficient detection of changes" in "Kubernetes API Concepts"; since 1.35 resource versions are ordered numbers.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import attrs

from ftcore.errors import Unreachable
from ftcore_kubernetes.api import OPENED, Api, ApiError, KubeObject

PAGE: Final = 500
"""Objects in one answer to a list."""

WATCH_S: Final = (240, 480)
"""Seconds after which a watch is renewed, chosen anew each time, so that clients do not all return at once."""

SHORT_S: Final = 1.0
"""Least time between two watches of which the first brought nothing."""

DELETED_KEPT: Final = 10_000
"""Identities of deleted objects that are remembered, so that a late answer about one does not bring it back."""

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


@attrs.frozen
class CacheChange:
    """A change of one object.

    Args:
        kind: ADDED, MODIFIED or DELETED.
        obj: the object; as it was last seen, if it is deleted.
    """

    kind: str
    obj: KubeObject


class Informer:
    """The cache of one collection.

    Args:
        api: the API server.
        path: of the collection.
        selectors: ``labelSelector``, ``fieldSelector``.
        keep: returns the fields of an object that the cache keeps.

    Attributes:
        path: the same.
        objects: the cache, by name.
        is_synced: whether it was filled once.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selectors: dict[str, str] | None = None,
        keep: Callable[[KubeObject], KubeObject] = lambda obj: obj,
    ) -> None:
        self._api, self.path, self._selectors, self._keep = api, path, selectors or {}, keep
        self.objects: dict[str, KubeObject] = {}
        self.is_synced = False
        self._version = ""
        self._deleted: deque[str] = deque()
        self._was_deleted: set[str] = set()

    async def changes(self) -> AsyncIterator[CacheChange]:
        """Keep the cache current, and yield what changed, once the cache has it. It ends only by raising.

        Raises:
            ApiError: the server refuses, as a missing right does.
            Unreachable: it does not answer.
        """
        while True:
            if not self._version:
                for change in await self.relist():
                    yield change
            try:
                async for change in self._watch():
                    yield change
            except ApiError as error:
                if error.code != 410:
                    raise
                self._version = ""

    async def relist(self) -> list[CacheChange]:
        """Fill the cache from a list; returns what changed. Raises as ``changes``.

        What ``add`` or the watch have brought into the cache while the list was under way, and is newer, stays.
        """
        try:
            items, version = await self._pages(PAGE)
        except ApiError as error:
            if error.code != 410:
                raise
            items, version = await self._pages(0)
        fresh = {_name(item): self._keep(item) for item in items if _uid(item) not in self._was_deleted}
        found = []
        for name, old in list(self.objects.items()):
            obj = fresh.get(name)
            if (obj is None or _uid(obj) != _uid(old)) and not _is_newer(_version(old), version):
                del self.objects[name]
                self._remember(old)
                found.append(CacheChange(DELETED, old))
        for name, obj in fresh.items():
            present = self.objects.get(name)
            if present == obj or (present is not None and _is_newer(_version(present), _version(obj))):
                continue
            self.objects[name] = obj
            found.append(CacheChange(ADDED if present is None else MODIFIED, obj))
        if not _is_newer(self._version, version):
            self._version = version
        self.is_synced = True
        return found

    def add(self, obj: KubeObject) -> None:
        """Put an object that was just created or changed into the cache, before the watch reports it.

        One whose deletion was reported meanwhile stays away.
        """
        old = self.objects.get(_name(obj))
        if _uid(obj) not in self._was_deleted and (old is None or not _is_newer(_version(old), _version(obj))):
            self.objects[_name(obj)] = self._keep(obj)

    def _remember(self, obj: KubeObject) -> None:
        """Note that an object was deleted."""
        if (uid := _uid(obj)) not in self._was_deleted:
            self._was_deleted.add(uid)
            self._deleted.append(uid)
        while len(self._deleted) > DELETED_KEPT:
            self._was_deleted.discard(self._deleted.popleft())

    async def _pages(self, limit: int) -> tuple[list[KubeObject], str]:
        items: list[KubeObject] = []
        params = dict(self._selectors) | ({"limit": str(limit)} if limit else {})
        while True:
            page = await self._api.get(self.path, **params)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            params["continue"] = str(metadata["continue"])

    async def _watch(self) -> AsyncIterator[CacheChange]:
        is_open, is_silent, began = False, True, asyncio.get_running_loop().time()
        timeout_s = random.randint(*WATCH_S)
        try:
            async for event in self._api.watch(self.path, timeout_s, **self._selectors, resourceVersion=self._version):
                if event["type"] == OPENED:
                    is_open = True
                    continue
                is_silent = False
                obj = event["object"]
                change = self._apply(str(event["type"]), obj)
                self._version = _version(obj) or self._version
                if change is not None:
                    yield change
        except Unreachable:
            if not is_open:
                raise  # a stream that was cut is resumed
        if is_silent and asyncio.get_running_loop().time() - began < SHORT_S:
            await asyncio.sleep(SHORT_S)  # a server or proxy that ends every watch at once is not asked without a pause

    def _apply(self, kind: str, obj: KubeObject) -> CacheChange | None:
        if kind not in (ADDED, MODIFIED, DELETED):
            return None  # BOOKMARK
        name = _name(obj)
        old = self.objects.get(name)
        if kind == DELETED:
            self._remember(obj)
            if old is None or _uid(old) != _uid(obj):
                return None  # the end of an earlier object of this name
            del self.objects[name]
            return CacheChange(DELETED, self._keep(obj))
        kept = self._keep(obj)
        if _uid(obj) in self._was_deleted:
            return None  # an old event, after a list that no longer had the object
        if old is not None and (_is_newer(_version(old), _version(obj)) or old == kept):
            return None
        self.objects[name] = kept
        return CacheChange(ADDED if old is None else MODIFIED, kept)


def _name(obj: KubeObject) -> str:
    return str(obj["metadata"]["name"])


def _uid(obj: KubeObject) -> str:
    return str(obj["metadata"].get("uid"))


def _version(obj: KubeObject) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")


def _is_newer(version: str, than: str) -> bool:
    """Whether a resource version is surely newer than another one."""
    return version.isdigit() and than.isdigit() and int(version) > int(than)
