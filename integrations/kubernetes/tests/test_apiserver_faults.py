"""Faults of the API that can be injected, and the counter of calls."""

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServerThread, Client

MAPS = "/api/v1/namespaces/ft/configmaps"


@pytest.fixture
def server() -> Iterator[ApiServerThread]:
    with ApiServerThread(mode="none", namespaces=["ft"]) as running:
        yield running


@pytest.fixture
def api(server: ApiServerThread) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def config(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def test_error_for_some_requests(server: ApiServerThread, api: Client) -> None:
    server.call(
        server.server.faults.add, verbs=["create"], resources=["configmaps"], code=429, retry_after_s=7, times=2
    )
    for _ in range(2):
        refused = api.post(MAPS, config("a"))
        assert (refused.code, refused.headers["Retry-After"], refused.body["reason"]) == (429, "7", "TooManyRequests")
        assert refused.body["details"]["retryAfterSeconds"] == 7
    assert api.get(MAPS).code == 200
    assert api.post(MAPS, config("a")).code == 201


def test_answer_is_lost_after_the_write(server: ApiServerThread, api: Client) -> None:
    server.call(server.server.faults.add, verbs=["create"], drop=True, after=True)
    with pytest.raises((http.client.HTTPException, OSError)):
        api.post(MAPS, config("a"))
    assert api.post(MAPS, config("a")).body["reason"] == "AlreadyExists"
    server.call(server.server.faults.add, verbs=["delete"], code=500)
    assert api.delete(f"{MAPS}/a").code == 500
    assert api.get(f"{MAPS}/a").code == 200


def test_old_list_until_it_is_removed(server: ApiServerThread, api: Client) -> None:
    api.post(MAPS, config("a"))
    fault = server.call(server.server.stale, "configmaps")
    api.post(MAPS, config("b"))
    assert [each["metadata"]["name"] for each in api.get(MAPS).body["items"]] == ["a"]
    assert server.call(server.server.faults.remove, fault) == 1
    assert len(api.get(MAPS).body["items"]) == 2


@pytest.mark.parametrize("abort", [True, False])
def test_cut_watch(server: ApiServerThread, api: Client, abort: bool) -> None:
    first, ends = threading.Event(), []

    def listen() -> None:
        try:
            for _ in api.watch(MAPS):
                first.set()
            ends.append("end")
        except (OSError, http.client.HTTPException):
            ends.append("reset")

    thread = threading.Thread(target=listen)
    thread.start()
    api.post(MAPS, config("a"))
    assert first.wait(60)
    assert server.call(server.server.web.cut_watches, "configmaps", abort) == 1
    thread.join(60)
    assert ends == ["reset" if abort else "end"]


def test_history_is_gone_after_a_compaction(server: ApiServerThread, api: Client) -> None:
    revision = api.get(MAPS).body["metadata"]["resourceVersion"]
    page = {}
    for name in ("a", "b"):
        api.post(MAPS, config(name))
    page = api.get(MAPS, limit=1).body["metadata"]
    api.post(MAPS, config("c"))
    server.call(server.server.store.compact)
    [event] = api.watch(MAPS, resourceVersion=revision)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert api.get(MAPS, **{"limit": 1, "continue": page["continue"]}).body["reason"] == "Expired"
    assert api.get(MAPS, resourceVersion=revision, resourceVersionMatch="Exact").code == 410


def test_short_history_of_one_resource() -> None:
    with ApiServerThread(mode="none", namespaces=["ft"], history=2) as running, Client(running.url) as api:
        revision = api.get(MAPS).body["metadata"]["resourceVersion"]
        for name in ("a", "b", "c"):
            api.post(MAPS, config(name))
        [event] = api.watch(MAPS, resourceVersion=revision, timeoutSeconds=1)
        assert event["object"]["reason"] == "Expired"


def test_server_is_away_and_comes_back(server: ApiServerThread, api: Client) -> None:
    api.post(MAPS, config("a"))
    server.call(server.server.web.refuse)
    for _ in range(2):  # the open connection is cut, and no other is accepted
        with pytest.raises((http.client.HTTPException, OSError)):
            api.get(MAPS)
    server.call(server.server.web.accept)
    assert api.get(f"{MAPS}/a").code == 200


def test_calls_are_counted(server: ApiServerThread, api: Client) -> None:
    api.post(MAPS, config("a"))
    api.get(MAPS)
    api.get(f"{MAPS}/a")
    api.get(f"{MAPS}/a")
    assert dict(server.server.calls) == {
        ("create", "configmaps"): 1, ("list", "configmaps"): 1, ("get", "configmaps"): 2,
    }  # fmt: skip


def test_control_by_http(api: Client) -> None:
    assert api.post("/control/add-fault", {"verbs": ["list"], "code": 503}).body == 1
    assert api.get(MAPS).code == 503
    assert api.post("/control/faults", None).body[0]["hits"] == 1
    assert api.post("/control/clear-faults", None).code == 200
    assert api.post("/control/nonsense", None).code == 404
    assert api.post("/control/add-fault", {"color": "red"}).code == 400
    assert api.post("/control/calls", None).body == {"list configmaps": 1}


def test_slow_answer(server: ApiServerThread, api: Client) -> None:
    server.call(server.server.faults.add, verbs=["get"], delay_s=3600.0)
    with Client(server.url, timeout_s=0.2) as hasty, pytest.raises(TimeoutError):
        hasty.get(f"{MAPS}/a")
    assert api.get(f"{MAPS}/a").code == 404


def test_watch_ends_with_its_client(server: ApiServerThread, api: Client) -> None:
    events = api.watch(MAPS)
    api.post(MAPS, config("a"))
    assert next(events)["type"] == "ADDED"
    events.close()  # type: ignore[attr-defined]
    while server.call(lambda: server.server.web.watches):
        time.sleep(0.005)
