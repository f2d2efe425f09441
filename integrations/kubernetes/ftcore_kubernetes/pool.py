"""The worker pods of one job at the API server: created once for each effect, deleted, their machines excluded."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from ftcore.errors import Refused, Unreachable, UsageError
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api, ApiError, KubeObject
from ftcore_kubernetes.facts import is_live, slim, slim_node
from ftcore_kubernetes.informer import DELETED, CacheChange, Informer
from ftcore_kubernetes.job_file import TrainJob, parse
from ftcore_kubernetes.manifests import DECLINED, QUARANTINED, owner_of, worker_selector
from ftcore_kubernetes.places import EFFECT, JOB, age_of, place_of
from ftcore_kubernetes.pods import JOB_KEY, PodIdentity, worker_pod
from ftcore_kubernetes.records import PLACES, PlaceRecord, newest, read_records, record_text

TAINT: Final = "ftcore.dev/quarantined"
"""Key of the taint of machines that a job excludes (``quarantine: taint``)."""

TRIES: Final = 8
"""Attempts at a change that others change, too (409)."""

T = TypeVar("T")
PoolNews: TypeAlias = tuple[Informer, CacheChange]
logger = logging.getLogger(__name__)


class WorkerPool:
    """The worker pods of a job.

    Args:
        url: the job's config map.
        api: the API server.

    Attributes:
        pods, root, machines: caches of the pods, of the config map, and of the cluster's machines.
        news: changes of these caches, from whatever request they came; or why they cannot be kept current.
        removed_pods: by place, the newest pod whose removal this process has seen.
    """

    def __init__(self, url: KubernetesUrl, api: Api) -> None:
        self._url, self._api = url, api
        self._space = f"/api/v1/namespaces/{url.namespace}"
        self._config = f"{self._space}/configmaps/{url.name}"
        self.pods = Informer(api, f"{self._space}/pods", {"labelSelector": worker_selector(url.name)}, slim)
        self.root = Informer(api, f"{self._space}/configmaps", {"fieldSelector": f"metadata.name={url.name}"})
        self.machines = Informer(api, "/api/v1/nodes", keep=slim_node)
        self.news: asyncio.Queue[PoolNews | Exception] = asyncio.Queue()
        self.removed_pods: dict[int, KubeObject] = {}
        self._parsed: tuple[str, TrainJob] | None = None
        self._machines: dict[str, str] = {}
        self._records: tuple[str, dict[int, PlaceRecord]] | None = None

    async def job(self) -> tuple[TrainJob, KubeObject]:
        """The job and its config map.

        Raises:
            Refused: it is gone, or being deleted: then nothing more is created.
            Unreachable: the API server does not answer.
        """
        await self._sync_root()
        found = self.root.objects.get(self._url.name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise Refused(f"the job is being deleted: config map {self._url.namespace}/{self._url.name} is gone")
        try:
            text = str(found["data"][JOB_KEY])
            if self._parsed is None or self._parsed[0] != text:
                self._parsed = text, parse(text, f"config map {self._url.name}, {JOB_KEY}")
            return self._parsed[1], found
        except (KeyError, TypeError) as error:
            raise Refused(f"config map {self._url.name} has no key {JOB_KEY}") from error
        except UsageError as error:
            raise Refused(str(error)) from error

    async def _sync_root(self) -> None:
        if not self.root.is_synced:
            await require_answer(self.root.relist())

    def workers(self) -> dict[str, KubeObject]:
        """The worker pods by name, as far as they are known; without those of an earlier job of the same name."""
        return {name: pod for name, pod in self.pods.objects.items() if self._is_own(pod)}

    def worker(self, name: str) -> KubeObject | None:
        """One of ``workers()``."""
        pod = self.pods.objects.get(name)
        return pod if pod is not None and self._is_own(pod) else None

    def _is_own(self, pod: KubeObject) -> bool:
        """Whether the job's config map owns a pod."""
        root = self.root.objects.get(self._url.name)
        owners = [each.get("uid") for each in pod["metadata"].get("ownerReferences") or ()]
        return root is None or root["metadata"]["uid"] in owners

    async def refresh(self) -> dict[str, KubeObject]:
        """List the worker pods; returns them by name."""
        await self._sync_root()
        for change in await require_answer(self.pods.relist()):
            self._publish(self.pods, change)
        return self.workers()

    def begin_news(self) -> None:
        """Forget why the caches could not be kept current before; changes that were not read yet stay."""
        unread = [self.news.get_nowait() for _ in range(self.news.qsize())]
        for item in unread:
            if not isinstance(item, Exception):
                self.news.put_nowait(item)

    def _publish(self, informer: Informer, change: CacheChange) -> None:
        """Announce a change; a removed pod is noted at once, so that its place is never taken for a new one."""
        if informer is self.pods and change.kind == DELETED and self._is_own(change.obj):
            place = place_of(change.obj)
            self._machines[str(change.obj["metadata"]["name"])] = _machine_in(change.obj)
            last = self.removed_pods.get(place) if place is not None else None
            if place is not None and (last is None or age_of(last) <= age_of(change.obj)):
                self.removed_pods[place] = change.obj
        self.news.put_nowait((informer, change))

    async def pump(self, informer: Informer) -> None:
        """Keep a cache current, until cancelled or until that is not possible; ``news`` then has the reason."""
        try:
            async for change in informer.changes():
                self._publish(informer, change)
        except ApiError as error:
            if informer is self.machines:
                logger.warning("conditions of machines are not reported: %s", refused(error))
            else:
                self.news.put_nowait(Unreachable(str(refused(error))))
        except Unreachable as error:
            self.news.put_nowait(error)
        except Exception as error:  # a defect, or an answer that no API server gives: the watch begins anew
            logger.exception("the cache of %s is not kept current", informer.path)
            self.news.put_nowait(Unreachable(f"{informer.path}: {type(error).__name__}: {error}"))

    # -- places

    def records(self) -> dict[int, PlaceRecord]:
        """The last pod of each place, as the config map has it."""
        root = self.root.objects.get(self._url.name)
        text = str((root["metadata"].get("annotations") or {}).get(PLACES) or "") if root is not None else ""
        if self._records is None or self._records[0] != text:
            self._records = text, read_records(text, self._url.name)
            self._machines |= {each.name: each.machine for each in self._records[1].values() if each.machine}
        return self._records[1]

    def newest_records(self) -> dict[int, PlaceRecord]:
        """The last pod of each place, from the config map, the cache and the removals that were seen."""
        return newest(self.records(), [*self.workers().values(), *self.removed_pods.values()])

    def removed(self) -> dict[int, KubeObject]:
        """By place, the newest pod whose object is gone: from the removals that were seen, and from the records."""
        pods, found = self.workers(), dict(self.removed_pods)
        for place, record in self.records().items():
            pod = record.as_pod(place)
            if record.name not in pods and (place not in found or age_of(found[place]) < age_of(pod)):
                found[place] = pod
        return found

    def declined(self) -> str:
        """Why pods cannot be created, as the config map has it; empty: they can."""
        root = self.root.objects.get(self._url.name)
        return declined_in(root) if root is not None else ""

    async def note(self, records: dict[int, PlaceRecord], declined: str) -> None:
        """Write at the config map which pod each place had last, and why pods cannot be created.

        Raises:
            Refused, Unreachable: it was not written.
        """
        annotations = {PLACES: record_text(records, self._url.name), DECLINED: declined or None}
        try:
            self.root.add(await self._api.patch(self._config, {"metadata": {"annotations": annotations}}))
        except ApiError as error:
            raise refused(error) from error

    def with_effect(self, digest: str) -> KubeObject | None:
        """The pod that an effect has created."""
        pods = self.pods.objects.values()
        mine = (pod for pod in pods if pod["metadata"].get("labels", {}).get(EFFECT) == digest and self._is_own(pod))
        return next(mine, None)

    def of_place(self, place: int) -> list[KubeObject]:
        """The pods of a place, without those of an earlier job."""
        return [pod for pod in self.pods.objects.values() if place_of(pod) == place and self._is_own(pod)]

    async def create(self, identity: PodIdentity) -> None:
        """Create a pod, unless its effect has already created it.

        Raises:
            Refused: Kubernetes declines: quota, a missing right, an invalid template.
            Unreachable: the API server does not answer.
        """
        if not self.pods.is_synced:
            await self.refresh()
        if self.with_effect(identity.digest) is not None:
            return
        job, root = await self.job()
        owner = owner_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": root["metadata"]}) | {"controller": True}
        pod = worker_pod(job, identity, owner=owner, avoid=excluded(root))
        pod["metadata"]["namespace"] = self._url.namespace
        for attempt in range(TRIES):
            try:
                self.pods.add(await self._api.create(f"{self._space}/pods", pod))
                return
            except ApiError as error:
                if error.code == 409 and error.reason == "AlreadyExists":
                    await self._adopt(identity, str(root["metadata"]["uid"]))
                    return
                if error.code != 409 or attempt == TRIES - 1:  # Conflict: many pods are counted in one quota at once
                    raise refused(error) from error
            await asyncio.sleep(0.05 * 2**attempt)

    async def _adopt(self, identity: PodIdentity, root_uid: str) -> None:
        """Put the pod that has this name into the cache, if this effect has created it."""
        name = identity.name(self._url.name)
        with contextlib.suppress(ApiError):
            pod = await self._api.get(f"{self._space}/pods/{name}")
            if root_uid in [each.get("uid") for each in pod["metadata"].get("ownerReferences") or ()]:
                if pod["metadata"].get("labels", {}).get(EFFECT) == identity.digest:
                    self.pods.add(pod)
                    return
            elif pod["metadata"].get("labels", {}).get(JOB) == self._url.name:
                raise Refused(f"pod {name} of an earlier job of this name is still being deleted")
        raise Refused(f"a pod {name} exists that is not of this job: delete or rename it")

    async def remove(self, pod: KubeObject) -> None:
        """Remove the object of a pod that has ended."""
        try:
            await self._api.delete(f"{self._space}/pods/{pod['metadata']['name']}", uid=str(pod["metadata"]["uid"]))
        except ApiError as error:
            raise refused(error) from error

    async def delete(self, name: str, grace_s: float) -> None:
        """Begin to end a worker pod, never by force: its machine may still run it. One that has ended stays,
        for its output.

        Args:
            name: the pod.
            grace_s: grace period; Kubernetes has whole seconds, at least 1.
        """
        try:
            pod = self.pods.objects.get(name) or await self._api.get(f"{self._space}/pods/{name}")
            if pod["metadata"].get("labels", {}).get(JOB) != self._url.name or not is_live(pod):
                return
            uid = str(pod["metadata"].get("uid") or "")
            ended = await self._api.delete(f"{self._space}/pods/{name}", grace_s=max(1, int(grace_s)), uid=uid)
            if ended is not None and ended.get("kind") == "Pod" and name in self.pods.objects:
                self.pods.add(ended)
        except ApiError as error:
            if error.code != 404:
                raise refused(error) from error

    async def exclude(self, node: str, reason: str) -> None:
        """Launch no further pod on the machine of a node; cordon or taint it, if the job file says so.

        Args:
            node: the ftcore node, which is a pod.
            reason: why.
        """
        machine = await self._machine_of(node)
        if not machine:
            logger.warning("node %s: no machine is excluded: its pod is gone or has none yet (%s)", node, reason)
            return
        job, _ = await self.job()
        await _repeated(lambda: self._note_excluded(machine))
        if job.spec.quarantine != "avoid":
            try:
                await _repeated(lambda: self._mark(machine, reason, job.spec.quarantine == "taint"))
            except Refused as error:
                logger.warning("machine %s is avoided, but not marked (%s): %s", machine, job.spec.quarantine, error)

    async def _machine_of(self, node: str) -> str:
        """The machine of a pod, also of one that is gone; empty: unknown."""
        pod = self.pods.objects.get(node)
        if pod is None:
            try:
                pod = await self._api.get(f"{self._space}/pods/{node}")
            except ApiError as error:
                if error.code != 404:
                    raise refused(error) from error
        if pod is None:
            await self._sync_root()
            self.records()
            return self._machines.get(node, "")
        return _machine_in(pod)

    async def _note_excluded(self, machine: str) -> None:
        root = await self._api.get(self._config)
        machines = excluded(root)
        if machine not in machines:
            text = ",".join(sorted({*machines, machine}))
            version = root["metadata"]["resourceVersion"]
            metadata = {"resourceVersion": version, "annotations": {QUARANTINED: text}}
            self.root.add(await self._api.patch(self._config, {"metadata": metadata}))

    async def _mark(self, machine: str, reason: str, is_taint: bool) -> None:
        path = f"/api/v1/nodes/{machine}"
        node = await self._api.get(path)
        why = f"job {self._url.namespace}/{self._url.name}: {reason}"
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": {TAINT: why}}
        if not is_taint:
            await self._api.patch(path, {"metadata": metadata, "spec": {"unschedulable": True}})
            return
        taints = (node.get("spec") or {}).get("taints") or []
        if all(each.get("key") != TAINT for each in taints):
            taint = {"key": TAINT, "value": self._url.name, "effect": "NoSchedule"}
            await self._api.patch(path, {"metadata": metadata, "spec": {"taints": [*taints, taint]}})


def _machine_in(pod: KubeObject) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def excluded(root: KubeObject) -> tuple[str, ...]:
    """The machines that a job excludes, from its config map."""
    text = str((root["metadata"].get("annotations") or {}).get(QUARANTINED) or "")
    return tuple(each for each in text.split(",") if each)


def declined_in(root: KubeObject) -> str:
    """Why pods of a job cannot be created, from its config map; empty: they can."""
    return str((root["metadata"].get("annotations") or {}).get(DECLINED) or "")


async def require_answer(work: Coroutine[Any, Any, T]) -> T:
    """Await a request whose refusal means that nothing can be known, such as a missing right to list.

    Raises:
        Unreachable: with what the server says.
    """
    try:
        return await work
    except ApiError as error:
        raise Unreachable(str(refused(error))) from error


async def _repeated(change: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Repeat a change of an object that others change, until it was based on the newest version."""
    for attempt in range(TRIES):
        try:
            await change()
            return
        except ApiError as error:
            if error.code != 409 or attempt == TRIES - 1:
                raise refused(error) from error
        await asyncio.sleep(0.05 * 2**attempt)


def refused(error: ApiError) -> Refused:
    """What an answer of the API server means for people."""
    if error.code == 403 and "exceeded quota" in error.message:
        return Refused(f"the quota of the namespace is used up: {error.message}")
    if error.code == 403 and " cannot " in error.message:
        return Refused(f"a right is missing, see the job's Role: {error.message}")
    if error.code == 403:
        return Refused(f"Kubernetes declines it: {error.message}")
    if error.code == 401:
        return Refused(f"the API server does not accept the credentials: {error.message}")
    if error.code == 422:
        return Refused(f"Kubernetes refuses the pod template: {error.message}")
    return Refused(str(error))
