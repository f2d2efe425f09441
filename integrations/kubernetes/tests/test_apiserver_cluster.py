"""Nodes and pods that only change state: scheduling, lost nodes, evictions, taints, images."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from apiserver import ApiError, ApiServer

Body = Callable[[ApiServer], Awaitable[None]]


def run(body: Body, **options: Any) -> None:
    async def inside() -> None:
        async with ApiServer(
            **({"namespaces": ["ft"], "nodes": 2, "capacity": {"nvidia.com/gpu": "8"}} | options)
        ) as server:
            await body(server)

    asyncio.run(inside())


def make(server: ApiServer, name: str, gpus: int = 8, labels: Any = None, **spec: Any) -> None:
    containers = [{"name": "c", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]
    body = {"metadata": {"name": name, "labels": labels or {}},
            "spec": {"restartPolicy": "Never", "containers": containers, **spec}}  # fmt: skip
    server.objects.create(server.resource("pods"), "ft", body)


def condition(pod: Any, kind: str) -> Any:
    return next((each for each in pod["status"].get("conditions") or () if each["type"] == kind), None)


def running(pod: Any) -> bool:
    return pod is not None and pod["status"]["phase"] == "Running"


def gone(pod: Any) -> bool:
    return pod is None


def test_pods_wait_for_room() -> None:
    async def body(server: ApiServer) -> None:
        for name in ("a", "b", "c"):
            make(server, name)
        nodes = {(await server.wait("pods", "ft", name, running))["spec"]["nodeName"] for name in ("a", "b")}
        assert nodes == {"node-0", "node-1"}
        waiting = await server.wait("pods", "ft", "c", lambda pod: condition(pod, "PodScheduled"))
        assert condition(waiting, "PodScheduled")["reason"] == "Unschedulable"
        assert (
            condition(waiting, "PodScheduled")["message"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
        )
        server.cluster.end_container("ft", "a", 1)
        await server.wait("pods", "ft", "a", lambda pod: pod["status"]["phase"] == "Failed")
        await server.wait("pods", "ft", "c", running)

    run(body)


def test_scheduler_heeds_selectors_affinity_cordons_and_gates() -> None:
    async def body(server: ApiServer) -> None:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
        rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        make(server, "there", 1, affinity=rule)
        assert (await server.wait("pods", "ft", "there", running))["spec"]["nodeName"] == "node-1"
        make(server, "nowhere", 1, nodeSelector={"zone": "x"})
        found = await server.wait("pods", "ft", "nowhere", lambda pod: condition(pod, "PodScheduled"))
        assert "didn't match Pod's node affinity/selector" in condition(found, "PodScheduled")["message"]
        for name in ("node-0", "node-1"):
            server.objects.patch(
                server.resource("nodes"), "", name, "application/merge-patch+json", {"spec": {"unschedulable": True}}
            )
            await server.wait("nodes", "", name, lambda node: node["spec"].get("taints"))
        make(server, "cordoned", 1)
        found = await server.wait("pods", "ft", "cordoned", lambda pod: condition(pod, "PodScheduled"))
        assert "2 node(s) were unschedulable" in condition(found, "PodScheduled")["message"]
        assert running(server.get("pods", "ft", "there"))
        server.objects.patch(
            server.resource("nodes"), "", "node-0", "application/merge-patch+json", {"spec": {"unschedulable": None}}
        )
        await server.wait("pods", "ft", "cordoned", running)
        make(server, "gated", 1, schedulingGates=[{"name": "example.org/wait"}])
        assert condition(server.get("pods", "ft", "gated"), "PodScheduled")["reason"] == "SchedulingGated"
        server.objects.patch(
            server.resource("pods"), "ft", "gated", "application/merge-patch+json", {"spec": {"schedulingGates": []}}
        )
        await server.wait("pods", "ft", "gated", running)

    run(body)


def test_lost_node_is_not_ready_and_its_pods_stay_terminating() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "a")
        node = (await server.wait("pods", "ft", "a", running))["spec"]["nodeName"]
        server.cluster.lose_node(node)
        found = await server.wait("nodes", "", node, lambda each: condition(each, "Ready")["status"] == "Unknown")
        assert condition(found, "Ready")["reason"] == "NodeStatusUnknown"
        pod = await server.wait("pods", "ft", "a", lambda each: "deletionTimestamp" in each["metadata"])
        assert (condition(pod, "DisruptionTarget")["reason"], condition(pod, "Ready")["status"]) == (
            "DeletionByTaintManager",
            "False",
        )
        assert pod["status"]["phase"] == "Running"
        server.objects.delete(server.resource("pods"), "ft", "a")  # no kubelet is there to end it
        assert server.get("pods", "ft", "a") is not None
        server.cluster.regain_node(node)
        await server.wait("pods", "ft", "a", gone)
        assert "taints" not in server.get("nodes", "", node).get("spec", {})

    run(body, tolerated_s=0)


def test_node_that_boots_ends_pods_that_are_not_restarted() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "never")
        make(server, "always", restartPolicy="Always")
        nodes = [(await server.wait("pods", "ft", name, running))["spec"]["nodeName"] for name in ("never", "always")]
        for node in nodes:
            server.cluster.lose_node(node)
            await server.wait("nodes", "", node, lambda each: condition(each, "Ready")["status"] == "Unknown")
            server.cluster.regain_node(node)
        failed = await server.wait("pods", "ft", "never", lambda each: each["status"]["phase"] == "Failed")
        assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 255
        again = await server.wait(
            "pods", "ft", "always", lambda each: each["status"]["containerStatuses"][0]["restartCount"]
        )
        assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "Unknown"
        await server.wait("pods", "ft", "always", lambda each: condition(each, "Ready")["status"] == "True")

    run(body)


def test_deleted_node_and_out_of_service_taint_remove_pods() -> None:
    async def body(server: ApiServer) -> None:
        for name in ("a", "b"):
            make(server, name)
        first, second = [(await server.wait("pods", "ft", name, running))["spec"]["nodeName"] for name in ("a", "b")]
        server.objects.delete(server.resource("nodes"), "", first)
        await server.wait("pods", "ft", "a", gone)
        server.cluster.lose_node(second)
        taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
        server.objects.patch(
            server.resource("nodes"), "", second, "application/merge-patch+json", {"spec": {"taints": taints}}
        )
        await server.wait("pods", "ft", "b", gone)

    run(body)


def test_taint_evicts_what_does_not_tolerate_it() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "goes", 1)
        make(server, "stays", 1, tolerations=[{"key": "repair", "operator": "Exists"}])
        for name in ("goes", "stays"):
            await server.wait("pods", "ft", name, running)
        for node in ("node-0", "node-1"):
            taints = [{"key": "repair", "value": "soon", "effect": "NoExecute"}]
            server.objects.patch(
                server.resource("nodes"), "", node, "application/merge-patch+json", {"spec": {"taints": taints}}
            )
        await server.wait("pods", "ft", "goes", gone)
        assert "deletionTimestamp" not in server.get("pods", "ft", "stays")["metadata"]

    run(body)


def test_preempted_evicted_and_killed_pods() -> None:
    async def body(server: ApiServer) -> None:
        for name in ("oom", "evicted", "preempted"):
            make(server, name, 1)
            await server.wait("pods", "ft", name, running)
        watch = server.store.watch(server.resource("pods"), server.store.revision, "ft")
        server.cluster.end_container("ft", "oom", 137, "OOMKilled")
        server.cluster.evict("ft", "evicted")
        server.cluster.preempt("ft", "preempted")
        await server.wait("pods", "ft", "preempted", gone)
        oom = await server.wait("pods", "ft", "oom", lambda pod: pod["status"]["phase"] == "Failed")
        evicted = await server.wait("pods", "ft", "evicted", lambda pod: pod["status"]["phase"] == "Failed")
        assert oom["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
        assert (evicted["status"]["reason"], condition(evicted, "DisruptionTarget")["reason"]) == (
            "Evicted",
            "TerminationByKubelet",
        )
        seen = [stored.object for _, stored in watch.take() if stored.meta["name"] == "preempted"]
        assert condition(seen[0], "DisruptionTarget")["reason"] == "PreemptionByScheduler"
        server.store.unwatch(server.resource("pods"), watch)

    run(body)


def test_unknown_image_waits_until_it_is_there() -> None:
    async def body(server: ApiServer) -> None:
        server.cluster.miss_image("trainer")
        make(server, "a")

        def reason(pod: Any) -> Any:
            statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
            return statuses[0]["state"].get("waiting", {}).get("reason")

        await server.wait("pods", "ft", "a", lambda pod: reason(pod) == "ImagePullBackOff")
        server.cluster.have_image("trainer")
        await server.wait("pods", "ft", "a", running)

    run(body)


def test_crash_loop_backs_off() -> None:
    async def body(server: ApiServer) -> None:
        make(server, "a", restartPolicy="OnFailure")
        await server.wait("pods", "ft", "a", running)
        server.cluster.end_container("ft", "a", 1)
        await server.wait("pods", "ft", "a", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
                          and "running" in pod["status"]["containerStatuses"][0]["state"])  # fmt: skip
        server.cluster.end_container("ft", "a", 1)
        pod = await server.wait(
            "pods", "ft", "a", lambda pod: "waiting" in pod["status"]["containerStatuses"][0]["state"]
        )
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        assert (pod["status"]["phase"], condition(pod, "Ready")["status"]) == ("Running", "False")

    run(body)


def test_disruption_budget_refuses_an_eviction() -> None:
    async def body(server: ApiServer) -> None:
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}}
        server.objects.create(server.resource("poddisruptionbudgets.policy"), "ft", budget)
        for name in ("a", "b"):
            make(server, name, labels={"app": "x"})
            await server.wait("pods", "ft", name, running)
        from apiserver.request import Target

        target = Target(server.resource("pods"), "v1", "create", "ft", "a", "eviction")
        with pytest.raises(ApiError) as refused:
            server.handlers.answer(target, {}, "application/json", b"{}", "")
        assert (refused.value.code, refused.value.details["causes"][0]["reason"]) == (429, "DisruptionBudget")
        server.cluster.end_container("ft", "b", 1)
        await server.wait("pods", "ft", "b", lambda pod: pod["status"]["phase"] == "Failed")
        server.objects.delete(server.resource("poddisruptionbudgets.policy"), "ft", "b")
        assert server.handlers.answer(target, {}, "application/json", b"{}", "").code == 201
        await server.wait("pods", "ft", "a", gone)

    run(body)
