"""Names of pods are used once: whatever happens to a pod's object, to the watch or to the master."""

import asyncio
import json

import pytest
from ftcore_kubernetes import places
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.informer import DELETED, CacheChange, Informer
from ftcore_kubernetes.manifests import QUARANTINED
from ftcore_kubernetes.places import successor
from ftcore_kubernetes.pods import PodIdentity
from ftcore_kubernetes.records import PLACES
from kubernetes_site import NAME, SPACE, JobSite, led, run, started, until

from ftcore import LaunchRequest, NodeEnded, Occupant, PlatformEvent
from ftcore.errors import Refused

PODS = f"/api/v1/namespaces/{SPACE}/pods"


def has_ended(events: list[PlatformEvent], node: str) -> bool:
    return any(isinstance(each, NodeEnded) and each.node == node for each in events)


def recorded(site: JobSite) -> dict[str, list[object]]:
    """The records at the config map, of pods that have a machine."""
    found = json.loads(site.annotations().get(PLACES, "{}"))
    return {place: row for place, row in found.items() if row[3]}


def test_a_pod_removed_while_the_api_server_is_away_is_reported_and_its_name_not_used_again() -> None:
    """The list with which the next watch begins lacks it."""

    async def scenario() -> None:
        async with started(2) as site, led(site) as events:
            await until(lambda: site.runs(0, 1), "two pods")
            await site.server.web.refuse()
            site.remove_pod("llm-w0")
            await site.server.web.accept()
            await until(lambda: has_ended(events, "llm-w0"), "its end")
            await until(lambda: site.runs(0, 1), "its replacement")
            new = PodIdentity(effect=successor(0, "llm-w0"), place=0).name(NAME)
            assert sorted(site.names()) == sorted([new, "llm-w1"])

    run(scenario)


def test_a_removal_found_by_another_request_is_reported() -> None:
    """``capacity`` lists the pods, too, before the watch begins again. The config map cannot be written meanwhile."""

    async def scenario() -> None:
        async with started(1) as site:
            fault = site.server.faults.add(verbs=["patch"], resources=["configmaps"], code=403, times=None)
            async with led(site):
                await until(lambda: site.runs(0), "a pod")
                await until(lambda: site.server.faults.all()[0]["hits"], "a write of the config map")
            platform = site.open()
            assert await platform.capacity() is None
            site.remove_pod("llm-w0")
            assert await platform.capacity() is None
            watch = platform.watch()
            async with asyncio.timeout(30):
                async for event in watch:
                    if isinstance(event, NodeEnded):
                        break
            assert event == NodeEnded(node="llm-w0", reason="its pod was removed")
            await watch.aclose()  # type: ignore[attr-defined]
            assert "llm-w0" not in site.names() and PLACES not in site.annotations()
            assert site.server.faults.remove(fault)

    run(scenario)


def test_a_pod_removed_while_there_is_no_master() -> None:
    """The config map knows the places' last pods, and their machines: for the next name, the report, the exclusion."""

    async def scenario() -> None:
        async with started(2) as site:
            async with led(site):
                await until(lambda: len(recorded(site)) == 2, "the records")
            machine = recorded(site)["0"][3]
            site.remove_pod("llm-w0")
            async with led(site) as events:
                await until(lambda: has_ended(events, "llm-w0"), "its end")
                await site.opened[-1].cordon(Occupant(node="llm-w0", ordinal=0), "its links flap")
                await until(lambda: site.runs(0, 1), "its replacement")
                assert "llm-w0" not in site.names()
            assert site.annotations()[QUARANTINED] == machine

    run(scenario)


def test_a_place_that_had_a_later_pod_is_not_filled_with_an_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that comes late: the pod that it would create has come and gone."""
    monkeypatch.setattr(places, "BACKOFF_S", (0.0,))

    async def scenario() -> None:
        async with started(1) as site:
            async with led(site):
                await until(lambda: site.runs(0), "a pod")
                site.server.cluster.evict(SPACE, "llm-w0")
                await until(lambda: site.runs(0) and "llm-w0" not in site.names(), "its replacement")
                await until(lambda: "w0-" in str(recorded(site)), "the record")
            (second,) = site.names()
            site.remove_pod(second)
            await site.open().launch(LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w0", ordinal=0)))
            assert not site.names()
            async with led(site):
                await until(lambda: site.runs(0), "the next pod")
            assert {"llm-w0", second}.isdisjoint(site.names())

    run(scenario)


def test_one_master_fills_and_another_launches() -> None:
    """Both at once, in two processes: the same name, so the server lets one of them create it."""

    async def scenario() -> None:
        async with started(2) as site, led(site):
            await until(lambda: site.runs(0, 1), "two pods")
            other = site.open()
            await other.capacity()  # it knows the pods as they were
            site.server.faults.add(verbs=["create"], resources=["pods"], delay_s=0.3, times=None)
            site.server.cluster.end_container(SPACE, "llm-w1", 137)
            order = LaunchRequest(effect="e/1", replaces=Occupant(node="llm-w1", ordinal=1))
            await other.launch(order)
            await until(lambda: site.server.calls["create", "pods"] >= 4, "both creations")
            await until(lambda: site.runs(0, 1), "the replacement")
            assert len(site.pods) == 3 and [len(names) for names in site.live().values()] == [1, 1]
            assert any(pod["metadata"]["ownerReferences"][0].get("controller") for pod in site.pods)

    run(scenario)


def test_a_pod_of_an_earlier_job_is_no_pod_of_this_one() -> None:
    """The garbage collector is late: the old pod keeps its name until it is gone, and takes no place."""

    async def scenario() -> None:
        async with started(1) as site:
            async with led(site):
                await until(lambda: site.runs(0), "a pod")
            old = site.pods[0]["metadata"]["uid"]
            site.server.controllers.pause()
            await site.api.delete(f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}")
            path = f"/api/v1/namespaces/{SPACE}/configmaps"
            await site.api.create(path, {"metadata": {"name": NAME}, "data": site.data})
            with pytest.raises(Refused, match="of an earlier job of this name is still being deleted"):
                await site.open().pool.create(PodIdentity(effect="start/0", place=0))
            site.server.controllers.resume()
            async with led(site):
                await until(lambda: site.runs(0) and site.pods[0]["metadata"]["uid"] != old, "its own pod")

    run(scenario)


def test_the_machine_of_a_node_is_excluded_or_the_failure_is_visible(caplog: pytest.LogCaptureFixture) -> None:
    """A node that never was is a warning; a refusal of the API server is one of the order."""

    async def scenario() -> None:
        async with started(1) as site:
            platform = site.open()
            await platform.cordon(Occupant(node="llm-w7"), "it is broken")
            assert "node llm-w7: no machine is excluded" in caplog.text and "it is broken" in caplog.text
            fault = site.server.faults.add(verbs=["get"], resources=["pods"], code=403)
            with pytest.raises(Refused):
                await platform.cordon(Occupant(node="llm-w7"), "it is broken")
            assert site.server.faults.remove(fault) == 1

    run(scenario)


# -- the cache


async def made(api: Api, name: str) -> dict[str, object]:
    container = {"name": "any", "image": "any:1"}
    labels = {"any": "thing"}
    return await api.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}})


def test_a_list_does_not_drop_what_was_added_meanwhile() -> None:
    """The list was made before the pod was created, and arrives after."""

    async def scenario() -> None:
        async with started(1) as site:
            cache = Informer(site.api, PODS)
            await made(site.api, "first")
            fault = site.server.faults.add(verbs=["list"], resources=["pods"], delay_s=0.5, after=True)
            listing = asyncio.create_task(cache.relist())
            await until(lambda: site.server.faults.all()[0]["hits"], "the list")
            cache.add(await made(site.api, "second"))
            changes = await listing
            assert [each.obj["metadata"]["name"] for each in changes] == ["first"]
            assert sorted(cache.objects) == ["first", "second"] and site.server.faults.remove(fault) == 1

    run(scenario)


def test_a_late_answer_does_not_bring_a_deleted_pod_back() -> None:
    """The watch reports creation and deletion before the creation's own answer arrives."""

    async def scenario() -> None:
        async with started(1) as site:
            cache, seen = Informer(site.api, PODS), list[CacheChange]()

            async def follow() -> None:
                async for change in cache.changes():
                    seen.append(change)

            task = asyncio.create_task(follow())
            await until(lambda: cache.is_synced and site.server.web.watches["pods"], "the watch")
            late = await made(site.api, "short")
            site.remove_pod("short")
            await until(lambda: seen and seen[-1].kind == DELETED, "its deletion")
            cache.add(late)
            assert "short" not in cache.objects
            await cache.relist()
            assert not cache.objects
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario)
