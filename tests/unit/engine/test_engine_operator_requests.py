"""What an operator may ask for: judged from the folded state, before anything is recorded."""

import pytest

from ftcore.engine.dispatch import NAMES_MAX
from ftcore.engine.operator_requests import ABOUT_NODES, REQUESTS, immediate_effect, judge
from ftcore.events.job import JobSpec
from ftcore.events.node import NodeLeft
from ftcore.testing.driver import JobDriver


def running(*, nodes: int = 2, abilities: tuple[str, ...] = ()) -> JobDriver:
    driver = JobDriver(nodes=nodes, abilities=abilities)
    driver.start()
    driver.make_steps(5)
    return driver


@pytest.mark.parametrize("command", ["pause", "checkpoint", "stop"])
def test_a_running_job_takes_what_is_about_no_node(command):
    """Whether a policy can carry it out is decided by the chain."""
    assert judge(running().state, command) is None


@pytest.mark.parametrize("command", ["drain", "evict"])
def test_nodes_are_known_by_name(command):
    """For an unknown node, the message lists the nodes of the job."""
    driver = running()
    assert judge(driver.state, command, "node1") is None
    near, far = judge(driver.state, command, "node9"), judge(driver.state, command, "x")
    assert near.unknown and not near.fulfilled and near.reason == "no node 'node9'; expected one of: node0, node1"
    assert far.reason == "no node 'x'; expected one of: node0, node1"


def test_of_many_nodes_the_most_similar_and_the_first_are_listed():
    """Similar names come first; the list is bounded."""
    driver = JobDriver(nodes=NAMES_MAX + 3)
    driver.start()
    told = judge(driver.state, "evict", "nod11")
    assert "did you mean node11 or " in told.reason and "expected one of: node0, node1, " in told.reason
    assert told.reason.endswith(" and 3 more")


def test_a_lost_node_needs_no_drain():
    """To drain a node that no longer takes part is not an error."""
    driver = running()
    driver.lose("node1")
    answer = judge(driver.state, "drain", "node1")
    assert answer.fulfilled and "lost" in answer.reason


@pytest.mark.parametrize(("command", "node"), [("drain", ""), ("pause", "node1"), ("dance", "")])
def test_an_invalid_request(command, node):
    """A missing node, a node too many, an unknown word: refused, with what was expected."""
    answer = judge(running().state, command, node)
    assert answer is not None and not answer.fulfilled


@pytest.mark.parametrize("command", REQUESTS)
def test_a_request_to_an_ended_job(command):
    """Nothing can be asked of a run that is over."""
    driver = running()
    driver.stop()
    driver.settle()
    answer = judge(driver.state, command, "node0" if command in ABOUT_NODES else "")
    assert "has already stopped" in answer.reason


def test_a_job_that_is_being_stopped_accepts_no_other_request():
    """Who asked for the end is named; the end may be asked for again."""
    driver = running()
    driver.stop(who="ann@host")
    assert "ann@host" in judge(driver.state, "pause").reason
    assert judge(driver.state, "stop") is None


def test_resume_needs_something_to_resume():
    """A running job cannot be resumed, and a paused one is not paused again."""
    driver = running(abilities=("pause",))
    assert judge(driver.state, "resume").fulfilled
    driver.command("pause")
    driver.settle()
    assert driver.state.phase == "paused"
    assert judge(driver.state, "resume") is None
    assert judge(driver.state, "pause").fulfilled


def test_what_a_pause_means_depends_on_the_phase():
    """During a recovery it holds the next one until resume; during training it waits for the chain."""
    driver = running()
    assert immediate_effect("pause", (False, ""), driver.state) == "recorded"
    driver.fail("node0")
    driver.command("pause")
    assert immediate_effect("pause", (False, ""), driver.state) == "held"
    assert judge(driver.state, "pause").fulfilled
    driver.command("resume")
    assert immediate_effect("resume", (True, ""), driver.state) == "let go"


def test_only_a_quarantined_node_can_be_admitted():
    """For other nodes the answer has their phase, or the quarantined nodes."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.start()
    driver.command("evict", "node1")
    driver.settle()
    assert judge(driver.state, "admit", "node1") is None
    assert judge(driver.state, "admit", "node0").fulfilled
    answer = judge(driver.state, "admit", "x")
    assert answer.unknown and "quarantined: node1" in answer.reason
    driver.command("admit", "node1")
    assert (
        immediate_effect("admit", (False, ""), driver.state) == "admitted" and not driver.state.membership.quarantined
    )
    driver.join("node1")
    driver.settle()
    assert judge(driver.state, "admit", "node1").fulfilled


def test_a_drained_node_can_be_admitted():
    """It is not quarantined, but a launcher starts it again, and `grow` does not wait to add it."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.start()
    driver.command("drain", "node1")
    driver.settle()
    node = driver.state.membership.nodes["node1"]
    driver.say("node1", NodeLeft(node="node1", incarnation=node.incarnation, reason="released"))
    assert judge(driver.state, "admit", "node1") is None
    driver.command("admit", "node1")
    assert driver.state.membership.admitted == ["node1"]
