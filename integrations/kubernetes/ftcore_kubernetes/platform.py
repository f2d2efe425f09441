"""The pods of a job as an ftcore platform: launches pods, keeps places filled, reports what becomes of them.

| in ftcore | in Kubernetes |
|---|---|
| a node | a pod, of the same name, which runs ``ftrun`` once (``restartPolicy: Never``) |
| a place | a label |
| the effect of a launch | the pod's name and a label, so a repeated launch finds its pod |
| an excluded machine | an annotation of the job's config map; later pods have an anti-affinity to it |
| no capacity | a pod that waits for a machine, for its image or for quota |

A pod that is removed by force from a dead machine may run on there: ftcore's terms and rounds fence it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import attrs

from ftcore import CapacityChanged, LaunchRequest, Occupant, PlatformEvent
from ftcore.errors import FtcoreError, Refused
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api, KubeObject
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.facts import is_live, removal_of, report_of, waits_for
from ftcore_kubernetes.informer import DELETED, CacheChange, Informer
from ftcore_kubernetes.places import Filling, age_of, fillings, next_attempt, outdated, place_of, successor, surplus
from ftcore_kubernetes.pods import PodIdentity
from ftcore_kubernetes.pool import PoolNews, WorkerPool
from ftcore_kubernetes.records import names_in

REFUSED_S: Final = (5.0, 60.0)
"""First and longest pause before a filling that Kubernetes declined is tried again."""

BURST: Final = 16
"""Pods that are created at the same time."""

NOTE_S: Final = (5.0, 60.0)
"""Least time between two notes at the config map that only add machines; pause after a note that failed."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class DeclinedFilling:
    """A filling that Kubernetes declined.

    Args:
        place: its place.
        pause_s: pause before it is tried again, in seconds.
        reason: why.
    """

    place: int
    pause_s: float
    reason: str


class KubernetesPlatform:
    """See ``ftcore.Platform``.

    Args:
        url: which job.
        config: the API server.
        api: its client; None: a new one.
    """

    def __init__(self, url: KubernetesUrl, config: ApiConfig, api: Api | None = None) -> None:
        self.api = api or Api(config)
        self._url = url
        self.pool = WorkerPool(url, self.api)
        self._due: dict[str, float] = {}
        self._declined: dict[str, DeclinedFilling] = {}
        self._reported: dict[str, str] = {}
        self._note_at, self._has_note_failed = 0.0, False
        self._free: int | None = None
        self._is_watching = False
        self._locks: dict[int | None, asyncio.Lock] = {}

    async def capacity(self) -> int | None:
        """0 while a pod cannot start; otherwise unknown, as only the scheduler knows."""
        await self.pool.refresh()
        return self._capacity()

    def _capacity(self) -> int | None:
        waiting = any(waits_for(pod) for pod in self.pool.workers().values() if is_live(pod))
        return 0 if waiting or self._declined else None

    async def launch(self, request: LaunchRequest) -> None:
        """Create the pods of an effect. A replacement is the pod that filling the place would create, too."""
        pods = self.pool.workers() if self._is_watching else await self.pool.refresh()
        job, _ = await self.pool.job()
        replaced = request.replaces
        if replaced is None:
            for number in range(request.count):
                await self.pool.create(PodIdentity(effect=f"{request.effect}/{number}", place=None))
            return
        old = pods.get(replaced.node)
        place = place_of(old) if old is not None else replaced.ordinal
        effect = successor(place, replaced.node) if place is not None else request.effect
        identity = PodIdentity(effect=effect, place=place, attempt=next_attempt(old) if old is not None else 1)
        async with self._locked(place):  # the place may be being filled
            if self.pool.with_effect(identity.digest) is not None or self._is_filled(place, old, replaced.node):
                return
            if place is not None and self._has_moved_on(place, old, replaced.node):
                return
            if place is not None and place >= job.spec.replicas:
                raise Refused(f"place {place} is no longer part of the job: spec.replicas is {job.spec.replicas}")
            await self.pool.create(identity)

    def _locked(self, place: int | None) -> asyncio.Lock:
        """The lock of a place: one pod is created for it at a time."""
        return self._locks.setdefault(place, asyncio.Lock())

    def _is_filled(self, place: int | None, old: KubeObject | None, name: str) -> bool:
        """Whether another pod has the place since; times of creation are whole seconds."""
        if place is None:
            return False
        born = _born(old) if old is not None else ""
        others = (pod for pod in self.pool.of_place(place) if pod["metadata"]["name"] != name)
        return any(is_live(pod) and _born(pod) >= born for pod in others)

    def _has_moved_on(self, place: int, old: KubeObject | None, name: str) -> bool:
        """Whether the place had a later pod already, whose object is gone: what follows it is filled by the watch."""
        missing = self.pool.removed().get(place)
        if missing is None or missing["metadata"]["name"] == name:
            return False
        return old is None or age_of(missing) > age_of(old)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """Delete a pod, with its grace period."""
        await self.pool.delete(place.node, grace_s)

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Exclude the machine of a pod."""
        await self.pool.exclude(place.node, reason)

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """Report pods and machines, and keep the places filled."""
        self.pool.begin_news()
        await self.pool.refresh()
        watched = [self.pool.pods, self.pool.root]
        with contextlib.suppress(Refused):
            if (await self.pool.job())[0].spec.watch_nodes:
                watched.append(self.pool.machines)
        tasks = [asyncio.create_task(self.pool.pump(each)) for each in watched]
        self._is_watching = True
        try:
            self._free, self._reported = self._capacity(), {}
            yield CapacityChanged(free=self._free)
            for report in self._all_reports():
                yield report
            while True:
                pause_s = await self._fill()
                if (free := self._capacity()) != self._free:
                    self._free = free
                    yield CapacityChanged(free=free)
                for informer, change in await _batch(self.pool.news, pause_s):
                    for report in self._reports(informer, change):
                        yield report
        finally:
            self._is_watching = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close connections; the pods go on."""
        await self.api.close()

    # -- reports

    def _all_reports(self) -> list[PlatformEvent]:
        """The current state: of pods that exist, and of the last pod of each place that has none any more."""
        found: list[PlatformEvent] = [removal_of(pod) for pod in self.pool.removed().values()]
        return found + [each for pod in self.pool.workers().values() if (each := self._report(pod)) is not None]

    def _reports(self, informer: Informer, change: CacheChange) -> list[PlatformEvent]:
        if informer is self.pool.machines:
            machine = change.obj["metadata"]["name"]
            pods = [pod for pod in self.pool.workers().values() if pod["spec"].get("nodeName") == machine]
        elif informer is self.pool.pods and change.kind == DELETED:
            self._reported.pop(str(change.obj["metadata"]["name"]), None)
            return [removal_of(change.obj)]
        else:
            # As it is now: a change that was read late must not hide the report about a later one.
            pod = self.pool.worker(str(change.obj["metadata"]["name"])) if informer is self.pool.pods else None
            pods = [pod] if pod is not None else []
        return [report for pod in pods if (report := self._report(pod)) is not None]

    def _report(self, pod: KubeObject) -> PlatformEvent | None:
        """The report about a pod; None: there is none, or it was reported before."""
        machine = self.pool.machines.objects.get(str((pod.get("spec") or {}).get("nodeName")))
        report, name = report_of(pod, machine), str(pod["metadata"]["name"])
        text = f"{type(report).__name__} {report.reason}" if report is not None else ""
        if self._reported.get(name) == text:
            return None
        self._reported[name] = text
        return report

    # -- places

    async def _fill(self) -> float | None:
        """Create missing pods, delete superfluous ones; returns the seconds until the next is due; None: none is."""
        try:
            job, _ = await self.pool.job()
        except Refused:
            self._declined.clear()
            return None  # the job is being deleted
        pods, now = self.pool.workers(), asyncio.get_running_loop().time()
        for pod in surplus(pods.values(), job.spec.replicas):
            grace_s = float((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30)
            await self._tidy(pod, self.pool.delete(str(pod["metadata"]["name"]), grace_s))
        for pod in outdated(pods.values()):
            await self._tidy(pod, self.pool.remove(pod))
        wanted = fillings(list(pods.values()), job.spec.replicas, self.pool.removed())
        due = {each.effect: self._due.get(each.effect, now + each.wait_s) for each in wanted}
        self._due = due
        self._declined = {effect: why for effect, why in self._declined.items() if effect in due}
        ready = [each for each in wanted if due[each.effect] <= now]
        for first in range(0, len(ready), BURST):
            await asyncio.gather(*(self._try(each) for each in ready[first : first + BURST]))
        note_s = await self._note(now)
        left = [at - now for at in self._due.values()] + ([note_s] if note_s is not None else [])
        return max(0.0, min(left)) if left else None

    async def _try(self, filling: Filling) -> None:
        identity = PodIdentity(effect=filling.effect, place=filling.place, attempt=filling.attempt)
        now = asyncio.get_running_loop().time()
        try:
            async with self._locked(filling.place):
                if not self._has_live(filling.place):
                    await self.pool.create(identity)
            self._due.pop(filling.effect, None)
            self._declined.pop(filling.effect, None)
        except Refused as error:
            before = self._declined.get(filling.effect)
            if before is None:
                logger.warning("place %d is not filled: %s", filling.place, error)
            pause_s = REFUSED_S[0] if before is None else min(2 * before.pause_s, REFUSED_S[1])
            declined = DeclinedFilling(place=filling.place, pause_s=pause_s, reason=str(error))
            self._declined[filling.effect] = declined
            self._due[filling.effect] = now + pause_s

    def _has_live(self, place: int) -> bool:
        return any(is_live(pod) for pod in self.pool.of_place(place))

    async def _note(self, now: float) -> float | None:
        """Note at the config map the last pod of each place, and why places are not filled; returns the seconds until
        the next note; None: there is nothing to note. A later master needs it, if pods are removed meanwhile."""
        records, before, reason = self.pool.newest_records(), self.pool.records(), self._reason()
        is_urgent = names_in(records) != names_in(before) or reason != self.pool.declined()
        if not is_urgent and records == before:
            return None
        if now < self._note_at and (self._has_note_failed or not is_urgent):
            return self._note_at - now
        try:
            await self.pool.note(records, reason)
        except FtcoreError as error:
            if not self._has_note_failed:
                logger.warning("the pods of the places are not noted at the config map: %s", error)
            self._has_note_failed, self._note_at = True, now + NOTE_S[1]
            return NOTE_S[1]
        self._has_note_failed, self._note_at = False, now + NOTE_S[0]
        return None

    def _reason(self) -> str:
        """Why places are not filled; empty: all are."""
        first = min(self._declined.values(), key=lambda each: each.place, default=None)
        if first is None:
            return ""
        others = f" (and {len(self._declined) - 1} more)" if len(self._declined) > 1 else ""
        return f"place {first.place}{others}: {first.reason}"[:500]

    async def _tidy(self, pod: KubeObject, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Refused as error:
            logger.warning("pod %s cannot be deleted: %s", pod["metadata"]["name"], error)


def _born(pod: KubeObject) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


async def _batch(news: "asyncio.Queue[PoolNews | Exception]", pause_s: float | None) -> list[PoolNews]:
    """The changes that came, after at most some seconds.

    Raises:
        Unreachable: the API server cannot be watched.
    """
    found: list[PoolNews] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            found.append(_change(await news.get()))
    while not news.empty():
        found.append(_change(news.get_nowait()))
    return found


def _change(item: PoolNews | Exception) -> PoolNews:
    if isinstance(item, Exception):
        raise item
    return item
