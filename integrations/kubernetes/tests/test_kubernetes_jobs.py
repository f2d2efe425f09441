"""Whole jobs on the test server: masters, agents and training processes are real, and so is etcd."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from etcd_cluster import Cluster, etcd  # noqa: F401
from kubernetes_job import SPACE, SubmittedJob, cluster

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 280))


def test_a_killed_pod_is_replaced_and_the_others_are_kept(tmp_path: Path, etcd: Cluster) -> None:  # noqa: F811
    """From ``submit`` to the end of the Job, by the master's own rights alone; the master is killed in between."""

    async def scenario() -> None:
        async with cluster(tmp_path) as server:
            place = tmp_path / "work"
            place.mkdir()
            job = SubmittedJob(server, etcd.url("killed"), place, replicas=2)
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
            assert len(job.pods()) == 3, "the new master adopts what is there"
            job.finish()
            await server.wait("jobs.batch", SPACE, "llm-master", _is_complete)
            await job.delete()
            await job.until(lambda: not job.pods() and not job.pods("master"), "an empty namespace")
            await job.api.close()

    run(scenario())


def _is_complete(job: Any) -> bool:
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)
