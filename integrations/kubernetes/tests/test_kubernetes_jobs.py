"""Whole jobs on the test server: masters, agents and training processes are real, and so is etcd."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from etcd_cluster import Cluster, etcd  # noqa: F401
from ftcore_kubernetes.manifests import JOB_FAILED
from kubernetes_job import SPACE, SubmittedJob, cluster

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 280))


def test_a_killed_pod_is_replaced_and_the_others_are_kept(tmp_path: Path, etcd: Cluster) -> None:  # noqa: F811
    """From ``submit`` to the end of the Job, by the master's own rights alone; the master is killed in between."""

    async def scenario() -> None:
        async with cluster(tmp_path) as server:
            place = tmp_path / "work"
            place.mkdir()
            job = SubmittedJob(server, etcd.url(f"killed-{tmp_path.name}"), place, replicas=2)
            made = await job.submit()
            assert made[0] == "ConfigMap/llm" and made[-1] == "Job/llm-master"
            await job.trains(2)
            kept = next(pod for pod in job.pods() if pod["metadata"]["name"] == "llm-w0")["metadata"]["uid"]
            server.cluster.end_container(SPACE, "llm-w1", 137, "OOMKilled")
            await job.until(lambda: len(job.pods()) == 3 and len(job.running()) == 2, "a replacement")
            await job.trains(2)
            assert next(pod for pod in job.pods() if pod["metadata"]["name"] == "llm-w0")["metadata"]["uid"] == kept
            lost = await job.events("node.lost")
            assert [each["node"] for each in lost] == ["llm-w1"]
            assert "OOMKilled, exit code 137" in lost[0]["reason"]
            (master,) = job.running("master")
            server.cluster.end_container(SPACE, master, 137)
            await job.until(lambda: job.running("master") not in ([], [master]), "another master pod")
            await job.trains(2)
            assert len(job.pods()) == 3, "the new master adopts the existing pods"
            job.finish()
            await server.wait("jobs.batch", SPACE, "llm-master", _is_complete)
            await job.delete()
            await job.until(lambda: not job.pods() and not job.pods("master"), "an empty namespace")

    run(scenario())


def _is_complete(job: Any) -> bool:
    return _is(job, "Complete")


def _is(job: Any, kind: str) -> bool:
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def test_an_absent_api_server_and_a_dead_machine_cost_no_step(tmp_path: Path, etcd: Cluster) -> None:  # noqa: F811
    """Training goes on without the API server. A machine that is cut off trains on beside its replacement, which waits;
    when it is back, its pod leaves, and the replacement takes its place. Pods of other machines are never touched."""

    async def scenario() -> None:
        async with cluster(tmp_path, tolerated_s=0, nodes=4) as server:
            place = tmp_path / "work"
            place.mkdir()
            job = SubmittedJob(server, etcd.url(f"dead-{tmp_path.name}"), place, replicas=2)
            await job.submit()
            await job.trains(2)
            await server.web.refuse()
            await job.trains(2, by=20)
            server.cluster.end_container(SPACE, "llm-w1", 137)
            await job.until(lambda: len(job.running()) == 1, "the end of a pod")
            await server.web.accept()
            await job.until(lambda: len(job.running()) == 2, "a replacement")
            await job.trains(2)
            rounds = len(await job.events("world.formed"))
            machine, kept, cut = alone(job)
            server.cluster.lose_node(machine, power=False)
            await job.until(lambda: len(job.running()) == 2 and cut not in job.running(), "a replacement")
            await job.trains(2)
            assert len(await job.events("world.formed")) == rounds, "the pod on the lost machine trains on"
            assert any(each["node"] == cut for each in await job.events("fault.observed")), "a warning"
            server.cluster.regain_node(machine)
            await job.until(
                lambda: cut not in [pod["metadata"]["name"] for pod in job.pods()], "the end of the old pod"
            )
            await job.trains(2)
            world = set(job.running())
            assert kept in world and len(world) == 2
            job.finish()
            await server.wait("jobs.batch", SPACE, "llm-master", _is_complete)

    run(scenario())


def test_a_deleted_pod_saves_and_leaves_and_an_evicted_one_changes_its_machine(
    tmp_path: Path,
    etcd: Cluster,  # noqa: F811
) -> None:
    """Both are replaced; the machine of the evicted one is avoided from then on."""

    async def scenario() -> None:
        async with cluster(tmp_path, nodes=4) as server:
            place = tmp_path / "work"
            place.mkdir()
            (place / "boundary").touch()
            job = SubmittedJob(server, etcd.url(f"deleted-{tmp_path.name}"), place, replicas=2)
            await job.submit()
            await job.trains(2)
            await job.can_save(2)
            await job.api.delete(f"/api/v1/namespaces/{SPACE}/pods/llm-w1")
            await job.until(lambda: "llm-w1" not in job.running() and len(job.running()) == 2, "a replacement")
            await job.until(lambda: (place / "saved.1").exists(), "the save before it left")
            await job.trains(2)
            machine = next(pod for pod in job.pods() if pod["metadata"]["name"] == "llm-w0")["spec"]["nodeName"]
            await job.ftctl("evict", "llm-w0", "--why", "its links flap")
            await job.until(lambda: "llm-w0" not in job.running() and len(job.running()) == 2, "another replacement")
            await job.trains(2)
            root = server.get("configmaps", SPACE, "llm") or {}
            assert root["metadata"]["annotations"]["ftcore.dev/quarantined"] == machine
            assert machine not in [pod["spec"]["nodeName"] for pod in job.pods() if _lives(pod)]
            job.finish()
            await server.wait("jobs.batch", SPACE, "llm-master", _is_complete)

    run(scenario())


def test_the_smoke_test_of_the_examples_by_the_command_line(tmp_path: Path, etcd: Cluster) -> None:  # noqa: F811
    """With torch and gloo, from its first step to the Job's end; only its store and its paths are this machine's."""

    async def scenario() -> None:
        async with cluster(tmp_path, nodes=2) as server:
            job = SubmittedJob(server, etcd.url(f"smoke-{tmp_path.name}"), tmp_path, name="smoke")
            job.file = yaml.safe_load((EXAMPLES / "cpu-smoke.yaml").read_text())
            job.file["spec"] |= {"store": {"url": job.store}}
            job.file["spec"]["command"] = [str(EXAMPLES / "smoke.py"), "--steps", "40", "--pause", "0.01"]
            job.file["spec"]["template"]["spec"]["containers"][0]["workingDir"] = str(tmp_path)  # as in one image
            (tmp_path / "job.yaml").write_text(job.text)
            server.kubeconfig(tmp_path / "config", namespace=SPACE)
            assert "created Job/smoke-master" in await job.k8s("submit", tmp_path / "job.yaml")
            assert "already complete" in await job.k8s("submit", tmp_path / "job.yaml")
            await job.until(lambda: _is_complete(server.get("jobs.batch", SPACE, "smoke-master")), "the end")
            assert "step 40: 2 ranks" in job.output()
            lines = (await job.k8s("status", "smoke")).splitlines()
            assert [line.split()[:4] for line in lines[2:]] == [
                ["smoke-w0", "worker", "0", "Succeeded"],
                ["smoke-w1", "worker", "1", "Succeeded"],
            ]
            assert await job.k8s("delete", "smoke") == "deleted train/smoke\n"
            await job.until(lambda: not job.pods() and not job.pods("master"), "an empty namespace")

    run(scenario())


def test_a_failed_job_is_a_failed_job_and_no_pod_follows(tmp_path: Path, etcd: Cluster) -> None:  # noqa: F811
    """The master's pod ends with the reserved exit code of a failed training, and Kubernetes starts no other."""

    async def scenario() -> None:
        async with cluster(tmp_path, nodes=2) as server:
            place = tmp_path / "work"
            place.mkdir()
            [(place / f"always.{rank}").write_text("if step > 20: sys.exit(3)") for rank in (0, 1)]
            flags = ["--preload", "json", "--max-restarts", "0"]
            job = SubmittedJob(server, etcd.url(f"failed-{tmp_path.name}"), place, replicas=2, ftrun=flags)
            await job.submit()
            await server.wait("jobs.batch", SPACE, "llm-master", lambda found: _is(found, "Failed"))
            (master,) = job.pods("master")
            state = master["status"]["containerStatuses"][0]["state"]
            assert state["terminated"]["exitCode"] == JOB_FAILED, job.output()
            assert len(job.pods()) == 2 and "the job has failed" in job.output()

    run(scenario())


def alone(job: SubmittedJob) -> tuple[str, str, str]:
    """A machine with one worker and nothing else; the worker elsewhere; and the one on it."""
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job.pods() if _lives(pod)}
    machines = [pod["spec"]["nodeName"] for pod in job.pods("master") if _lives(pod)] + list(pods.values())
    for name, machine in pods.items():
        if machines.count(machine) == 1:
            (other,) = set(pods) - {name}
            return machine, other, name
    raise AssertionError(f"no worker has a machine of its own: {pods}")


def _lives(pod: Any) -> bool:
    return pod["status"]["phase"] == "Running"
