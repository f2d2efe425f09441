"""The platform against the test server: ftcore's own contract, and what the API does to a watch."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from apiserver.server import ApiServer
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api, ApiError
from ftcore_kubernetes.config import ApiConfig, in_pod, load
from ftcore_kubernetes.job_file import TrainJob, parse
from ftcore_kubernetes.manifests import QUARANTINED, objects, path_of, root
from ftcore_kubernetes.places import by_place
from ftcore_kubernetes.platform import KubernetesPlatform

from ftcore import CapacityChanged, LaunchRequest, NodeEnded, NodeWarned, Occupant, PlatformEvent
from ftcore.errors import Refused, Unreachable
from ftcore.testing.platform import PlatformContract

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


class Job:
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
async def started(replicas: int = 2, quarantine: str = "avoid", **options: Any) -> AsyncIterator[Job]:
    async with ApiServer(namespaces=[SPACE], **{"nodes": 4} | options) as server:
        found = Job(server)
        await found.api.create(f"/api/v1/namespaces/{SPACE}/configmaps", root(job(replicas, quarantine), SPACE))
        try:
            yield found
        finally:
            for each in found.opened:
                await each.close()
            await found.api.close()


@contextlib.asynccontextmanager
async def led(site: Job) -> AsyncIterator[list[PlatformEvent]]:
    """A platform that is watched, as a master watches it: again whenever the API server was away."""
    platform, told = site.open(), list[PlatformEvent]()

    async def follow() -> None:
        while True:
            with contextlib.suppress(Unreachable):
                async for event in platform.watch():
                    told.append(event)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(follow())
    try:
        yield told
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


class TestKubernetesContract(PlatformContract):
    """What ftcore demands of every platform."""

    @contextlib.asynccontextmanager
    async def site(self) -> AsyncIterator[Job]:
        async with started() as site:
            async with led(site):
                await until(lambda: site.runs(0, 1), "two pods")
            yield site


def test_places_are_filled_and_filled_again() -> None:
    """Each pod once; what ends is reported with its reason, and another pod follows in its place, alone."""

    async def scenario() -> None:
        async with started(3) as site, led(site) as told:
            await until(lambda: site.runs(0, 1, 2), "three pods")
            before = site.live()
            victim = before[1][0]
            assert victim == "llm-w1"
            site.server.cluster.end_container(SPACE, victim, 137, "OOMKilled")
            await until(lambda: site.live().get(1, [victim]) != [victim], "its replacement")
            after = site.live()
            assert {0: after[0], 2: after[2]} == {0: before[0], 2: before[2]}, "the others are kept"
            assert len(site.pods) == 4
            (end,) = [each for each in told if isinstance(each, NodeEnded)]
            assert (end.node, end.reason) == (victim, "OOMKilled, exit code 137")

    run(scenario)


def test_two_masters_and_a_late_one_make_no_second_pod() -> None:
    """Also after an answer was lost once the write was done."""

    async def scenario() -> None:
        async with started(4) as site:
            site.server.faults.add(verbs=["create"], resources=["pods"], drop=True, after=True, times=2)
            site.server.faults.add(verbs=["create"], resources=["pods"], code=409, times=3)  # as a busy quota does
            async with led(site), led(site):
                await until(lambda: site.runs(0, 1, 2, 3), "four pods")
                site.server.cluster.evict(SPACE, "llm-w2")
                await until(lambda: site.live().get(2, ["llm-w2"]) != ["llm-w2"], "its replacement")
            async with led(site) as told:
                await until(lambda: any(isinstance(each, NodeEnded) for each in told), "the earlier end")
                assert len(site.pods) == 5

    run(scenario)


def test_an_order_and_a_filling_at_once_make_one_pod() -> None:
    """The platform fills a place at the moment in which the master orders its replacement; the server is slow."""

    async def scenario() -> None:
        async with started(2) as site, led(site):
            await until(lambda: site.runs(0, 1), "two pods")
            master = site.opened[0]
            site.server.faults.add(verbs=["create"], resources=["pods"], delay_s=0.5, times=None)
            site.server.cluster.end_container(SPACE, "llm-w1", 137)
            await until(lambda: site.server.calls["create", "pods"] == 3, "the filling")
            await master.launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1)))
            assert len(site.live()[1]) == 1 and len(site.pods) == 3

    run(scenario)


@pytest.mark.parametrize("how", ["cut", "gone", "away", "busy", "compacted-page"])
def test_a_watch_outlives_the_api_servers_troubles(how: str) -> None:
    """Nothing is missed: the end of a pod that came meanwhile is reported, and its place filled."""

    async def scenario() -> None:
        async with started(2) as site, led(site) as told:
            await until(lambda: site.runs(0, 1), "two pods")
            server = site.server
            if how == "away":
                await server.web.refuse()
            elif how == "gone":
                server.faults.add(verbs=["watch"], resources=["pods"], code=503, times=3)
                server.web.cut_watches()
            elif how == "busy":
                server.faults.add(verbs=["list", "create", "watch"], code=429, times=4, retry_after_s=1)
                server.web.cut_watches()
            server.cluster.evict(SPACE, "llm-w0")
            if how == "gone":
                server.store.compact()
            if how == "cut":
                server.web.cut_watches()
            if how == "compacted-page":
                server.faults.add(verbs=["list"], resources=["pods"], code=410, times=1)
                server.web.cut_watches()
            if how == "away":
                await asyncio.sleep(0.3)  # how long it is away; several attempts fall into it
                await server.web.accept()
            await until(lambda: any(isinstance(each, NodeEnded) and each.node == "llm-w0" for each in told), "its end")
            await until(lambda: len(site.live().get(0, [])) == 1 and len(site.pods) == 3, "its replacement")

    run(scenario)


@pytest.mark.parametrize("how", ["cordon", "taint"])
def test_an_excluded_machine_is_avoided_and_marked(how: str) -> None:
    """By the replacement, by later masters, and, if asked for, by everybody."""

    async def scenario() -> None:
        async with started(2, how) as site:
            async with led(site):
                await until(lambda: site.runs(0, 1), "two pods")
            platform = site.open()
            old = next(pod for pod in site.pods if pod["metadata"]["name"] == "llm-w1")
            place, machine = Occupant(node="llm-w1", ordinal=1), old["spec"]["nodeName"]
            await platform.cordon(place, "it is broken")
            await platform.launch(LaunchRequest(effect="e/1", replaces=place))
            await platform.delete(place, 0.0)
            config = site.server.get("configmaps", SPACE, NAME)
            assert config is not None and config["metadata"]["annotations"][QUARANTINED] == machine
            node = site.server.get("nodes", "", machine)
            assert node is not None and "it is broken" in node["metadata"]["annotations"]["ftcore.dev/quarantined"]
            keys = [each["key"] for each in node["spec"].get("taints", ())]
            assert ("ftcore.dev/quarantined" in keys) is (how == "taint")
            assert bool(node["spec"].get("unschedulable")) is (how == "cordon")
            await until(lambda: site.live().get(1, ["llm-w1"]) != ["llm-w1"], "its replacement")
            new = next(pod for pod in site.pods if pod["metadata"]["name"] == site.live()[1][0])
            term = new["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [machine]
            await until(lambda: new["spec"].get("nodeName") not in ("", machine), "another machine")

    run(scenario)


def test_a_dead_machine_warns_and_its_pod_may_stay() -> None:
    """Terminating for ever, while the replacement runs; when the machine is back, the old pod ends and nothing else."""

    async def scenario() -> None:
        async with started(2, tolerated_s=0) as site, led(site) as told:
            await until(lambda: site.runs(0, 1), "two pods")
            machine = next(pod["spec"]["nodeName"] for pod in site.pods if pod["metadata"]["name"] == "llm-w0")
            on_it = {pod["metadata"]["name"] for pod in site.pods if pod["spec"]["nodeName"] == machine}
            site.server.cluster.lose_node(machine, power=False)
            await until(lambda: "llm-w0" in [each.node for each in told if isinstance(each, NodeWarned)], "a warning")
            await until(lambda: sorted(site.live()) == [0, 1] and not on_it & set(site.names()), "others")
            old = next(pod for pod in site.pods if pod["metadata"]["name"] == "llm-w0")
            assert old["metadata"]["deletionTimestamp"] and not [each for each in told if isinstance(each, NodeEnded)]
            before = site.live()
            site.server.cluster.regain_node(machine)
            await until(lambda: any(isinstance(each, NodeEnded) and each.node == "llm-w0" for each in told), "its end")
            assert site.live() == before

    run(scenario)


def test_pods_that_cannot_start_are_no_capacity() -> None:
    """An image that does not exist, until it does; the reason is for people."""

    async def scenario() -> None:
        async with started(1) as site:
            site.server.cluster.miss_image("train")
            async with led(site) as told:
                await until(lambda: CapacityChanged(free=0) in told, "no capacity")
                assert site.open() and await site.opened[-1].capacity() == 0
                site.server.cluster.have_image("train")
                await until(lambda: told[-1:] == [CapacityChanged(free=None)], "capacity")

    run(scenario)


def test_the_size_follows_the_job_file_and_a_deleted_job_gets_no_pods() -> None:
    """Larger and smaller; then the config map goes in the middle of a recovery."""

    async def scenario() -> None:
        async with started(2) as site, led(site):
            await until(lambda: site.runs(0, 1), "two pods")
            await site.edit(3)
            await until(lambda: site.runs(0, 1, 2), "three pods")
            await site.edit(1)
            await until(lambda: site.runs(0), "one pod")
            platform = site.open()
            with pytest.raises(Refused, match="no longer part of the job"):
                await platform.launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w2", ordinal=2)))
            await site.api.delete(f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}")
            with pytest.raises(Refused, match="being deleted"):
                await site.open().launch(LaunchRequest(effect="e/2", replaces=Occupant(node="llm-w0", ordinal=0)))
            await until(lambda: not site.pods, "no pod is left")

    run(scenario)


def test_a_used_up_quota_is_a_refusal_until_it_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is Kubernetes' own; meanwhile there is no capacity, so no policy waits for a pod."""

    async def scenario() -> None:
        async with started(2) as site:
            quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
            await site.api.create(f"/api/v1/namespaces/{SPACE}/resourcequotas", quota)
            async with led(site) as told:
                await until(lambda: CapacityChanged(free=0) in told, "no capacity")
                with pytest.raises(Refused, match=r"quota of the namespace is used up.*exceeded quota: small"):
                    await site.open().launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1)))
                path = f"/api/v1/namespaces/{SPACE}/resourcequotas/small"
                await site.api.patch(path, {"spec": {"hard": {"pods": "9"}}})
                await until(lambda: site.runs(0, 1), "both pods")
                await until(lambda: told[-1] == CapacityChanged(free=None), "capacity")
            assert "(quota)" in caplog.text

    run(scenario)


@pytest.mark.parametrize("verb", ["create", "delete", "list", "patch"])
def test_a_missing_right_is_named(verb: str) -> None:
    """Whatever the master needs it for."""

    async def scenario() -> None:
        async with started(1, auth=True) as site:
            async with led(site):
                await until(lambda: site.runs(0), "a pod")
            for obj in objects(job(1), SPACE)[1:]:
                if obj["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                    for rule in obj.get("rules") or ():
                        rule["verbs"].remove(verb) if verb in rule["verbs"] else None
                    await site.api.create(path_of(obj, named=False), obj)
            config = ApiConfig(url=site.server.url, namespace=SPACE, token=site.server.token(SPACE, NAME))
            platform = KubernetesPlatform(KubernetesUrl(SPACE, NAME), config)
            place = Occupant(node="llm-w0", ordinal=0)
            try:
                with pytest.raises((Refused, Unreachable), match=rf'a right is missing.*cannot {verb} resource "'):
                    if verb != "list":
                        await platform.cordon(place, "it is broken")
                    await platform.launch(LaunchRequest(effect="e/1", replaces=place))
                    await platform.delete(place, 0.0)
            finally:
                await platform.close()

    run(scenario)


def test_tls_and_the_pods_own_account(tmp_path: Path) -> None:
    """As in a pod: authority and token from files; and with a kubeconfig. Another authority is not trusted."""

    async def scenario() -> None:
        async with ApiServer(namespaces=[SPACE], nodes=1, auth=True, tls=True) as server:
            (tmp_path / "ca.crt").write_bytes(server.ca_pem)
            (tmp_path / "namespace").write_text(SPACE)
            (tmp_path / "token").write_text(server.token(SPACE, "default"))
            env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
            here = in_pod(env, tmp_path)
            assert here.namespace == SPACE
            path = f"/api/v1/namespaces/{SPACE}/pods"
            async with api_of(here) as api:
                with pytest.raises(ApiError, match=f"system:serviceaccount:{SPACE}:default"):
                    await api.get(path)
                (tmp_path / "token").write_text(server.access.admin_token)  # kubelets renew it
                assert (await api.get(path))["items"] == []
            async with api_of(load({"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))})) as api:
                assert len((await api.get("/api/v1/nodes"))["items"]) == 1
            (tmp_path / "ca.crt").unlink()
            async with api_of(in_pod(env, tmp_path)) as api:
                with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await api.get(path)

    run(scenario)


@contextlib.asynccontextmanager
async def api_of(config: ApiConfig) -> AsyncIterator[Api]:
    api = Api(config)
    try:
        yield api
    finally:
        await api.close()


def test_a_template_that_kubernetes_refuses_is_a_refusal() -> None:
    """With its own words; it is asked again, and nothing else is disturbed."""

    async def scenario() -> None:
        async with started(1) as site, led(site) as told:
            await until(lambda: site.runs(0), "a pod")
            data = root(job(2), SPACE)["data"]
            data["job.json"] = data["job.json"].replace('"train:1"', '"train:1", "ports": [{"containerPort": 0}]')
            await site.api.patch(f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}", {"data": data})
            await until(lambda: told[-1:] == [CapacityChanged(free=0)], "no capacity")
            with pytest.raises(Refused, match=r"Kubernetes refuses the pod template: .*containerPort"):
                await site.open().launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1)))
            assert site.runs(0)

    run(scenario)
