"""A job at the test server without a master of its own, and platforms that are watched as a master watches them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from apiserver.server import ApiServer
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.job_file import TrainJob, parse
from ftcore_kubernetes.manifests import root
from ftcore_kubernetes.places import by_place
from ftcore_kubernetes.platform import KubernetesPlatform

from ftcore import Occupant, PlatformEvent
from ftcore.errors import Unreachable

SPACE, NAME = "train", "llm"
JOB = """
apiVersion: ftcore.dev/v1alpha1
kind: ElasticTrainJob
metadata: {{name: llm}}
spec:
  command: [train.py]
  replicas: {replicas}
  minReplicas: 1
  maxReplicas: 2000
  quarantine: {quarantine}
  watchNodes: true
  store: {{url: "etcd://e1:2379"}}
  template: {{spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: train, image: train:1}}]}}}}
"""


def job(replicas: int = 2, quarantine: str = "avoid") -> TrainJob:
    return parse(JOB.format(replicas=replicas, quarantine=quarantine), "job.yaml")


class JobSite:
    """A job at a server, without a master of its own."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.config = ApiConfig(url=server.url, namespace=SPACE, token=server.access.admin_token)
        self.opened: list[KubernetesPlatform] = []
        self.api = Api(self.config)

    def open(self) -> KubernetesPlatform:
        self.opened.append(KubernetesPlatform(KubernetesUrl(SPACE, NAME), self.config))
        return self.opened[-1]

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [each.object for each in self.server.store.all(self.server.resource("pods"), SPACE)]

    def live(self) -> dict[int, list[str]]:
        """Names of pods that run or start, by place."""
        running = [
            pod for pod in self.pods if pod["status"]["phase"] in ("Pending", "Running")
            and not pod["metadata"].get("deletionTimestamp")
        ]  # fmt: skip
        return {place: [pod["metadata"]["name"] for pod in pods] for place, pods in by_place(running).items()}

    def names(self) -> list[str]:
        return [name for names in self.live().values() for name in names]

    def runs(self, *places: int) -> bool:
        """Whether these places alone have a pod each, and it runs."""
        found = [pod for pod in self.pods if pod["status"]["phase"] in ("Pending", "Running")]
        phases = {pod["status"]["phase"] for pod in found if not pod["metadata"].get("deletionTimestamp")}
        return sorted(self.live()) == sorted(places) and phases == {"Running"}

    @property
    def data(self) -> dict[str, str]:
        """Of a config map of this job with one place."""
        found: dict[str, str] = root(job(1), SPACE)["data"]
        return found

    def annotations(self) -> dict[str, str]:
        """Of the config map."""
        found = self.server.get("configmaps", SPACE, NAME)
        return {} if found is None else found["metadata"].get("annotations") or {}

    def remove_pod(self, name: str) -> None:
        """Remove a pod's object at once, as with ``--force``."""
        self.server.store.remove(self.server.resource("pods"), (SPACE, name))

    async def edit(self, replicas: int) -> None:
        data = root(job(replicas), SPACE)["data"]
        await self.api.patch(f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}", {"data": data})

    # -- ftcore.testing.platform.Site

    async def nodes(self) -> dict[int, list[Occupant]]:
        found: dict[int, list[Occupant]] = {}
        for number, pod in enumerate(self.pods):
            if pod["status"]["phase"] in ("Pending", "Running"):
                place = pod["metadata"]["labels"]["ftcore.dev/place"]
                ordinal = int(place) if place.isdigit() else 100 + number
                found.setdefault(ordinal, []).append(
                    Occupant(node=pod["metadata"]["name"], ordinal=ordinal if place.isdigit() else None)
                )
        return found

    async def kill(self, node: Occupant) -> None:
        self.server.cluster.end_container(SPACE, node.node, 137, "OOMKilled")

    async def fill_up(self) -> None:
        raise NotImplementedError

    async def go_away(self) -> None:
        await self.server.web.refuse()


@contextlib.asynccontextmanager
async def started(replicas: int = 2, quarantine: str = "avoid", **options: Any) -> AsyncIterator[JobSite]:
    async with ApiServer(namespaces=[SPACE], **{"nodes": 4} | options) as server:
        found = JobSite(server)
        await found.api.create(f"/api/v1/namespaces/{SPACE}/configmaps", root(job(replicas, quarantine), SPACE))
        try:
            yield found
        finally:
            for each in found.opened:
                await each.close()
            await found.api.close()


@contextlib.asynccontextmanager
async def led(site: JobSite) -> AsyncIterator[list[PlatformEvent]]:
    """A platform that is watched, as a master watches it: again whenever the API server was away."""
    platform, events = site.open(), list[PlatformEvent]()

    async def follow() -> None:
        while True:
            with contextlib.suppress(Unreachable):
                async for event in platform.watch():
                    events.append(event)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(follow())
    try:
        yield events
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 90))
