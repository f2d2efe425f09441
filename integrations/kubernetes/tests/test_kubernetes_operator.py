"""The operator, as processes of its own, against the test server; no pod runs anything here."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml
from apiserver.server import ApiServer
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api, ApiError
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.job_file import GROUP, PLURAL, VERSION, parse
from ftcore_kubernetes.manifests import JOB_FAILED, objects
from ftcore_kubernetes.platform import KubernetesPlatform
from ftcore_kubernetes.pods import PodIdentity
from ftcore_kubernetes.schema import custom_resource_definition

SPACE = "train"
JOB = f"""
apiVersion: {GROUP}/{VERSION}
kind: ElasticTrainJob
metadata: {{name: llm, namespace: train}}
spec:
  command: [train.py]
  replicas: 2
  minReplicas: 1
  maxReplicas: 4
  watchNodes: true
  store: {{url: "etcd://e1:2379"}}
  template: {{spec: {{containers: [{{name: train, image: "train:1", x-new: kept}}]}}}}
"""
PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{SPACE}/{PLURAL}"


class Operators:
    """A server with the custom resource, and operators beside it."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.server, self._root = server, root
        self.api = Api(ApiConfig(url=server.url, token=server.access.admin_token))
        self._running: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        kubeconfig = self.server.kubeconfig(self._root / "kubeconfig")
        argv = [sys.executable, "-m", "ftcore.cli.ftctl", "k8s", "operator", "--namespace", SPACE]
        env = os.environ | {"KUBECONFIG": str(kubeconfig)}
        with (self._root / "operator.log").open("ab") as log:
            self._running.append(await asyncio.create_subprocess_exec(*argv, env=env, stdout=log, stderr=log))

    async def stop(self) -> None:
        for each in self._running:
            if each.returncode is None:
                each.send_signal(signal.SIGTERM)
        for each in self._running:
            await each.wait()
        await self.api.close()

    def job(self) -> dict[str, Any]:
        return self.server.get(f"{PLURAL}.{GROUP}", SPACE, "llm") or {}

    def status(self, *names: str) -> list[object]:
        found = self.job().get("status") or {}
        return [found.get(name) for name in names]

    def stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """An object as the server has it; empty: it has none."""
        group, metadata = obj["apiVersion"].rpartition("/")[0], obj["metadata"]
        plural = f"{obj['kind'].lower()}s" + (f".{group}" if group else "")
        return self.server.get(plural, metadata.get("namespace", ""), metadata["name"]) or {}

    def condition(self) -> dict[str, str]:
        found: list[dict[str, str]] = (self.job().get("status") or {}).get("conditions") or [{}]
        return found[0]

    def names(self, plural: str) -> list[str]:
        return sorted(each.meta["name"] for each in self.server.store.all(self.server.resource(plural), SPACE))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(60):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = (self._root / "operator.log").read_text()[-3000:]
            raise AssertionError(f"timed out waiting for {what}: {self.job()}\n{log}") from None


@contextlib.asynccontextmanager
async def operators(root: Path, count: int = 1) -> AsyncIterator[Operators]:
    async with ApiServer(namespaces=[SPACE], nodes=1) as server:
        found = Operators(server, root)
        await found.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        crd = "customresourcedefinitions.apiextensions.k8s.io"
        await server.wait(crd, "", f"{PLURAL}.{GROUP}", lambda each: (each.get("status") or {}).get("conditions"))
        try:
            for _ in range(count):
                await found.start()
            yield found
        finally:
            await found.stop()


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 110))


def test_two_operators_submit_one_job_and_edits_are_applied_or_refused(tmp_path: Path) -> None:
    """The same objects as ``ftctl k8s render``; size at once, the rest with the reason; all goes with the resource."""

    async def scenario() -> None:
        async with operators(tmp_path, 2) as site:
            await site.api.create(PATH, yaml.safe_load(JOB))
            await site.until(lambda: site.condition().get("reason") == "Submitted", "the submission")
            rendered = objects(parse(JOB, "job.yaml"), SPACE)
            assert "x-new" in rendered[0]["data"]["job.json"], "the template is kept as it is"
            assert {each["kind"] for each in rendered} == {
                "ConfigMap", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Job"
            }  # fmt: skip
            for obj in rendered:
                stored = site.stored(obj)
                assert holds(stored, obj), f"{obj}\n{stored}"
            assert site.names("secrets") == ["llm-token"] and site.names("jobs.batch") == ["llm-master"]
            (master,) = [name for name in site.names("pods") if name.startswith("llm-master")]
            assert site.server.get("pods", SPACE, master) is not None
            await site.api.patch(f"{PATH}/llm", {"spec": {"replicas": 3}})
            await site.until(lambda: site.condition().get("reason") == "EditApplied", "the new size")
            stored = site.server.get("configmaps", SPACE, "llm")
            assert stored is not None and parse(stored["data"]["job.json"], "x").spec.replicas == 3
            await site.api.patch(f"{PATH}/llm", {"spec": {"policy": "version: 1"}})
            await site.until(lambda: site.condition().get("reason") == "EditRefused", "the refusal")
            assert "spec.policy: the policy is recorded in the log when a run starts" in site.condition()["message"]
            await site.api.delete(f"{PATH}/llm", propagation="Background")
            for plural in ("configmaps", "jobs.batch", "pods", "secrets", "roles.rbac.authorization.k8s.io"):
                await site.until(lambda plural=plural: not site.names(plural), f"no {plural}")
            await site.until(lambda: not any(map(site.stored, rendered)), "no cluster-wide right")

    run(scenario())


def holds(stored: Any, wanted: Any) -> bool:
    """Whether what is stored has everything that is wanted; the server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(
            key in stored and holds(stored[key], each) for key, each in wanted.items()
        )
    if isinstance(wanted, list):
        return len(stored) == len(wanted) and all(map(holds, stored, wanted))
    return bool(stored == wanted)


def test_the_status_follows_pods_and_the_masters_job(tmp_path: Path) -> None:
    """Pods that run, and the end of the Job, of which no pod's event speaks."""

    async def scenario() -> None:
        async with operators(tmp_path) as site:
            await site.api.create(PATH, yaml.safe_load(JOB))
            await site.until(lambda: site.status("phase", "ready") == ["Pending", 0], "a job without workers")
            platform = KubernetesPlatform(KubernetesUrl(SPACE, "llm"), ApiConfig(url=site.server.url))
            for place in (0, 1):
                await platform.pool.create(PodIdentity(effect=f"start/{place}", place=place))
            await site.until(lambda: site.status("phase", "ready", "replicas") == ["Running", 2, 2], "two workers")
            site.server.cluster.end_container(SPACE, "llm-w1", 137)
            await site.until(lambda: site.status("phase", "ready", "replicas") == ["Running", 1, 1], "one worker")
            (master,) = [name for name in site.names("pods") if name.startswith("llm-master")]
            site.server.cluster.end_container(SPACE, master, JOB_FAILED)
            await site.until(lambda: site.status("phase") == ["Failed"], "the end")
            await platform.close()

    run(scenario())


def test_a_resource_that_is_created_again_gets_a_job_of_its_own(tmp_path: Path) -> None:
    """The garbage collector is late: the earlier config map is neither taken over nor edited."""

    async def scenario() -> None:
        async with operators(tmp_path) as site:
            await site.api.create(PATH, yaml.safe_load(JOB))
            await site.until(lambda: site.condition().get("reason") == "Submitted", "the submission")
            site.server.controllers.pause()
            await site.api.delete(f"{PATH}/llm", propagation="Background")
            await site.until(lambda: not site.job(), "the end of the resource")
            again = yaml.safe_load(JOB)
            again["spec"]["policy"] = "version: 1"
            uid = (await site.api.create(PATH, again))["metadata"]["uid"]
            log = tmp_path / "operator.log"
            await site.until(lambda: "of an earlier job llm is still being deleted" in log.read_text(), "the wait")
            assert not site.condition(), "neither refused nor submitted"
            site.server.controllers.resume()
            await site.until(lambda: site.condition().get("reason") == "Submitted", "the second submission")
            (root, *_) = objects(parse(yaml.safe_dump(again), "job.yaml"), SPACE)
            stored = site.stored(root)
            assert holds(stored, root) and [each["uid"] for each in stored["metadata"]["ownerReferences"]] == [uid]

    run(scenario())


def test_a_wrong_resource_is_refused_by_the_schema_or_by_the_operator(tmp_path: Path) -> None:
    """What the schema can say, the server says; the rest is a condition with the key."""

    async def scenario() -> None:
        async with operators(tmp_path) as site:
            wrong = yaml.safe_load(JOB)
            wrong["spec"]["replicas"] = 0
            try:
                await site.api.create(PATH, wrong)
            except ApiError as error:
                assert error.code == 422 and "spec.replicas" in error.message
            else:
                raise AssertionError("the schema lets 0 replicas through")
            wrong["spec"]["replicas"] = 9
            await site.api.create(PATH, wrong)
            await site.until(lambda: site.condition().get("reason") == "Invalid", "the refusal")
            assert "spec.replicas: found 9; expected from minReplicas 1 to maxReplicas 4" in site.condition()["message"]
            assert not site.names("configmaps")

    run(scenario())
