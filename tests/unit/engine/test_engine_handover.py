"""What a round that a plan ends leaves to the next one: healthy workers stop at one step boundary and save there."""

from typing import Any

import msgspec
import pytest

from ftcore.commands import (
    CommitCheckpoint,
    FindBoundary,
    OpenStore,
    PersistShards,
    ReleaseNode,
    SaveCheckpoint,
    StopWorkers,
)
from ftcore.engine.orders import order_for
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import CheckpointCommitted, HeldShard, MemoryHeld, ShardPersisted
from ftcore.events.job import JobSpec
from ftcore.events.master import MasterElected
from ftcore.events.node import OrderObeyed, OrderRefused
from ftcore.events.policy import AbilityDeclared, ChainEntry, PolicyConsidered
from ftcore.events.world import WorldFormed
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.replay import verify
from ftcore.states.revisions import HANDOVER
from ftcore.testing.driver import JobDriver
from ftcore.version import __version__

LOG = "log-1"


def job(nodes: int = 2, *, registers: bool = True, decides: int = HANDOVER) -> JobDriver:
    """A job that trains, may grow and shrink, and whose script registered its state; its cool-down is over."""
    names = ("dying_checkpoint", "process_restart", "shrink", "grow", "stop")
    chain = tuple(ChainEntry(policy=name, options=default_entry(name).options) for name in names)
    driver = JobDriver(
        nodes,
        spec=JobSpec(argv=("train.py",), nodes_min=1, nodes_max=3, checkpoints="/checkpoints"),
        policy=msgspec.structs.replace(default_chain(), chain=chain),
        decides=decides,
    )
    driver.own(MasterElected(host="host", pid=1, address="unix:m", version=__version__, decides=decides, log_id=LOG))
    driver.submit()
    for number in range(nodes):
        driver.join(f"node{number}")
    while driver.state.phase != "running":
        driver.settle()
        assert driver.state.phase == "running" or driver.wait()
    if registers:
        driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save")))
    driver.make_steps(1)
    driver.now += 3600 * 10**9
    return driver


def of(driver: JobDriver, kind: type) -> list[Any]:
    return [event.data for event in driver.events if isinstance(event.data, kind)]


def ordered(driver: JobDriver, kind: type) -> list[Any]:
    """The commands of a kind that wait for answers."""
    return [action.command for action in driver.state.orders.open.values() if isinstance(action.command, kind)]


def answer(driver: JobDriver, kind: type, node: str, boundary: int = 0, refused: str = "") -> None:
    (action,) = (each for each in driver.state.orders.open.values() if isinstance(each.command, kind))
    order, found = order_for(driver.state, action, node), driver.state.membership.nodes[node]
    about = {"node": node, "incarnation": found.incarnation, "round": found.round, "effect": order.effect}
    if refused:
        driver.say(node, OrderRefused(**about, reason=refused))
    else:
        driver.say(node, OrderObeyed(**about, step=9, boundary=boundary))


def wait_for(driver: JobDriver, kind: type) -> None:
    """Let time pass until an order has failed."""
    while ordered(driver, kind):
        assert driver.wait()


def hold(driver: JobDriver, node: str, rank: int, step: int, *, groups: int = 1, ranks: int = 2) -> None:
    life = driver.state.membership.nodes[node].incarnation
    group = rank if groups > 1 else 0
    one = HeldShard(rank=rank, round=1, step=step, group=group, groups=groups, ranks=ranks)
    driver.say(node, MemoryHeld(node=node, incarnation=life, log=LOG, shards=(one,)))


@pytest.mark.parametrize("how", ["grow", "drain"])
def test_healthy_workers_are_stopped_at_one_boundary_where_they_have_saved(how: str) -> None:
    """The latest boundary of all nodes; no worker is stopped before each has saved, and the round resumes there."""
    driver = job()
    if how == "grow":
        driver.join("node2")
    else:
        driver.command("drain", "node1")
    assert ordered(driver, StopWorkers) == []
    answer(driver, FindBoundary, "node0", 7)
    answer(driver, FindBoundary, "node1", 5)
    assert ordered(driver, SaveCheckpoint) == [SaveCheckpoint(round=1, boundary=7, hold=True)]
    answer(driver, SaveCheckpoint, "node1", 7)
    assert ordered(driver, StopWorkers) == []
    answer(driver, SaveCheckpoint, "node0", 7)
    assert len(ordered(driver, StopWorkers)) == 1
    for rank, node in enumerate(("node0", "node1")):
        hold(driver, node, rank, 16)
    driver.settle()
    formed = of(driver, WorldFormed)[-1]
    assert (formed.nodes, formed.resume.step, formed.resume.source) == (3 if how == "grow" else 1, 16, "memory")
    assert of(driver, PolicyConsidered)[-1].policy == ("grow" if how == "grow" else "shrink")
    assert verify(driver.events).mismatches == ()


@pytest.mark.parametrize("at", [FindBoundary, SaveCheckpoint])
@pytest.mark.parametrize("why", ["refused", "late"])
def test_workers_that_cannot_be_held_are_stopped_where_they_are(at: type, why: str) -> None:
    """The plan goes on; the next round resumes from what was saved before."""
    driver = job()
    driver.command("drain", "node1")
    if at is SaveCheckpoint:
        answer(driver, FindBoundary, "node0", 7)
        answer(driver, FindBoundary, "node1", 7)
    answer(driver, at, "node0", 7)
    if why == "refused":
        answer(driver, at, "node1", refused="the worker has gone on")
    else:
        wait_for(driver, at)
    assert ordered(driver, at) == [] and len(ordered(driver, StopWorkers)) == 1
    driver.settle()
    assert of(driver, WorldFormed)[-1].nodes == 1 and driver.state.phase == "running"
    assert verify(driver.events).mismatches == ()


def test_a_fault_meanwhile_ends_the_hold() -> None:
    """Its own plan stops the workers at once."""
    driver = job()
    driver.command("drain", "node1")
    answer(driver, FindBoundary, "node0", 7)
    driver.fail("node1")
    assert ordered(driver, FindBoundary) == [] and not ordered(driver, SaveCheckpoint)[0].hold
    assert driver.state.requests.pending is not None, "the drain is asked about again after the fault"
    assert verify(driver.events).mismatches == ()


def test_the_next_master_goes_on_with_the_hold() -> None:
    """It forgets no boundary."""
    driver = job()
    driver.command("drain", "node1")
    answer(driver, FindBoundary, "node0", 7)
    driver.own(MasterElected(host="host", pid=2, address="unix:2", version=__version__, decides=10, log_id=LOG))
    answer(driver, FindBoundary, "node1", 5)
    assert ordered(driver, SaveCheckpoint) == [SaveCheckpoint(round=1, boundary=7, hold=True)]
    driver.settle()
    assert of(driver, WorldFormed)[-1].nodes == 1


@pytest.mark.parametrize("why", ["plain script", "older master"])
def test_other_jobs_are_stopped_without_a_hold(why: str) -> None:
    """Of a script that did not register its state, or with a master of an earlier release."""
    driver = job(registers=why != "plain script", decides=HANDOVER if why == "plain script" else HANDOVER - 1)
    driver.command("drain", "node1")
    driver.settle()
    saves = [data.command for data in of(driver, ActionOrdered) if isinstance(data.command, SaveCheckpoint)]
    assert len(saves) == (why == "older master") and not any(command.hold for command in saves)
    assert of(driver, WorldFormed)[-1].nodes == 1


def leave(driver: JobDriver, *, steps: dict[str, int]) -> None:
    """Drain node2 of a job of three ranks that hold different state; nodes stop with these steps in memory."""
    driver.command("drain", "node2")
    while not ordered(driver, StopWorkers):
        driver._obey_once()
    for rank, (node, step) in enumerate(steps.items()):
        hold(driver, node, rank, step, groups=3, ranks=3)
    while ordered(driver, StopWorkers) or ordered(driver, OpenStore):
        driver._obey_once()


def persist(driver: JobDriver, node: str, rank: int, step: int) -> None:
    life = driver.state.membership.nodes[node].incarnation
    one = HeldShard(rank=rank, round=1, step=step, group=rank, groups=3, ranks=3)
    driver.say(node, ShardPersisted(node=node, incarnation=life, shard=one, file=f"s{rank}", bytes=1, seconds=0.1))


def test_what_only_a_leaving_node_holds_is_written_before_it_leaves() -> None:
    """Each rank holds a part of its own: the checkpoint is complete before the node is released."""
    driver = job(3)
    leave(driver, steps={"node0": 9, "node1": 9, "node2": 9})
    writers = tuple((f"node{rank}", (rank,)) for rank in range(3))
    assert ordered(driver, PersistShards) == [PersistShards(round=1, step=9, ranks=(0, 1, 2), writers=writers)]
    (action,) = (each for each in driver.state.orders.open.values() if isinstance(each.command, PersistShards))
    assert order_for(driver.state, action, "node1").command == PersistShards(round=1, step=9, ranks=(1,))
    for rank in range(3):
        persist(driver, f"node{rank}", rank, 9)
        answer(driver, PersistShards, f"node{rank}")
    assert len(ordered(driver, CommitCheckpoint)) == 1 and ordered(driver, ReleaseNode) == []
    driver.own(CheckpointCommitted(round=1, step=9, where="/checkpoints/9", own=True))
    driver.settle()
    formed = of(driver, WorldFormed)[-1]
    assert (formed.nodes, formed.resume.step, formed.resume.source) == (2, 9, "storage")
    assert verify(driver.events).mismatches == ()


def test_a_rollback_writes_nothing_of_what_it_leaves_behind() -> None:
    """The plan takes a node out and goes back: the next round is formed at once, from the older checkpoint."""
    driver = job(3)
    driver.own(CheckpointCommitted(round=1, step=5, where="/checkpoints/5", own=True))
    driver.command("drain", "node2")
    while not ordered(driver, StopWorkers):
        driver._obey_once()
    plan = driver.state.incident.plan_in_force()
    plan.terms = msgspec.structs.replace(plan.terms, rollback_to=5)
    for rank in range(3):
        hold(driver, f"node{rank}", rank, 9, groups=3, ranks=3)
    driver.settle()
    assert not any(isinstance(data.command, PersistShards) for data in of(driver, ActionOrdered))
    assert (of(driver, WorldFormed)[-1].nodes, of(driver, WorldFormed)[-1].resume.step) == (2, 5)


@pytest.mark.parametrize("why", ["refused", "late", "older"])
def test_a_node_leaves_although_its_shards_cannot_be_written(why: str) -> None:
    """The next round resumes from an older state; a state that is not complete anywhere is not written at all."""
    driver = job(3)
    driver.own(CheckpointCommitted(round=1, step=5, where="/checkpoints/5", own=True))
    leave(driver, steps={"node0": 9, "node1": 8 if why == "older" else 9, "node2": 9})
    if why == "refused":
        for rank in range(3):
            answer(driver, PersistShards, f"node{rank}", refused="disk full" if rank == 2 else "")
    elif why == "late":
        wait_for(driver, PersistShards)
    assert ordered(driver, PersistShards) == []
    driver.settle()
    formed = of(driver, WorldFormed)[-1]
    assert (formed.nodes, formed.resume.step) == (2, 5)
    assert verify(driver.events).mismatches == ()
