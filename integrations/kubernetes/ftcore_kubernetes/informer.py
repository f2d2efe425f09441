"""The objects of a collection, kept current: list, then watch from the list's resource version.

| happens | then |
|---|---|
| the server ends the watch, or it is cut | watch again from the last resource version, that of bookmarks included |
| 410: the resource version is too old | list again; what vanished meanwhile is reported as deleted |
| a page of a list has expired (410) | list anew, in one answer |
| an event that is older than the cache | dropped; resource versions are compared as numbers only if both are numbers |
| the server does not answer | ``Unreachable``; the cache stays, and the next call of ``changes`` goes on from it |

Source: "Efficient detection of changes" in "Kubernetes API Concepts"; since 1.35 resource versions are ordered numbers.
"""

import asyncio
import random
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
        self._api, self._path, self._selectors, self._keep = api, path, selectors or {}, keep
        self.objects: dict[str, KubeObject] = {}
        self.is_synced = False
        self._version = ""

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
        """Fill the cache anew; returns what changed. Raises as ``changes``."""
        try:
            items, version = await self._pages(PAGE)
        except ApiError as error:
            if error.code != 410:
                raise
            items, version = await self._pages(0)
        fresh = {_name(item): self._keep(item) for item in items}
        found = [CacheChange(DELETED, old) for name, old in self.objects.items() if name not in fresh]
        for name, obj in fresh.items():
            old = self.objects.get(name)
            if old is not None and _uid(old) != _uid(obj):
                found.append(CacheChange(DELETED, old))
                old = None
            if old != obj:
                found.append(CacheChange(ADDED if old is None else MODIFIED, obj))
        self.objects, self._version, self.is_synced = fresh, version, True
        return found

    def add(self, obj: KubeObject) -> None:
        """Put an object that was just created or changed into the cache, before the watch reports it."""
        old = self.objects.get(_name(obj))
        if old is None or not _is_older(obj, old):
            self.objects[_name(obj)] = self._keep(obj)

    async def _pages(self, limit: int) -> tuple[list[KubeObject], str]:
        items: list[KubeObject] = []
        params = dict(self._selectors) | ({"limit": str(limit)} if limit else {})
        while True:
            page = await self._api.get(self._path, **params)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            params["continue"] = str(metadata["continue"])

    async def _watch(self) -> AsyncIterator[CacheChange]:
        is_open, is_silent, began = False, True, asyncio.get_running_loop().time()
        timeout_s = random.randint(*WATCH_S)
        try:
            async for event in self._api.watch(self._path, timeout_s, **self._selectors, resourceVersion=self._version):
                if event["type"] == OPENED:
                    is_open = True
                    continue
                is_silent = False
                obj = event["object"]
                version = str(obj["metadata"].get("resourceVersion") or "")
                change = self._apply(str(event["type"]), obj)
                self._version = version or self._version
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
            if old is None or _uid(old) != _uid(obj):
                return None  # the end of an earlier object of this name
            del self.objects[name]
            return CacheChange(DELETED, self._keep(obj))
        kept = self._keep(obj)
        if old is not None and (_is_older(obj, old) or old == kept):
            return None
        self.objects[name] = kept
        return CacheChange(ADDED if old is None else MODIFIED, kept)


def _name(obj: KubeObject) -> str:
    return str(obj["metadata"]["name"])


def _uid(obj: KubeObject) -> str:
    return str(obj["metadata"].get("uid"))


def _is_older(obj: KubeObject, than: KubeObject) -> bool:
    """Whether an object is surely older than another one."""
    new, old = (str(each["metadata"].get("resourceVersion") or "") for each in (obj, than))
    return new.isdigit() and old.isdigit() and int(new) < int(old)
