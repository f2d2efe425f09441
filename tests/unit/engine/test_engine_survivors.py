"""The dying checkpoint, copies and replicas of a script that registered its state."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from checkpoint_jobs import answer, committed, hold, job, of, open_orders, persist, shard, world

from ftcore.cli.ctl_lines import summary
from ftcore.commands import CommitCheckpoint, PersistShards, SaveCheckpoint
from ftcore.engine.orders import Buddy, slice_of
from ftcore.events.checkpoint import (
    HeldShard,
    ReplicasFound,
    Resume,
    StateLoaded,
)
from ftcore.events.incident import IncidentContinued, IncidentEscalated
from ftcore.events.policy import AbilityDeclared, AlertRaised, DeclaredCheckpoints
from ftcore.events.world import WorldFormed, WorldMembers
from ftcore.policies.file.config import default_chain, parse
from ftcore.replay import verify
from ftcore.replay.status import status_of
from ftcore.states.resume import held_by, resume_of, states_of
from ftcore.states.revisions import BEGUN_FROM
from ftcore.testing.driver import JobDriver


def dying(*, held: dict[str, tuple[HeldShard, ...]], url: str = "/checkpoints") -> JobDriver:
    """A job of four ranks on two nodes whose rank 1 was killed; its survivors have staged their state."""
    driver = job(2, 2, policies=("dying_checkpoint",), url=url)
    driver.fail("node0", local_rank=1, exitcode=-9)
    for node in ("node0", "node1"):
        hold(driver, node, *held[node])
    for node in ("node0", "node1"):
        answer(driver, SaveCheckpoint, node)
    return driver


def copying(labels: Sequence[str], **declared: Any) -> JobDriver:
    """A job whose nodes copy their shards, each with its value of the label ``switch``."""
    chain = default_chain()
    options = DeclaredCheckpoints(**declared)
    policy = msgspec.structs.replace(chain, declared=msgspec.structs.replace(chain.declared, checkpoints=options))
    driver = JobDriver(len(labels), 1, policy=policy)
    driver.submit()
    for number, label in enumerate(labels):
        driver.join(f"node{number}", labels={"switch": label} if label else {}, copies_port=7000 + number)
    driver.settle()
    return driver


def found(driver: JobDriver, *groups: tuple[int, ...], round_: int = 1) -> None:
    """Rank 0 reports which ranks registered the same state."""
    life = driver.state.membership.nodes["node0"].incarnation
    driver.say("node0", ReplicasFound(node="node0", incarnation=life, round=round_, groups=groups))


def test_survivors_write_one_shard_of_each_group_after_a_fault() -> None:
    """Once it is staged, the chain goes on: it is written meanwhile, and the next round resumes from memory."""
    four = [shard(rank, 5, group=rank % 2, groups=2, ranks=4) for rank in range(4)]
    driver = dying(held={"node0": (four[0],), "node1": (four[2], four[3])})
    orders = open_orders(driver, PersistShards)
    assert [action.command for action in orders] == [
        PersistShards(round=1, step=5, ranks=(0, 3), writers=(("node0", (0,)), ("node1", (3,))))
    ]
    assert list(orders[0].waiting) == ["node0", "node1"]
    assert [each.outcome for each in of(driver, IncidentContinued)] == ["saved"]
    persist(driver, "node0", four[0])
    answer(driver, PersistShards, "node0")
    persist(driver, "node1", four[3])
    answer(driver, PersistShards, "node1")
    committed(driver, 5)
    answer(driver, CommitCheckpoint, "node0")
    driver.settle()
    resume = of(driver, WorldFormed)[-1].resume
    assert driver.state.phase == "running" and (resume.step, resume.source) == (5, "memory")
    assert verify(driver.events).mismatches == ()


def test_survivors_without_a_common_step_are_refused_with_the_reason() -> None:
    """The plan fails, and the chain goes on."""
    first = shard(0, 6, group=0, groups=2, ranks=4)
    others = (shard(2, 5, group=0, groups=2, ranks=4), shard(3, 6, group=0, groups=2, ranks=4))
    driver = dying(held={"node0": (first,), "node1": others})
    (escalated,) = of(driver, IncidentEscalated)
    assert escalated.reason == "no surviving rank has step 6 of replica group 1; other ranks have step 5"
    driver.settle()
    assert driver.state.phase == "running"


@pytest.mark.parametrize(("decides", "refused"), [(BEGUN_FROM - 1, False), (BEGUN_FROM, False), (BEGUN_FROM, True)])
def test_survivors_of_a_round_without_a_step_save_what_it_began_from(decides: int, refused: bool) -> None:
    """A newcomer that dies before it has joined holds nothing; what the others hold is of the round before. What ranks
    could not load is not saved."""
    driver = job(policies=("hot_swap", "dying_checkpoint"), decides=decides)
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save", "park")))
    driver.fail("node1", exitcode=-9)
    hold(driver, "node0", shard(0, 5), shard(0, 4))
    driver.settle(step=False)
    begun = Resume(step=5, round=1, source="memory")
    assert of(driver, WorldFormed)[-1].resume == begun
    if refused:
        life = driver.state.membership.nodes["node0"].incarnation
        loaded = StateLoaded(
            node="node0", incarnation=life, round=2, step=4, source="memory", seconds=0.1, refused=("memory: damaged",)
        )
        driver.say("node0", loaded)
    driver.fail("node1", exitcode=-9)
    hold(driver, "node0", shard(0, 5), shard(0, 4))
    hold(driver, "node1")
    why = "no worker of this round has staged its state"
    answer(driver, SaveCheckpoint, "node1", refused=why)
    if decides < BEGUN_FROM:
        assert of(driver, IncidentEscalated)[-1].reason == f"node1: {why}"
        return
    answer(driver, SaveCheckpoint, "node0")
    orders = [action.command for action in open_orders(driver, PersistShards)]
    if refused:
        assert not orders and of(driver, IncidentEscalated)[-1].reason == f"node1: {why}"
        return
    assert orders == [PersistShards(round=1, step=5, ranks=(0,), writers=(("node0", (0,)),))]
    driver.settle()
    assert driver.state.phase == "running"
    assert verify(driver.events).mismatches == ()


def test_without_a_place_for_checkpoints_survivors_keep_their_state_in_memory() -> None:
    """Nothing is written, and the next round resumes from memory."""
    four = [shard(rank, 5, ranks=4) for rank in range(4)]
    driver = dying(held={"node0": (four[0],), "node1": (four[2],)}, url="")
    assert open_orders(driver, PersistShards) == []
    driver.settle()
    assert of(driver, WorldFormed)[-1].resume == Resume(step=5, round=1, source="memory")


@pytest.mark.parametrize("url", ["", "/checkpoints"])
def test_survivors_that_hold_nothing_have_saved_nothing(url: str) -> None:
    """The plan fails, with or without a place for checkpoints, and the chain goes on."""
    driver = dying(held={"node0": (), "node1": ()}, url=url)
    (escalated,) = of(driver, IncidentEscalated)
    assert escalated.reason == "no surviving rank has staged its state"
    driver.settle()
    assert driver.state.phase == "running"


def test_a_world_records_who_holds_whose_copies() -> None:
    """On another switch; agents learn it with the order to start, and a new world chooses anew."""
    driver = copying(["s1", "s1", "s2", "s2"])
    assert of(driver, WorldMembers)[-1].buddies == ((2,), (3,), (0,), (1,))
    part = slice_of(driver.state, "node0")
    assert part.buddies == (Buddy(node="node2", address="127.0.0.1", port=7002),)
    assert part.wards == ("node2",)
    driver.join("node2", labels={"switch": "s1"}, copies_port=7009)
    driver.settle()
    assert of(driver, WorldMembers)[-1].buddies == ((3,), (0,), (1,), (2,))
    assert slice_of(driver.state, "node3").buddies[0].port == 7009
    assert verify(driver.events).mismatches == ()


def test_copies_can_be_more_or_none() -> None:
    """A node without a port takes part in none; a single node has none."""
    assert of(copying(["", "", ""], copies=2), WorldMembers)[-1].buddies == ((1, 2), (2, 0), (0, 1))
    assert of(copying(["", ""], copies=0), WorldMembers)[-1].buddies == ()
    assert of(copying([""]), WorldMembers)[-1].buddies == ()
    assert of(job(), WorldMembers)[-1].buddies == ()


def test_a_copy_stands_in_for_the_shard_of_a_lost_node() -> None:
    """A world of the same size resumes from it; the node that staged a shard writes it as long as it is there."""
    driver = job(policies=["dying_checkpoint"])
    mine, other = shard(0, 9, groups=2), shard(1, 9, groups=2)
    hold(driver, "node0", mine, msgspec.structs.replace(other, copy=True))
    assert resume_of(driver.state, world(driver)) == Resume(step=9, round=1, source="memory")
    (state,) = states_of(held_by(driver.state, [(each.node, each.incarnation) for each in world(driver)]))
    assert state.savers == {0: ("node0", 0), 1: ("node0", 1)}
    hold(driver, "node1", other, msgspec.structs.replace(mine, copy=True))
    (state,) = states_of(held_by(driver.state, [(each.node, each.incarnation) for each in world(driver)]))
    assert state.savers == {0: ("node0", 0), 1: ("node1", 1)}
    assert "copies of step 9 of rank 1" in "".join(map(summary, driver.events))


def test_registered_replicas_are_known_while_their_round_is_the_newest() -> None:
    """They give the ability if every rank has a replica; those of an earlier round do not count."""
    driver = job(nodes=4)
    found(driver, (0, 2), (1, 3))
    assert status_of(driver.state).found_replicas == ((0, 2), (1, 3))
    assert driver.state.can("replicas")
    found(driver, (0, 1, 2, 3), round_=7)
    assert status_of(driver.state).found_replicas == ((0, 2), (1, 3))
    found(driver, (0, 2), (1,), (3,))
    assert not driver.state.can("replicas")
    driver.fail("node1")
    driver.settle()
    assert status_of(driver.state).found_replicas is None
    assert not of(driver, AlertRaised) and verify(driver.events).mismatches == ()


@pytest.mark.parametrize(
    ("declared", "registered", "wrong"),
    [
        ("all", [(0, 1, 2, 3)], ""),
        ("all", [(0, 2), (1, 3)], "ranks 0, 1, 2, 3 do not hold the same state; the script registered: [0,2] [1,3]"),
        ("[[0, 2], [1, 3]]", [(0, 1, 2, 3)], ""),
        (
            "[[0, 1], [2, 3]]",
            [(0, 2), (1, 3)],
            "ranks 0, 1 do not hold the same state; the script registered: [0,2] [1,3]",
        ),
        ("{data_parallel: 4, optimizer_shard: 2}", [(0, 2), (1, 3)], ""),
        ("{data_parallel: 4, optimizer_shard: 2}", [(0,), (1,), (2,), (3,)], "each rank holds a part of its own"),
        ("[[0, 1], [2, 3], [4, 5]]", [(0, 1, 2, 3)], "the groups have 6 ranks, the job has 4"),
        ("{data_parallel: 3, optimizer_shard: 1}", [(0, 1, 2, 3)], "data_parallel: 3 does not divide the 4 ranks"),
        ("none", [(0, 1, 2, 3)], ""),
    ],
)
def test_declared_replicas_that_the_script_contradicts_are_refused(
    declared: str, registered: list[tuple[int, ...]], wrong: str
) -> None:
    """With one alert; what the script registered counts. Replicas beyond the declared ones are no contradiction."""
    said = parse(f"version: 1\njob: {{replicas: {declared}}}\n", "p")
    driver = job(nodes=4, declared=said.declared)
    found(driver, *registered)
    found(driver, *registered)
    alerts = of(driver, AlertRaised)
    assert [wrong in alert.text for alert in alerts] == ([True] if wrong else [])
    assert driver.state.can("replicas") is (declared != "none" and all(len(group) > 1 for group in registered))
    assert verify(driver.events).mismatches == ()


def test_the_savers_of_a_layout_are_the_first_living_ranks_of_each_shard() -> None:
    """Ranks 0 and 4, 1 and 5, 2 and 6, 3 and 7 hold the same state; without rank 1, rank 5 saves."""
    said = parse("version: 1\njob: {replicas: {data_parallel: 8, optimizer_shard: 4}}\n", "p")
    driver = job(nodes=8, policies=("dying_checkpoint",), declared=said.declared)
    driver.lose("node1")
    (action,) = open_orders(driver, SaveCheckpoint)
    assert action.command.ranks == (0, 5, 2, 3)
