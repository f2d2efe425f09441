"""What led to what, and whether it will come back."""

import attrs

from ftcore.events.envelope import Event
from ftcore.replay import Explainer, Incident, read
from ftcore.replay.causality import ALIKE_MAX, CausalTree, CauseNode
from ftcore.replay.outlook import outlook
from ftcore.sim.whatif.presets import PresetPrices
from ftcore.testing.driver import JobDriver

PEER_GONE = "RuntimeError: Connection closed by peer [127.0.0.1]:52710"


def started(nodes: int = 2) -> JobDriver:
    driver = JobDriver(nodes=nodes)
    driver.start()
    driver.make_steps(4)
    return driver


def tree(driver: JobDriver, incident: str | None = None) -> list[CauseNode]:
    made = CausalTree(incident)
    read(driver.events, made)
    return made.nodes()


def parents(nodes: list[CauseNode]) -> dict[str, str | None]:
    """The type of the cause of the last event of each type."""
    types = {node.event.seq: node.event.type for node in nodes}
    return {node.event.type: types.get(node.parent or 0) for node in nodes}


def test_a_restart_is_one_chain_of_causes() -> None:
    """From the fault to the step that resolved it, through orders, answers and the new world."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    nodes = tree(driver)
    found = parents(nodes)
    assert found["worker.failed"] is None
    assert found["incident.opened"] == found["policy.considered"] == "worker.failed"
    assert found["workers.stopped"] == "action.ordered"
    assert found["round.planned"] == "workers.stopped"
    assert found["workers.started"] == found["workers.stepped"] == "world.formed"
    assert found["incident.resolved"] == "workers.stepped"
    known: set[int] = set()
    for node in nodes:
        assert node.parent is None or node.parent in known
        known.add(node.event.seq)


def test_a_consequence_follows_from_its_root() -> None:
    """Also if it was seen first."""
    driver = started()
    driver.fail("node0", message=PEER_GONE)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    nodes = {node.event.seq: node for node in tree(driver)}
    root = next(node for node in nodes.values() if node.event.type == "worker.failed" and node.event.source == "node1")
    assert root.parent is None


def test_many_alike_are_counted() -> None:
    """A world of many nodes makes no long tree."""
    driver = started(nodes=40)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    nodes = tree(driver)
    stepped = [node for node in nodes if node.event.type == "workers.stepped"]
    kept = ALIKE_MAX + 1  # and the last one, which resolved the incident
    assert len(stepped) == kept and sum(node.alike for node in stepped) == 40 - kept
    assert nodes[-1].event.type == "incident.resolved" and nodes[-1].parent is not None


def test_the_named_incident_or_the_newest() -> None:
    driver = started()
    for _ in range(2):
        driver.fail("node1", exitcode=-9)
        driver.settle()
    assert {node.event.incident for node in tree(driver)} - {None} == {"i2"}
    assert {node.event.incident for node in tree(driver, "i1")} - {None} == {"i1"}
    assert tree(driver, "i9") == []


def incidents(events: list[Event]) -> tuple[list[Incident], Explainer]:
    explainer = Explainer()
    read(events, explainer)
    return explainer.incidents(), explainer


def test_the_outlook_counts_faults_and_what_is_left_of_the_budget() -> None:
    driver = started()
    for _ in range(3):
        driver.fail("node1", exitcode=-9)
        driver.settle()
    found, explainer = incidents(driver.events)
    expected = outlook(found[-1], found, explainer.state, driver.now)
    assert expected is not None and expected.budget is not None
    assert (expected.of_class, expected.of_class_day, expected.at_node) == (3, 3, 3)
    assert (expected.budget.policy, expected.budget.used, expected.budget.limit) == ("process_restart", 3, 20)
    assert not expected.repeats and expected.advice
    request = attrs.evolve(found[-1], kind="request", cls="request")
    assert outlook(request, found, explainer.state, driver.now) is None


def test_presets_are_priced_for_the_named_incident() -> None:
    """All of them restart a killed worker; the recorded chain is priced as recorded."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    prices = PresetPrices()
    read(driver.events, prices)
    found = {each.preset: each for each in prices.of("i1")}
    assert found["default"].as_recorded and found["default"].policies_taken == ("process_restart",)
    assert {"mindio", "falcon", "torchrun-like"} <= set(found)
    assert prices.of("i2") == []
