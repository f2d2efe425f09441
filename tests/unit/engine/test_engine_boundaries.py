"""Pauses and saves at one step boundary: the two orders, what comes between them, and the abilities of workers."""

import msgspec
import pytest

from ftcore.commands import FindBoundary, PauseWorkers, SaveCheckpoint
from ftcore.engine.master import unanswered
from ftcore.engine.orders import Order, order_for
from ftcore.events.action import ActionOrdered
from ftcore.events.incident import IncidentEscalated
from ftcore.events.master import MasterElected
from ftcore.events.node import OrderObeyed, OrderRefused
from ftcore.events.policy import ChainEntry, PolicyConsidered
from ftcore.events.worker import WorkersStepped
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.replay import verify
from ftcore.states.revisions import FOUND_BY_ALL, NEWEST
from ftcore.testing.driver import JobDriver
from ftcore.version import __version__


def job(*abilities: str, nodes: int = 2) -> JobDriver:
    """A job that can pause and save, and trains, unless it has other abilities."""
    names = ("step_pause", "dying_checkpoint", "process_restart", "stop")
    chain = tuple(ChainEntry(policy=name, options=default_entry(name).options) for name in names)
    driver = JobDriver(
        nodes,
        policy=msgspec.structs.replace(default_chain(), chain=chain),
        abilities=abilities if abilities else ("pause", "checkpoint"),
    )
    driver.start()
    return driver


def open_order(driver: JobDriver, kind: type, node: str) -> Order:
    """The order of a kind that waits for a node."""
    (action,) = (action for action in driver.state.orders.open.values() if isinstance(action.command, kind))
    assert node in action.waiting
    return order_for(driver.state, action, node)


def answer(driver: JobDriver, order: Order, node: str, boundary: int) -> None:
    found = driver.state.membership.nodes[node]
    driver.say(
        node,
        OrderObeyed(
            node=node, incarnation=found.incarnation, round=found.round, effect=order.effect, step=9, boundary=boundary
        ),
    )


@pytest.mark.parametrize(("request_", "kind"), [("pause", PauseWorkers), ("checkpoint", SaveCheckpoint)])
@pytest.mark.parametrize("answers", [(7, 5), (5, 7)])
def test_the_second_order_names_the_latest_boundary(request_: str, kind: type, answers: tuple[int, int]) -> None:
    """Whichever node answers first."""
    driver = job()
    driver.command(request_)
    for node, boundary in zip(("node0", "node1"), answers, strict=True):
        answer(driver, open_order(driver, FindBoundary, node), node, boundary)
    assert open_order(driver, kind, "node0").command == kind(round=1, boundary=7)


def test_a_failover_between_the_answers_forgets_none() -> None:
    """The next master repeats the order only to the node that has not answered, and takes the latest of all answers."""
    driver = job()
    driver.command("pause")
    answer(driver, open_order(driver, FindBoundary, "node0"), "node0", 7)
    driver.own(MasterElected(host="host", pid=2, address="unix:second", version=__version__))
    assert unanswered(driver.state, "node0", "node0-1") == []
    (repeated,) = unanswered(driver.state, "node1", "node1-1")
    answer(driver, repeated, "node1", 5)
    assert open_order(driver, PauseWorkers, "node1").command == PauseWorkers(round=1, boundary=7)
    driver.own(MasterElected(host="host", pid=3, address="unix:third", version=__version__))
    assert [order.command for order in unanswered(driver.state, "node0", "node0-1")] == [
        PauseWorkers(round=1, boundary=7)
    ]
    driver.settle()
    assert driver.state.phase == "paused"


def test_a_pause_withdrawn_between_the_orders_does_not_last() -> None:
    """The pause is carried out, then the request to resume: no worker stays stopped."""
    driver = job()
    driver.command("pause")
    answer(driver, open_order(driver, FindBoundary, "node0"), "node0", 7)
    driver.command("resume")
    driver.settle()
    assert driver.state.phase == "running"
    assert [node.phase for node in driver.state.membership.nodes.values()] == ["running", "running"]
    assert driver.state.requests.pending is None and driver.state.requests.paused_for is None


def test_agents_that_find_no_boundary_are_not_ordered_to_pause_at_none() -> None:
    """As those of an older ftcore, which answer without one: the request fails."""
    driver = job()
    driver.command("pause")
    for node in ("node0", "node1"):
        answer(driver, open_order(driver, FindBoundary, node), node, 0)
    assert driver.state.phase == "running" and driver.state.incident is None
    assert any("no worker reaches a step boundary" in str(event.data) for event in driver.events)


def stepped(driver: JobDriver, node: str, *abilities: str) -> None:
    found = driver.state.membership.nodes[node]
    driver.say(
        node,
        WorkersStepped(
            node=node, incarnation=found.incarnation, round=found.round, step=1, absolute=True, abilities=abilities
        ),
    )


def untrained(nodes: int = 2, decides: int = NEWEST) -> JobDriver:
    """A job whose workers run and have completed no step."""
    driver = JobDriver(nodes, decides=decides)
    driver.submit()
    for number in range(nodes):
        driver.join(f"node{number}")
    driver.settle(step=False)
    return driver


def test_workers_declare_what_all_of_them_can() -> None:
    """Once the workers of every node have completed a step."""
    driver = untrained(3)
    stepped(driver, "node0", "pause", "checkpoint")
    stepped(driver, "node1", "checkpoint", "pause")
    assert not driver.state.can("pause")
    stepped(driver, "node2", "pause")
    assert driver.state.abilities.declared["workers"] == ("pause",)


@pytest.mark.parametrize("decides", [FOUND_BY_ALL - 1, FOUND_BY_ALL])
def test_a_boundary_that_a_node_refuses_to_name_is_none(decides: int) -> None:
    """It may have passed the boundary of the others. Masters before that revision ordered it there."""
    driver = untrained(decides=decides)
    for node in ("node0", "node1"):
        stepped(driver, node, "pause", "checkpoint", "save")
    driver.command("checkpoint")
    refused = open_order(driver, FindBoundary, "node0")
    life = driver.state.membership.nodes["node0"].incarnation
    driver.say(
        "node0", OrderRefused(node="node0", incarnation=life, round=1, effect=refused.effect, reason="not possible now")
    )
    if decides < FOUND_BY_ALL:
        answer(driver, open_order(driver, FindBoundary, "node1"), "node1", 9)
    saves = [each.data.command for each in driver.events if isinstance(each.data, ActionOrdered)]
    saves = [command.boundary for command in saves if isinstance(command, SaveCheckpoint)]
    escalated = [each.data.reason for each in driver.events if isinstance(each.data, IncidentEscalated)]
    assert (saves, escalated) == (([9], []) if decides < FOUND_BY_ALL else ([], ["node0: not possible now"]))
    assert verify(driver.events).ok


def test_a_node_counts_once() -> None:
    """A report that is repeated does not stand for another node's."""
    driver = untrained()
    stepped(driver, "node0", "pause")
    stepped(driver, "node0", "pause")
    assert not driver.state.can("pause")


def test_another_round_can_have_other_abilities() -> None:
    """Until it has stepped, those of the last round hold; then only its own."""
    driver = untrained()
    for node in ("node0", "node1"):
        stepped(driver, node, "pause", "checkpoint")
    driver.fail("node0")
    driver.settle(step=False)
    stepped(driver, "node0", "pause")
    assert driver.state.can("checkpoint")
    stepped(driver, "node1", "pause")
    assert driver.state.can("pause") and not driver.state.can("checkpoint")


def considered(driver: JobDriver, policy: str) -> list[PolicyConsidered]:
    events = (event.data for event in driver.events)
    return [data for data in events if isinstance(data, PolicyConsidered) and data.policy == policy]


def test_a_policy_that_lacked_an_ability_is_asked_once_workers_have_it() -> None:
    """Its pass for the lack is recorded once; then `checkpoint` of the workers suffices in place of `save`."""
    driver = untrained()
    for abilities in ((), (), ("checkpoint", "pause"), ()):
        for node in ("node0", "node1"):
            stepped(driver, node, *abilities)
        driver.fail("node0")
        driver.settle(step=False)
    lacks, missing = considered(driver, "dying_checkpoint")
    assert lacks.lacks == ("save",)
    assert missing.lacks == () and "ranks are missing" in missing.reason
