"""The platform against the test server: ftcore's own contract, and what the API does to a watch."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from apiserver.server import ApiServer
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api, ApiError
from ftcore_kubernetes.config import ApiConfig, in_pod, load
from ftcore_kubernetes.manifests import QUARANTINED, objects, path_of, root
from ftcore_kubernetes.platform import KubernetesPlatform
from ftcore_kubernetes.submit import job_view
from kubernetes_site import NAME, SPACE, JobSite, job, led, run, started, until

from ftcore import CapacityChanged, LaunchRequest, NodeEnded, NodeWarned, Occupant
from ftcore.errors import Refused, Unreachable
from ftcore.testing.platform import PlatformContract


class TestKubernetesContract(PlatformContract):
    """What ftcore demands of every platform."""

    @contextlib.asynccontextmanager
    async def site(self) -> AsyncIterator[JobSite]:
        async with started() as site:
            async with led(site):
                await until(lambda: site.runs(0, 1), "two pods")
            yield site


def test_places_are_filled_and_filled_again() -> None:
    """Each pod once; what ends is reported with its reason, and another pod follows in its place, alone."""

    async def scenario() -> None:
        async with started(3) as site, led(site) as events:
            await until(lambda: site.runs(0, 1, 2), "three pods")
            before = site.live()
            victim = before[1][0]
            assert victim == "llm-w1"
            site.server.cluster.end_container(SPACE, victim, 137, "OOMKilled")
            await until(lambda: site.live().get(1, [victim]) != [victim], "its replacement")
            after = site.live()
            assert {0: after[0], 2: after[2]} == {0: before[0], 2: before[2]}, "the others are kept"
            assert len(site.pods) == 4
            (end,) = [each for each in events if isinstance(each, NodeEnded)]
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
            async with led(site) as events:
                await until(lambda: any(isinstance(each, NodeEnded) for each in events), "the earlier end")
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


FAULTS = {
    "cut": [],
    "compacted": [{"verbs": ["watch"], "delay_s": 2.0}],
    "away": [],
    "expired": [{"verbs": ["watch"], "code": 410}],
    "expired-list": [{"verbs": ["watch"], "code": 410}, {"verbs": ["list"], "code": 410}],
    "broken": [{"verbs": ["watch"], "code": 503, "times": 3}],
    "busy": [{"verbs": [verb], "code": 429, "retry_after_s": 1} for verb in ("watch", "list", "create")],
}
LISTS = {"cut": 0, "compacted": 1, "away": 1, "expired": 1, "expired-list": 2, "broken": 1, "busy": 1}
"""How often the pods are listed again, at least: a stream that was cut is resumed without a list."""


@pytest.mark.parametrize("how", FAULTS)
def test_a_watch_outlives_the_api_servers_troubles(how: str) -> None:
    """Nothing is missed: the end of a pod that came meanwhile is reported, and its place filled."""

    async def scenario() -> None:
        async with started(2) as site, led(site) as events:
            await until(lambda: site.runs(0, 1), "two pods")
            server = site.server
            for fault in FAULTS[how]:
                server.faults.add(resources=["pods"], **fault)
            before = server.calls["list", "pods"]
            if how == "away":
                await server.web.refuse()
            revision = server.store.revision
            server.web.cut_watches("pods")
            server.cluster.evict(SPACE, "llm-w0")
            if how == "compacted":  # before the watch begins again, which is delayed
                await until(lambda: server.store.revision > revision, "a change that the cut watch has not seen")
                server.store.compact()
            if how == "away":
                await asyncio.sleep(0.3)  # how long it is away; several attempts fall into it
                await server.web.accept()
            await until(
                lambda: any(isinstance(each, NodeEnded) and each.node == "llm-w0" for each in events), "its end"
            )
            await until(lambda: len(site.live().get(0, [])) == 1 and len(site.pods) == 3, "its replacement")
            if how in ("cut", "compacted", "expired", "expired-list"):
                assert sum(isinstance(each, CapacityChanged) for each in events) == 1, "the watch has not begun again"
            lists = server.calls["list", "pods"] - before
            assert lists >= LISTS[how] and (how != "cut" or lists == 0)
            faults = server.faults.all()
            assert all(each["hits"] for each in faults), faults

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
        async with started(2, tolerated_s=0) as site, led(site) as events:
            await until(lambda: site.runs(0, 1), "two pods")
            machine = next(pod["spec"]["nodeName"] for pod in site.pods if pod["metadata"]["name"] == "llm-w0")
            on_it = {pod["metadata"]["name"] for pod in site.pods if pod["spec"]["nodeName"] == machine}
            site.server.cluster.lose_node(machine, power=False)
            await until(lambda: "llm-w0" in [each.node for each in events if isinstance(each, NodeWarned)], "a warning")
            await until(lambda: sorted(site.live()) == [0, 1] and not on_it & set(site.names()), "others")
            old = next(pod for pod in site.pods if pod["metadata"]["name"] == "llm-w0")
            assert old["metadata"]["deletionTimestamp"] and not [each for each in events if isinstance(each, NodeEnded)]
            before = site.live()
            site.server.cluster.regain_node(machine)
            await until(
                lambda: any(isinstance(each, NodeEnded) and each.node == "llm-w0" for each in events), "its end"
            )
            assert site.live() == before

    run(scenario)


def test_pods_that_cannot_start_are_no_capacity() -> None:
    """An image that does not exist, until it does; the reason is for people."""

    async def scenario() -> None:
        async with started(1) as site:
            site.server.cluster.miss_image("train")
            async with led(site) as events:
                await until(lambda: CapacityChanged(free=0) in events, "no capacity")
                assert site.open() and await site.opened[-1].capacity() == 0
                site.server.cluster.have_image("train")
                await until(lambda: events[-1:] == [CapacityChanged(free=None)], "capacity")

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
            async with led(site) as events:
                await until(lambda: CapacityChanged(free=0) in events, "no capacity")
                await until(lambda: "not-created" in str(site.annotations()), "the reason")
                declined = (await job_view(site.api, NAME, SPACE)).declined
                assert declined.startswith("place 1: the quota of the namespace is used up") and "small" in declined
                with pytest.raises(Refused, match=r"quota of the namespace is used up.*exceeded quota: small"):
                    await site.open().launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1)))
                path = f"/api/v1/namespaces/{SPACE}/resourcequotas/small"
                await site.api.patch(path, {"spec": {"hard": {"pods": "9"}}})
                await until(lambda: site.runs(0, 1), "both pods")
                await until(lambda: events[-1] == CapacityChanged(free=None), "capacity")
                await until(lambda: "not-created" not in str(site.annotations()), "the removal of the reason")
            assert "place 1 is not filled: the quota" in caplog.text
            assert (await job_view(site.api, NAME, SPACE)).declined == ""

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
        async with started(1) as site, led(site) as events:
            await until(lambda: site.runs(0), "a pod")
            data = root(job(2), SPACE)["data"]
            data["job.json"] = data["job.json"].replace('"train:1"', '"train:1", "ports": [{"containerPort": 0}]')
            await site.api.patch(f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}", {"data": data})
            await until(lambda: events[-1:] == [CapacityChanged(free=0)], "no capacity")
            with pytest.raises(Refused, match=r"Kubernetes refuses the pod template: .*containerPort"):
                await site.open().launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1)))
            assert site.runs(0)

    run(scenario)
