"""The Job controller of the test server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from apiserver import ApiServer

IGNORE = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
FAIL = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64]}}]


def condition(job: Any, kind: str) -> Any:
    return next((each for each in (job.get("status") or {}).get("conditions") or () if each["type"] == kind), None)


async def next_pod(server: ApiServer, old: set[str]) -> str:
    """The name of the pod that runs and is not among the old ones."""
    pods = server.resource("pods")
    watch = server.store.watch(pods, server.store.revision)
    try:
        while True:
            for each in server.store.all(pods, "ft"):
                if each.meta["name"] not in old and each.object["status"]["phase"] == "Running":
                    return str(each.meta["name"])
            watch.take()
            await watch.wait(None)
    finally:
        server.store.unwatch(pods, watch)


@pytest.mark.parametrize(("rules", "codes", "kind", "reason"), [
    ([], [1, 0], "Complete", "CompletionsReached"),
    ([], [1, 1, 1], "Failed", "BackoffLimitExceeded"),
    (FAIL, [1, 64], "Failed", "PodFailurePolicy"),
])  # fmt: skip
def test_job_ends(rules: Any, codes: list[int], kind: str, reason: str) -> None:
    async def body() -> None:
        async with ApiServer(nodes=1, namespaces=["ft"], backoff_s=0.0) as server:
            template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
            spec = {"backoffLimit": 2, "podFailurePolicy": {"rules": rules}, "template": template}
            server.objects.create(server.resource("jobs.batch"), "ft", {"metadata": {"name": "j"}, "spec": spec})
            seen: set[str] = set()
            for code in codes:
                name = await next_pod(server, seen)
                seen.add(name)
                server.cluster.end_container("ft", name, code)
            until: Callable[[Any], bool] = lambda job: condition(job, kind) is not None  # noqa: E731
            job = await server.wait("jobs.batch", "ft", "j", until)
            assert condition(job, kind)["reason"] == reason

    asyncio.run(body())


def test_evicted_pod_is_replaced_and_does_not_count() -> None:
    async def body() -> None:
        async with ApiServer(nodes=1, namespaces=["ft"], backoff_s=0.0) as server:
            template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
            spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": IGNORE}, "template": template}
            server.objects.create(server.resource("jobs.batch"), "ft", {"metadata": {"name": "j"}, "spec": spec})
            first = await next_pod(server, set())
            server.cluster.evict("ft", first)
            second = await next_pod(server, {first})
            server.cluster.end_container("ft", second, 0)
            job = await server.wait("jobs.batch", "ft", "j", lambda job: condition(job, "Complete") is not None)
            assert condition(job, "Failed") is None

    asyncio.run(body())
