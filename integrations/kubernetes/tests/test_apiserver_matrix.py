"""The answers of a real API server (1.36.2), check by check, held against the server of this folder."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apiserver import ApiServerThread, Client

PODS = "/api/v1/namespaces/ft/pods"
JOBS = "/apis/ft.example.org/v1/namespaces/ft/ftjobs"
JSON_PATCH = "application/json-patch+json"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "ftjobs.ft.example.org"},
    "spec": {
        "group": "ft.example.org",
        "scope": "Namespaced",
        "names": {"plural": "ftjobs", "kind": "FtJob", "shortNames": ["ftj"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"a": {"type": "integer"}}},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


def pod(name: str, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "ft"}, **meta},
        "spec": {"terminationGracePeriodSeconds": 3, "containers": [{"name": "c", "image": "x"}]},
    }


def reason(reply: Any) -> tuple[int, str]:
    assert reply.body["kind"] == "Status" and reply.body["status"] == "Failure" and reply.body["code"] == reply.code
    return reply.code, reply.body["reason"]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServerThread]:
    with ApiServerThread(mode="none", namespaces=["ft"]) as running:
        with Client(running.url) as client:
            assert client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION).code == 201
        yield running


@pytest.fixture
def api(server: ApiServerThread) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        client.delete(PODS, gracePeriodSeconds=0)


def create(api: Client) -> Any:
    reply = api.post(PODS, pod("m1"))
    meta = reply.body["metadata"]
    return reply.code, bool(meta["uid"]), bool(meta["resourceVersion"]), reply.body["status"]["phase"]


def create_again(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    return reason(api.post(PODS, pod("m1")))


def create_invalid(api: Client) -> Any:
    return reason(api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m9"}, "spec": {}}))


def create_generated(api: Client) -> Any:
    made = api.post(PODS, {**pod("x"), "metadata": {"generateName": "gen-"}})
    return bool(re.fullmatch(r"gen-[a-z0-9]{5}", made.body["metadata"]["name"]))


def get_missing(api: Client) -> Any:
    return reason(api.get(f"{PODS}/nope"))


def put_stale(api: Client) -> Any:
    old = api.post(PODS, pod("m1")).body
    first = api.put(f"{PODS}/m1", {**old, "metadata": {**old["metadata"], "labels": {"a": "1"}}})
    second = api.put(f"{PODS}/m1", {**old, "metadata": {**old["metadata"], "labels": {"a": "2"}}})
    return first.code, reason(second)


def patch_stale(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    return reason(api.patch(f"{PODS}/m1", {"metadata": {"resourceVersion": "1", "labels": {"b": "1"}}}))


def patch_merge(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    return api.patch(f"{PODS}/m1", {"metadata": {"labels": {"b": "2"}}}).body["metadata"]["labels"]


def patch_json_test(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    return reason(api.patch(f"{PODS}/m1", [{"op": "test", "path": "/metadata/labels/app", "value": "zzz"}], JSON_PATCH))


def patch_strategic(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    kind = "application/strategic-merge-patch+json"
    reply = api.patch(f"{PODS}/m1", {"metadata": {"labels": {"c": "3"}}}, kind)
    return reply.code, reply.body["metadata"]["labels"]


def apply(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m1", "labels": {"d": "4"}}}
    return api.patch(f"{PODS}/m1", body, "application/apply-patch+yaml", fieldManager="t").code


def status_is_separate(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    status = api.patch(f"{PODS}/m1/status", {"metadata": {"labels": {"more": "1"}}, "status": {"phase": "Running"}})
    after = api.get(f"{PODS}/m1").body
    main = api.patch(f"{PODS}/m1", {"status": {"phase": "Failed"}})
    phase = api.get(f"{PODS}/m1").body["status"]["phase"]
    return status.code, after["status"]["phase"], "more" in after["metadata"]["labels"], main.code, phase


def spec_is_immutable(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    change = [{"op": "replace", "path": "/spec/containers/0/name", "value": "q"}]
    return reason(api.patch(f"{PODS}/m1", change, JSON_PATCH))


def selectors(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    api.post(PODS, {**pod("g1"), "metadata": {"name": "g1", "labels": {"app": "gen"}}})
    api.patch(f"{PODS}/m1/status", {"status": {"phase": "Running"}})

    def names(**query: str) -> list[str]:
        return [each["metadata"]["name"] for each in api.get(PODS, **query).body["items"]]

    return (
        names(labelSelector="app=gen"),
        names(labelSelector="app notin (gen)"),
        names(labelSelector="app,app!=ft"),
        names(labelSelector="app in (gen, ft),!zone"),
        names(fieldSelector="status.phase=Running"),
        names(fieldSelector="metadata.name!=m1"),
    )


def pages(api: Client) -> Any:
    for name in ("p1", "p2", "p3"):
        api.post(PODS, pod(name))
    first = api.get(PODS, limit=2).body
    api.post(PODS, pod("p4"))
    api.delete(f"{PODS}/p3", gracePeriodSeconds=0)
    second = api.get(PODS, **{"limit": 2, "continue": first["metadata"]["continue"]}).body
    names = [each["metadata"]["name"] for each in first["items"] + second["items"]]
    same = first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    return names, first["metadata"]["remainingItemCount"], "continue" in second["metadata"], same


def watch_later_events(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    revision, events = api.get(PODS).body["metadata"]["resourceVersion"], []
    ready = threading.Event()

    def listen() -> None:
        query = {"resourceVersion": revision, "allowWatchBookmarks": "true", "timeoutSeconds": "4"}
        for event in api.watch(PODS, **query):
            events.append((event["type"], event["object"]["metadata"].get("name")))
            ready.set()

    thread = threading.Thread(target=listen)
    thread.start()
    api.post(PODS, pod("m2"))
    assert ready.wait(30)
    api.patch(f"{PODS}/m2", {"metadata": {"labels": {"z": "1"}}})
    api.delete(f"{PODS}/m2", gracePeriodSeconds=0)
    thread.join(60)
    return [event for event in events if event[0] != "BOOKMARK"], ("BOOKMARK", None) in events


def watch_history(api: Client) -> Any:
    revision = api.get(PODS).body["metadata"]["resourceVersion"]
    api.post(PODS, pod("m1"))
    api.delete(f"{PODS}/m1")
    events = api.watch(PODS, resourceVersion=revision, timeoutSeconds=1)
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def watch_too_old(api: Client) -> Any:
    return [
        (event["type"], event["object"]["code"], event["object"]["reason"])
        for event in api.watch(PODS, resourceVersion=1, timeoutSeconds=1)
    ]


def watch_selected(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    api.post(PODS, pod("g1", labels={"app": "gen"}))
    events = api.watch(PODS, timeoutSeconds=1, labelSelector="app=gen")
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def watch_list(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    events = list(api.watch(PODS, timeoutSeconds=1, **query))
    return [event["type"] for event in events], events[-1]["object"]["metadata"]["annotations"]


def delete_on_node(api: Client) -> Any:
    api.post(PODS, {**pod("m1"), "spec": {**pod("m1")["spec"], "nodeName": "n"}})
    revision = api.get(PODS).body["metadata"]["resourceVersion"]
    first = api.delete(f"{PODS}/m1")
    held = api.get(f"{PODS}/m1")
    api.delete(f"{PODS}/m1", gracePeriodSeconds=0)
    gone = api.get(f"{PODS}/m1")
    kinds = [event["type"] for event in api.watch(PODS, resourceVersion=revision, timeoutSeconds=1)]
    meta = held.body["metadata"]
    return first.code, "deletionTimestamp" in meta, meta["deletionGracePeriodSeconds"], gone.code, kinds


def delete_unscheduled(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    return api.delete(f"{PODS}/m1").code, api.get(f"{PODS}/m1").code


def finalizer(api: Client) -> Any:
    api.post(PODS, pod("fin", finalizers=["ft.example.org/x"]))
    api.delete(f"{PODS}/fin")
    held = api.get(f"{PODS}/fin")
    again = api.post(PODS, pod("fin"))
    api.patch(f"{PODS}/fin", {"metadata": {"finalizers": None}})
    return held.code, "deletionTimestamp" in held.body["metadata"], again.code, api.get(f"{PODS}/fin").code


def delete_other_uid(api: Client) -> Any:
    api.post(PODS, pod("m3"))
    limits = {"uid": "00000000-0000-0000-0000-000000000000"}
    return reason(api.delete(f"{PODS}/m3", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": limits}))


def evict(api: Client) -> Any:
    api.post(PODS, pod("m3"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "m3", "namespace": "ft"}}
    return api.post(f"{PODS}/m3/eviction", body).code, api.get(f"{PODS}/m3").code


def delete_collection(api: Client) -> Any:
    api.post(PODS, pod("m1"))
    api.post(PODS, pod("g1", labels={"app": "gen"}))
    reply = api.delete(PODS, labelSelector="app=gen")
    return reply.code, [each["metadata"]["name"] for each in api.get(PODS).body["items"]]


def custom(api: Client) -> Any:
    body = {"apiVersion": "ft.example.org/v1", "kind": "FtJob", "metadata": {"name": "x1"}, "spec": {"a": 1}}
    made = api.post(JOBS, {**body, "status": {"phase": "dropped"}})
    status = api.patch(f"{JOBS}/x1/status", {"status": {"phase": "R"}})
    found = api.get(f"{JOBS}/x1").body
    changed = api.patch(f"{JOBS}/x1", {"spec": {"a": 2}}).body["metadata"]["generation"]
    wrong = reason(api.patch(f"{JOBS}/x1", {"spec": {"a": "two"}}))
    api.delete(f"{JOBS}/x1")
    first = (made.code, "status" in made.body, status.code, found["status"], found["metadata"]["generation"])
    return *first, changed, wrong


def discovery(api: Client) -> Any:
    names = {each["name"] for each in api.get("/apis/ft.example.org/v1").body["resources"]}
    return api.get("/apis").body["kind"], api.get("/version").body["gitVersion"], names


CHECKS: list[tuple[Callable[[Client], Any], Any]] = [
    (create, (201, True, True, "Pending")),
    (create_again, (409, "AlreadyExists")),
    (create_invalid, (422, "Invalid")),
    (create_generated, True),
    (get_missing, (404, "NotFound")),
    (put_stale, (200, (409, "Conflict"))),
    (patch_stale, (409, "Conflict")),
    (patch_merge, {"app": "ft", "b": "2"}),
    (patch_json_test, (422, "Invalid")),
    (patch_strategic, (200, {"app": "ft", "c": "3"})),
    (apply, 200),
    (status_is_separate, (200, "Running", True, 200, "Running")),
    (spec_is_immutable, (422, "Invalid")),
    (selectors, (["g1"], ["m1"], ["g1"], ["g1", "m1"], ["m1"], ["g1"])),
    (pages, (["p1", "p2", "p3"], 1, False, True)),
    (watch_later_events, ([("ADDED", "m2"), ("MODIFIED", "m2"), ("DELETED", "m2")], True)),
    (watch_history, [("ADDED", "m1"), ("DELETED", "m1")]),
    (watch_too_old, [("ERROR", 410, "Expired")]),
    (watch_selected, [("ADDED", "g1")]),
    (watch_list, (["ADDED", "BOOKMARK"], {"k8s.io/initial-events-end": "true"})),
    (delete_on_node, (200, True, 3, 404, ["MODIFIED", "DELETED"])),
    (delete_unscheduled, (200, 404)),
    (finalizer, (200, True, 409, 404)),
    (delete_other_uid, (409, "Conflict")),
    (evict, (201, 404)),
    (delete_collection, (200, ["m1"])),
    (custom, (201, False, 200, {"phase": "R"}, 1, 2, (422, "Invalid"))),
    (discovery, ("APIGroupList", "v1.36.2", {"ftjobs", "ftjobs/status"})),
]


@pytest.mark.parametrize(("check", "expected"), CHECKS, ids=[check.__name__ for check, _ in CHECKS])
def test_answers_as_a_real_server(api: Client, check: Callable[[Client], Any], expected: Any) -> None:
    assert check(api) == expected
