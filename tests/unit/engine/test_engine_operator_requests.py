"""What an operator may ask for: judged from the folded state, before anything is recorded."""

import pytest

from ftcore.engine.dispatch import NAMES_MAX
from ftcore.engine.operator_requests import ABOUT_NODES, WISHES, came_of, judge
from ftcore.events.job import JobSpec
from ftcore.testing.driver import JobDriver


def running(*, nodes: int = 2, abilities: tuple[str, ...] = ()) -> JobDriver:
    driver = JobDriver(nodes=nodes, abilities=abilities)
    driver.start()
    driver.make_steps(5)
    return driver


@pytest.mark.parametrize("command", ["pause", "checkpoint", "stop"])
def test_a_running_job_takes_what_is_about_no_node(command):
    """Whether somebody can carry it out is for the chain to say."""
    assert judge(running().state, command) is None


@pytest.mark.parametrize("command", ["drain", "evict"])
def test_nodes_are_known_by_name(command):
    """A node that takes part may be named; of another all are told, whichever is the nearest."""
    driver = running()
    assert judge(driver.state, command, "node1") is None
    near, far = judge(driver.state, command, "node9"), judge(driver.state, command, "x")
    assert near.unknown and not near.fulfilled and near.reason == "no node 'node9'; there are: node0, node1"
    assert far.reason == "no node 'x'; there are: node0, node1"


def test_of_many_nodes_the_nearest_are_told_and_the_first():
    """The names that were perhaps meant come first; the list has an end."""
    driver = JobDriver(nodes=NAMES_MAX + 3)
    driver.start()
    told = judge(driver.state, "evict", "nod11")
    assert "did you mean node11 or " in told.reason and "there are: node0, node1, " in told.reason
    assert told.reason.endswith(" and 3 more")


def test_a_node_that_is_gone_is_out_already():
    """To drain what takes no part any more is no mistake."""
    driver = running()
    driver.lose("node1")
    answer = judge(driver.state, "drain", "node1")
    assert answer.fulfilled and "lost" in answer.reason


@pytest.mark.parametrize(("command", "node"), [("drain", ""), ("pause", "node1"), ("dance", "")])
def test_a_wish_that_makes_no_sense(command, node):
    """A missing node, a node too many, an unknown word: refused, with what was expected."""
    answer = judge(running().state, command, node)
    assert answer is not None and not answer.fulfilled


@pytest.mark.parametrize("command", WISHES)
def test_an_ended_job_is_told_of(command):
    """Nothing can be asked of a run that is over."""
    driver = running()
    driver.stop()
    driver.settle()
    answer = judge(driver.state, command, "node0" if command in ABOUT_NODES else "")
    assert "has stopped already" in answer.reason


def test_a_job_that_is_being_stopped_takes_no_other_wish():
    """Who asked for the end is named; the end may be asked for again."""
    driver = running()
    driver.stop(who="ann@host")
    assert "ann@host" in judge(driver.state, "pause").reason
    assert judge(driver.state, "stop") is None


def test_resume_needs_something_to_resume():
    """A job that runs is neither paused nor held nor stuck; a paused one is not paused twice."""
    driver = running(abilities=("pause",))
    assert judge(driver.state, "resume").fulfilled
    driver.command("pause")
    driver.settle()
    assert driver.state.phase == "paused"
    assert judge(driver.state, "resume") is None
    assert judge(driver.state, "pause").fulfilled


def test_what_a_pause_means_depends_on_the_phase():
    """In a recovery it holds the next one; the hold is let go by resume; at a step it waits for the chain's word."""
    driver = running()
    assert came_of("pause", (False, ""), driver.state) == "recorded"
    driver.fail("node0")
    driver.command("pause")
    assert came_of("pause", (False, ""), driver.state) == "held"
    assert judge(driver.state, "pause").fulfilled
    driver.command("resume")
    assert came_of("resume", (True, ""), driver.state) == "let go"


def test_only_who_is_kept_out_can_be_admitted():
    """Admitted is who was quarantined; of anybody else it is told how they are, or who is kept out."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.start()
    driver.command("evict", "node1")
    driver.settle()
    assert judge(driver.state, "admit", "node1") is None
    assert judge(driver.state, "admit", "node0").fulfilled
    assert judge(driver.state, "admit", "x").unknown and "kept out: node1" in judge(driver.state, "admit", "x").reason
    driver.command("admit", "node1")
    assert came_of("admit", (False, ""), driver.state) == "admitted" and not driver.state.quarantined
    driver.join("node1")
    driver.settle()
    assert judge(driver.state, "admit", "node1").fulfilled
