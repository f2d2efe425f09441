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
from ftcore_kubernetes.informer import CacheChange, Informer
from ftcore_kubernetes.job_file import TrainJob, parse
from ftcore_kubernetes.manifests import QUARANTINED, owner_of, worker_selector
from ftcore_kubernetes.places import EFFECT, JOB
from ftcore_kubernetes.pods import JOB_KEY, PodIdentity, worker_pod

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
    """

    def __init__(self, url: KubernetesUrl, api: Api) -> None:
        self._url, self._api = url, api
        self._space = f"/api/v1/namespaces/{url.namespace}"
        self._config = f"{self._space}/configmaps/{url.name}"
        self.pods = Informer(api, f"{self._space}/pods", {"labelSelector": worker_selector(url.name)}, slim)
        self.root = Informer(api, f"{self._space}/configmaps", {"fieldSelector": f"metadata.name={url.name}"})
        self.machines = Informer(api, "/api/v1/nodes", keep=slim_node)
        self.news: asyncio.Queue[PoolNews | Exception] = asyncio.Queue()
        self._parsed: tuple[str, TrainJob] | None = None

    async def job(self) -> tuple[TrainJob, KubeObject]:
        """The job and its config map.

        Raises:
            Refused: it is gone, or being deleted: then nothing more is created.
            Unreachable: the API server does not answer.
        """
        if not self.root.is_synced:
            await asking(self.root.relist())
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

    async def synced(self) -> dict[str, KubeObject]:
        """The worker pods, by name; asks the server if it has not been asked yet."""
        return self.pods.objects if self.pods.is_synced else await self.refresh()

    async def refresh(self) -> dict[str, KubeObject]:
        """The worker pods, asked now."""
        for change in await asking(self.pods.relist()):
            self.news.put_nowait((self.pods, change))
        return self.pods.objects

    async def pump(self, informer: Informer) -> None:
        """Keep a cache current, until cancelled or until that is not possible."""
        try:
            async for change in informer.changes():
                self.news.put_nowait((informer, change))
        except ApiError as error:
            if informer is self.machines:
                logger.warning("conditions of machines are not reported: %s", refused(error))
            else:
                self.news.put_nowait(Unreachable(str(refused(error))))
        except Unreachable as error:
            self.news.put_nowait(error)

    def with_effect(self, digest: str) -> KubeObject | None:
        """The pod that an effect has created."""
        pods = self.pods.objects.values()
        return next((pod for pod in pods if pod["metadata"].get("labels", {}).get(EFFECT) == digest), None)

    async def create(self, identity: PodIdentity) -> None:
        """Create a pod, unless its effect has already created it.

        Raises:
            Refused: Kubernetes declines: quota, a missing right, an invalid template.
            Unreachable: the API server does not answer.
        """
        await self.synced()
        if self.with_effect(identity.digest) is not None:
            return
        job, root = await self.job()
        owner = owner_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": root["metadata"]})
        pod = worker_pod(job, identity, owner=owner, avoid=excluded(root))
        pod["metadata"]["namespace"] = self._url.namespace
        for attempt in range(TRIES):
            try:
                self.pods.add(await self._api.create(f"{self._space}/pods", pod))
                return
            except ApiError as error:
                if error.code == 409 and error.reason == "AlreadyExists":
                    await self._adopt(identity)
                    return
                if error.code != 409 or attempt == TRIES - 1:  # Conflict: many pods are counted in one quota at once
                    raise refused(error) from error
            await asyncio.sleep(0.05 * 2**attempt)

    async def _adopt(self, identity: PodIdentity) -> None:
        """A pod of that name exists: it is this effect's, or another thing took the name."""
        name = identity.name(self._url.name)
        with contextlib.suppress(ApiError):
            pod = await self._api.get(f"{self._space}/pods/{name}")
            if pod["metadata"].get("labels", {}).get(EFFECT) == identity.digest:
                self.pods.add(pod)
                return
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
        try:
            pod = self.pods.objects.get(node) or await self._api.get(f"{self._space}/pods/{node}")
        except ApiError:
            return  # without a pod no machine is known, and names are not used twice
        machine = str((pod.get("spec") or {}).get("nodeName") or "")
        if not machine:
            return
        job, _ = await self.job()
        await _repeated(lambda: self._note_excluded(machine))
        if job.spec.quarantine != "avoid":
            try:
                await _repeated(lambda: self._mark(machine, reason, job.spec.quarantine == "taint"))
            except Refused as error:
                logger.warning("machine %s is avoided, but not marked (%s): %s", machine, job.spec.quarantine, error)

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


def excluded(root: KubeObject) -> tuple[str, ...]:
    """The machines that a job excludes, from its config map."""
    text = str((root["metadata"].get("annotations") or {}).get(QUARANTINED) or "")
    return tuple(each for each in text.split(",") if each)


async def asking(work: Coroutine[Any, Any, T]) -> T:
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


def is_quota(error: Refused) -> bool:
    """Whether a launch was declined because of the quota."""
    return "quota" in str(error)
