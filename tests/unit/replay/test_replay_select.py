"""Which events are shown, and the status in brief."""

import msgspec
import pytest

from ftcore.engine import health
from ftcore.policies.file.config import parse
from ftcore.replay.bounds import Bound
from ftcore.replay.select import Selection, Selector
from ftcore.replay.status import status_of
from ftcore.states.model import JobState
from ftcore.testing.driver import EPOCH_NS, JobDriver


def driven() -> JobDriver:
    driver = JobDriver(nodes=2, tick_s=1.0)
    driver.start()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    return driver


def picked(driver: JobDriver, **wanted) -> list:
    selector = Selector(Selection(**wanted))
    return [event for read in driver.events for event in selector.feed(read)]


def test_by_place():
    """Both ends are included; by seq or by time."""
    driver = driven()
    assert [e.seq for e in picked(driver, since=Bound(seq=3), until=Bound(seq=5))] == [3, 4, 5]
    second = EPOCH_NS + 2 * 10**9
    assert {e.time for e in picked(driver, since=Bound(time=second), until=Bound(time=second))} == {second}
    assert Selection(since=Bound(seq=3)).after == 2
    assert Selection(since=Bound(time=second)).after == 0


def test_by_type():
    """Globs, several with commas."""
    types = {event.type for event in picked(driven(), types="worker.*, incident.resolved")}
    assert types == {"worker.failed", "incident.resolved"}


def test_by_node():
    """What comes from a node or names it."""
    found = picked(driven(), node="node1")
    assert all(event.source in ("node1", "master") for event in found)
    assert {"node.joined", "world.members", "incident.opened", "action.ordered"} <= {event.type for event in found}


def test_by_node_orders_to_all_are_seen(monkeypatch: pytest.MonkeyPatch):
    """An order that names its nodes in groups, or all members of the world by naming none, is one to the node."""
    monkeypatch.setattr(health, "NAMED_TWICE_MAX", 3)
    driver = JobDriver(nodes=6, abilities=["check"])
    driver.health = {"node5": "unreachable"}
    driver.submit()
    for number in range(6):
        driver.join(f"node{number}")
    driver.settle()
    ordered = [event.data for event in picked(driver, node="node4") if event.type == "action.ordered"]
    asked = [(msgspec.to_builtins(data.command)["do"], bool(data.nodes)) for data in ordered]
    assert ("check_health", False) in asked
    assert [event.type for event in picked(driver, node="node5")].count("health.judged") == 1
    driver = driven()
    started = {event.seq for event in driver.events if event.type == "action.ordered" and not event.data.nodes}
    assert started
    assert started <= {event.seq for event in picked(driver, node="node1")}
    assert not started & {event.seq for event in picked(driver, node="node7")}


def test_an_incident_brings_the_facts_that_it_answers():
    """Its decisions, each behind its fact, each once."""
    driver = driven()
    found = picked(driver, incident="i1")
    assert found[0].type == "worker.failed"
    assert found[1].type == "incident.opened"
    assert len({event.seq for event in found}) == len(found)
    assert all(event.incident in ("i1", None) for event in found)
    assert found[-1].type == "incident.resolved"


def test_the_status_of_a_running_job():
    """The contract's fields, from the folded state."""
    made = status_of(driven().state).to_json()
    assert {"job", "state", "term", "master", "world", "step", "incidents_open", "last_seq", "replicas"} <= set(made)
    assert made["master"] == {"id": "host:1", "host": "host", "pid": 1, "address": "unix:master"}
    assert made["world"] == {"round": 2, "size": 2, "node_count": 2}
    assert (made["state"], made["incidents_open"], made["incident_count"]) == ("running", 0, 1)
    assert [node["node"] for node in made["nodes"]] == ["node0", "node1"]


def test_the_status_of_an_empty_log():
    """Before anything was submitted there is a name and nothing else."""
    made = status_of(JobState(), "demo")
    assert (made.job, made.master, made.world, made.last_seq, made.step) == ("demo", None, None, 0, None)
    assert (made.state, made.time, made.replicas) == ("unsubmitted", None, None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("all", "all"),
        ("none", "none"),
        ("[[0, 2], [1, 3]]", ((0, 2), (1, 3))),
        ("{data_parallel: 2, optimizer_shard: 1}", ((0, 1),)),
        (None, None),
    ],
)
def test_the_status_has_the_replicas_that_the_file_declares(said: str | None, told: object) -> None:
    """As they were declared; nothing, if the file says nothing."""
    text = f"version: 1\njob: {{replicas: {said}}}\n" if said is not None else "version: 1\n"
    driver = JobDriver(policy=parse(text, "p"))
    driver.start()
    assert status_of(driver.state).replicas == told


def test_the_status_calls_what_the_workers_report_not_unsupported() -> None:
    """A file may declare `pause`; only what an earlier release knew, and this one does not, is unsupported."""
    policy = parse("version: 1\njob: {abilities: [pause, park]}\n", "p")
    assert policy.declared.unsupported == ("pause", "park")
    earlier = msgspec.structs.replace(policy.declared, unsupported=("pause", "snapshot"))
    for declared, unsupported in ((policy.declared, ()), (earlier, ("snapshot",))):
        driver = JobDriver(policy=msgspec.structs.replace(policy, declared=declared))
        driver.start()
        assert status_of(driver.state).unsupported == unsupported
