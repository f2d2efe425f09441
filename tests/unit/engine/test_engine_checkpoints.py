"""What a round resumes from, orders of manifests, and the dying checkpoint of a script that registered its state."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from ftcore.cli.ctl_lines import summary
from ftcore.commands import CommitCheckpoint, PersistShards, SaveCheckpoint
from ftcore.engine.checkpoints import COMMIT_TRIES, awaits_manifest
from ftcore.engine.orders import Buddy, order_for, slice_of
from ftcore.engine.turn import Turn, own_fact, sequence
from ftcore.events.checkpoint import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointFound,
    CheckpointOnStorage,
    HeldShard,
    MemoryHeld,
    ReplicasFound,
    Resume,
    ShardPersisted,
    StateLoaded,
)
from ftcore.events.incident import IncidentContinued, IncidentEscalated
from ftcore.events.job import JobRolledBack, JobSpec
from ftcore.events.master import MasterElected
from ftcore.events.node import OrderObeyed, OrderRefused
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AbilityDeclared, AlertRaised, ChainEntry, Declared, DeclaredCheckpoints
from ftcore.events.world import Member, WorldFormed, WorldMembers
from ftcore.ids import Nanoseconds
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain, parse
from ftcore.replay import verify
from ftcore.replay.status import status_of
from ftcore.states.resume import held_by, resume_of, states_of
from ftcore.states.revisions import NEWEST
from ftcore.testing.driver import JobDriver
from ftcore.version import __version__

LOG = "log-1"


def job(
    nodes: int = 2,
    slots: int = 1,
    *,
    url: str = "/checkpoints",
    policies: Sequence[str] = (),
    declared: Declared | None = None,
    decides: int = NEWEST,
) -> JobDriver:
    """A job that trains, and whose script registered its state."""
    names = (*policies, "process_restart", "shrink", "stop")
    chain = tuple(ChainEntry(policy=name, options=default_entry(name).options) for name in names)
    driver = JobDriver(
        nodes,
        slots,
        spec=JobSpec(argv=("train.py",), nodes_min=1, nodes_max=nodes, checkpoints=url),
        policy=attrs.evolve(default_chain(), chain=chain, declared=declared or Declared()),
        decides=decides,
    )
    elected = MasterElected(host="host", pid=1, address="unix:m", version=__version__, decides=decides, log_id=LOG)
    driver.own(elected)
    driver.start()
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save")))
    return driver


def shard(
    rank: int, step: int, *, group: int | None = None, groups: int = 1, ranks: int = 2, round_: int = 1
) -> HeldShard:
    """A shard; by default of a job whose ranks all hold the same state."""
    own = 0 if groups == 1 else rank
    return HeldShard(
        rank=rank, round=round_, step=step, group=own if group is None else group, groups=groups, ranks=ranks
    )


def hold(driver: JobDriver, node: str, *shards: HeldShard, log: str = LOG) -> None:
    life = driver.state.membership.nodes[node].incarnation
    driver.say(node, MemoryHeld(node=node, incarnation=life, log=log, shards=shards))


def persist(driver: JobDriver, node: str, one: HeldShard) -> None:
    life = driver.state.membership.nodes[node].incarnation
    name = f"shard-{one.group}"
    driver.say(node, ShardPersisted(node=node, incarnation=life, shard=one, file=name, bytes=1, seconds=0.1))


def committed(driver: JobDriver, step: int, round_: int = 1) -> None:
    driver.own(CheckpointCommitted(round=round_, step=step, where=f"/checkpoints/{step}", own=True))


def world(driver: JobDriver) -> tuple[Member, ...]:
    assert driver.state.rounds.world is not None
    return driver.state.rounds.world.members


def open_orders(driver: JobDriver, kind: type) -> list[Any]:
    return [action for action in driver.state.orders.open.values() if isinstance(action.command, kind)]


def of(driver: JobDriver, kind: type) -> list[Any]:
    return [event.data for event in driver.events if isinstance(event.data, kind)]


def answer(driver: JobDriver, kind: type, node: str, refused: str = "") -> None:
    """A node answers its order of a kind."""
    (action,) = open_orders(driver, kind)
    order, found = order_for(driver.state, action, node), driver.state.membership.nodes[node]
    about = {"node": node, "incarnation": found.incarnation, "round": found.round, "effect": order.effect}
    driver.say(node, OrderRefused(**about, reason=refused) if refused else OrderObeyed(**about))


@pytest.mark.parametrize(("log", "step"), [(LOG, 9), ("another", None)])
def test_an_agent_that_takes_over_a_keeper_joins_with_its_memory(log: str, step: int | None) -> None:
    """A round that waits for this node alone begins at once, so nothing that came later would count."""
    driver = job()
    driver.lose("node1")
    hold(driver, "node0", shard(0, 9, groups=2))
    driver.join("node1", log=log, shards=(shard(1, 9, groups=2),))
    driver.settle()
    formed = of(driver, WorldFormed)[-1]
    assert (formed.round, formed.resume and formed.resume.step) == (2, step)
    assert verify(driver.events).mismatches == ()


def test_a_round_resumes_from_memory_after_a_failure() -> None:
    """The newest step of which every replica group has a shard in the world; the world's event says so."""
    driver = job()
    driver.fail("node1")
    hold(driver, "node0", shard(0, 9), shard(0, 8))
    hold(driver, "node1", shard(1, 9), shard(1, 8))
    driver.settle()
    formed = of(driver, WorldFormed)[-1]
    assert formed.resume == Resume(step=9, round=1, source="memory")
    assert driver.state.rounds.world is not None and driver.state.rounds.world.resume == formed.resume
    assert verify(driver.events).mismatches == ()


def test_each_replica_group_needs_a_shard() -> None:
    """A step that a group lacks does not count; an older one, or storage, does."""
    driver = job()
    hold(driver, "node0", shard(0, 9, groups=2), shard(0, 7, groups=2))
    hold(driver, "node1", shard(1, 8, groups=2), shard(1, 7, groups=2))
    assert resume_of(driver.state, world(driver)) == Resume(step=7, round=1, source="memory")
    committed(driver, 8)
    assert resume_of(driver.state, world(driver)) == Resume(step=8, round=1, source="storage", where="/checkpoints/8")
    assert resume_of(driver.state, world(driver)[:1]) == Resume(
        step=8, round=1, source="storage", where="/checkpoints/8"
    )


def test_memory_wins_over_storage_at_the_same_step() -> None:
    """It is nearer."""
    driver = job()
    committed(driver, 9)
    hold(driver, "node0", shard(0, 9))
    found = resume_of(driver.state, world(driver))
    assert found is not None and found.source == "memory"


def test_a_step_without_the_values_of_all_ranks_counts_as_the_step_before() -> None:
    """A rank that was killed before it staged them could not continue exactly."""
    driver = job()
    own = [attrs.evolve(shard(1, step), tensors=False) for step in (7, 8)]
    hold(driver, "node0", shard(0, 9), shard(0, 8))
    hold(driver, "node1", *own)
    assert resume_of(driver.state, world(driver)) == Resume(step=8, round=1, source="memory")
    hold(driver, "node1", own[0])
    assert resume_of(driver.state, world(driver)) == Resume(step=9, round=1, source="memory")
    hold(driver, "node0", own[0])
    assert resume_of(driver.state, world(driver)) is None


def test_another_number_of_ranks_needs_all_groups_on_some_nodes() -> None:
    """Ranks receive what overlaps their new state."""
    driver = job(nodes=3)
    hold(driver, "node0", shard(0, 9, groups=2, ranks=3))
    hold(driver, "node1", shard(1, 9, groups=2, ranks=3))
    assert resume_of(driver.state, world(driver)[:2]) == Resume(step=9, round=1, source="memory")
    assert resume_of(driver.state, (world(driver)[0], world(driver)[2])) is None


def test_masters_before_copies_needed_all_groups_on_every_node() -> None:
    """Their logs still verify."""
    driver = job(nodes=3, decides=8)
    both = [shard(rank, 9, groups=2, ranks=3) for rank in range(2)]
    hold(driver, "node0", *both)
    hold(driver, "node1", *both[:1])
    assert resume_of(driver.state, world(driver)[:2]) is None
    hold(driver, "node1", *both)
    assert resume_of(driver.state, world(driver)[:2]) == Resume(step=9, round=1, source="memory")


def test_one_copy_is_enough_if_all_ranks_hold_the_same_state() -> None:
    """The others receive it, however many ranks there are."""
    driver = job(nodes=3)
    hold(driver, "node0", shard(0, 9, ranks=3))
    assert resume_of(driver.state, world(driver)[:2]) == Resume(step=9, round=1, source="memory")


@pytest.mark.parametrize("gone", ["another log", "another incarnation", "left"])
def test_memory_that_does_not_count(gone: str) -> None:
    """Of another log, of an incarnation before, of a node that is not in the world."""
    driver = job()
    hold(driver, "node0", shard(0, 9), log="log-2" if gone == "another log" else LOG)
    if gone == "another incarnation":
        driver.join("node0")
    members = world(driver)[1:] if gone == "left" else world(driver)
    if gone == "another incarnation":
        members = (members[0]._replace(incarnation=driver.state.membership.nodes["node0"].incarnation), *members[1:])
    assert resume_of(driver.state, members) is None


def test_what_a_rollback_left_behind_is_not_resumed_from() -> None:
    """In memory and on storage, also if a keeper reports it again, or its last shard is written later."""
    driver = job()
    committed(driver, 5)
    committed(driver, 9)
    turn_back(driver, 6)
    hold(driver, "node0", shard(0, 9), shard(0, 6))
    persist(driver, "node0", shard(0, 9))
    assert resume_of(driver.state, world(driver)) == Resume(step=6, round=1, source="memory")
    assert driver.state.training.saved.saving == []
    hold(driver, "node0", shard(0, 7, round_=2))
    assert resume_of(driver.state, world(driver)) == Resume(step=7, round=2, source="memory")


def test_workers_get_the_rollbacks_of_the_job() -> None:
    """So that none of them falls back to what a rollback left behind; one that a later one contains is left out."""
    driver = job()
    for step in (8, 6, 3, 5):
        turn_back(driver, step)
    rollbacks = slice_of(driver.state, "node0").rollbacks
    assert [(back.round, back.step) for back in rollbacks] == [(2, 3), (2, 5)]


def test_what_a_later_round_has_replaced_is_not_resumed_from() -> None:
    """Retention removes it: a later round went on from an earlier step, because it could not be loaded."""
    driver = job()
    for step in (5, 9):
        committed(driver, step)
    committed(driver, 7, round_=2)
    assert driver.state.training.checkpoints == [5, 7]
    assert [(each.step, each.round) for each in driver.state.training.saved.stored] == [(5, 1), (7, 2)]
    committed(driver, 9)
    assert resume_of(driver.state, world(driver)) == Resume(step=7, round=2, source="storage", where="/checkpoints/7")


def test_checkpoints_that_an_agent_found_on_storage_are_resumed_from() -> None:
    """Those that a keeper committed without an agent; not those that a rollback left behind."""
    driver = job()
    committed(driver, 5)
    turn_back(driver, 7)
    stored = [CheckpointOnStorage(round=1, step=step, where=f"/checkpoints/{step}") for step in (9, 7, 5)]
    life = driver.state.membership.nodes["node0"].incarnation
    driver.own(CheckpointFound(node="node0", incarnation=life, checkpoints=tuple(stored)))
    assert resume_of(driver.state, world(driver)) == Resume(step=7, round=1, source="storage", where="/checkpoints/7")
    assert driver.state.training.checkpoints == [5, 7]


def turn_back(driver: JobDriver, step: int) -> None:
    """Fold a rollback as a decision of the engine."""
    driver.now += driver.tick
    fact = own_fact(OperatorCommanded(command="note", who="test", why="a rollback"))
    one = Turn(driver.state, sequence(driver.state, fact, now=Nanoseconds(driver.now), term=driver.term))
    one.emit(JobRolledBack(step=step, before=9, reason="loss"))


def test_state_that_two_rounds_could_not_use_is_given_up_for_an_older_one() -> None:
    """Two rounds in a row began from it without completing a step."""
    driver = job()
    committed(driver, 5)
    found = []
    for _ in range(4):
        driver.fail("node1", exitcode=-11)
        hold(driver, "node0", shard(0, 9))
        rounds = len(of(driver, WorldFormed))
        driver.settle(step=False)
        while len(of(driver, WorldFormed)) == rounds:
            assert driver.wait(), [f"{e.type} {summary(e)}" for e in driver.events[-25:]]
            driver.settle(step=False)
        found.append(of(driver, WorldFormed)[-1].resume)
    assert [(each.step, each.source) for each in found] == [
        (9, "memory"),
        (9, "memory"),
        (5, "storage"),
        (5, "storage"),
    ]
    assert verify(driver.events).mismatches == ()


def refuse(driver: JobDriver) -> None:
    """The node that is to write the manifest cannot."""
    (action,) = open_orders(driver, CommitCheckpoint)
    answer(driver, CommitCheckpoint, next(iter(action.waiting)), "disk full")


def again_after(driver: JobDriver) -> float:
    """Wait for the manifest's next order; returns the seconds until then."""
    began = driver.now
    while not open_orders(driver, CommitCheckpoint):
        assert driver.wait()
    return round((driver.now - began) / 1e9)


def test_the_manifest_is_ordered_once_all_groups_are_on_storage() -> None:
    """From a node that wrote a shard; if it is refused, again after 2 s, 4 s and so on, up to a minute."""
    driver = job()
    persist(driver, "node1", shard(1, 9, groups=2))
    assert open_orders(driver, CommitCheckpoint) == []
    persist(driver, "node0", shard(0, 9, groups=2))
    (action,) = open_orders(driver, CommitCheckpoint)
    assert action.command == CommitCheckpoint(round=1, step=9, files=("shard-0", "shard-1"))
    assert list(action.waiting) == ["node1"]
    for delay_s in (2, 4, 8, 16, 32, 60, 60):
        refuse(driver)
        assert again_after(driver) == delay_s
    assert verify(driver.events).mismatches == ()


@pytest.mark.parametrize("written", [True, False])
def test_a_round_waits_for_a_manifest_that_is_being_written(written: bool) -> None:
    """Its step is later than all else that the round could resume from; if it fails, an older state is used."""
    driver = job()
    committed(driver, 4)
    persist(driver, "node0", shard(0, 9, groups=2))
    persist(driver, "node1", shard(1, 9, groups=2))
    (action,) = open_orders(driver, CommitCheckpoint)
    driver.fail("node1")
    for _ in range(20):
        for open_ in list(driver.state.orders.open.values()):
            if not isinstance(open_.command, CommitCheckpoint):
                for node in list(open_.waiting):
                    driver.obey(node, order_for(driver.state, open_, node))
    assert driver.state.phase == "forming" and of(driver, WorldFormed)[-1].round == 1
    node = next(iter(action.waiting))
    if written:
        committed(driver, 9)
        answer(driver, CommitCheckpoint, node)
    else:
        for _ in range(COMMIT_TRIES):
            again_after(driver)
            refuse(driver)
    driver.settle()
    assert of(driver, WorldFormed)[-1].resume.step == (9 if written else 4)
    assert verify(driver.events).mismatches == ()


def test_a_committed_checkpoint_ends_its_saving() -> None:
    """It counts for policies too, and the same shards written again change nothing."""
    driver = job()
    persist(driver, "node0", shard(0, 9))
    committed(driver, 9)
    answer(driver, CommitCheckpoint, "node0")
    assert driver.state.training.saved.saving == [] and driver.state.training.checkpoints == [9]
    persist(driver, "node1", shard(1, 9))
    assert driver.state.training.saved.saving == [] and open_orders(driver, CommitCheckpoint) == []


def test_a_job_ends_only_after_its_last_checkpoint() -> None:
    """The order of the manifest is answered before the nodes are released."""
    driver = job()
    persist(driver, "node0", shard(0, 9))
    driver.finish()
    assert driver.state.phase == "running"
    committed(driver, 9)
    answer(driver, CommitCheckpoint, "node0")
    assert driver.state.phase == "succeeded"


def test_the_newest_manifest_is_ordered_first_and_alone_delays_the_end() -> None:
    """Storage that is slower than the saves always has an older one to write; the end of a job does not wait for it."""
    driver = job()
    for step in (7, 8, 9):
        persist(driver, "node0", shard(0, step))
    (first,) = open_orders(driver, CommitCheckpoint)
    assert first.command.step == 7
    committed(driver, 7)
    answer(driver, CommitCheckpoint, "node0")
    (second,) = open_orders(driver, CommitCheckpoint)
    assert second.command.step == 9
    driver.finish()
    assert driver.state.phase == "running"
    committed(driver, 9)
    answer(driver, CommitCheckpoint, "node0")
    assert driver.state.phase == "succeeded"
    assert verify(driver.events).mismatches == ()


def test_a_refused_manifest_that_a_newer_one_replaced_is_given_up() -> None:
    """Its files may be gone, and nothing would begin from it."""
    driver = job()
    persist(driver, "node0", shard(0, 7))
    for _ in range(4):
        refuse(driver)
        again_after(driver)
    persist(driver, "node0", shard(0, 9))
    refuse(driver)
    again_after(driver)
    committed(driver, 9)
    answer(driver, CommitCheckpoint, "node0")
    for _ in range(20):
        driver.wait()
        assert open_orders(driver, CommitCheckpoint) == []
    assert verify(driver.events).mismatches == ()


def test_the_end_waits_for_three_tries_of_the_last_manifest() -> None:
    """The storage may never return."""
    driver = job()
    persist(driver, "node0", shard(0, 9))
    driver.finish()
    for _ in range(2):
        refuse(driver)
        assert driver.state.phase == "running"
        again_after(driver)
    refuse(driver)
    assert driver.state.phase == "succeeded"
    assert verify(driver.events).mismatches == ()


def test_a_plan_waits_for_no_manifest_of_a_later_save() -> None:
    """Only for one up to the step that its own save ended with, unless a newer one is complete."""
    driver = job()
    for step in (7, 8, 9):
        persist(driver, "node0", shard(0, step))
    assert awaits_manifest(driver.state, 7) and awaits_manifest(driver.state)
    assert not awaits_manifest(driver.state, 6)
    committed(driver, 9)
    assert not awaits_manifest(driver.state, 7) and not awaits_manifest(driver.state)


def test_what_ranks_could_not_load_is_not_offered_again() -> None:
    """The state that the round was to resume from is the first of those that were refused."""
    driver = job()
    committed(driver, 5)
    committed(driver, 9)
    for expected, refused in ((9, ("step 9: damaged",)), (5, ())):
        rounds = len(of(driver, WorldFormed))
        driver.fail("node1", exitcode=-11)
        driver.settle(step=False)
        while len(of(driver, WorldFormed)) == rounds:
            assert driver.wait()
            driver.settle(step=False)
        formed = of(driver, WorldFormed)[-1]
        assert formed.resume is not None and formed.resume.step == expected
        life = driver.state.membership.nodes["node0"].incarnation
        loaded = StateLoaded(
            node="node0", incarnation=life, round=formed.round, step=5, source="storage", seconds=0.1, refused=refused
        )
        for _ in range(2):
            driver.say("node0", loaded)
    assert len(driver.state.training.saved.refused) == 1 and not driver.state.training.saved.unusable
    assert verify(driver.events).mismatches == ()


def test_failed_saves_raise_one_alert_until_one_succeeds() -> None:
    """Training goes on."""
    driver = job()
    life = driver.state.membership.nodes["node0"].incarnation
    failed = CheckpointFailed(node="node0", incarnation=life, round=1, step=9, reason="no space left on device")
    for _ in range(3):
        driver.say("node0", failed)
    assert len(of(driver, AlertRaised)) == 1
    committed(driver, 10)
    driver.say("node0", failed)
    alerts = of(driver, AlertRaised)
    assert len(alerts) == 2 and "no space left" in alerts[0].text
    assert driver.state.phase == "running" and driver.state.incident is None


def dying(*, held: dict[str, tuple[HeldShard, ...]], url: str = "/checkpoints") -> JobDriver:
    """A job of four ranks on two nodes whose rank 1 was killed; its survivors have staged their state."""
    driver = job(2, 2, policies=("dying_checkpoint",), url=url)
    driver.fail("node0", local_rank=1, exitcode=-9)
    for node in ("node0", "node1"):
        hold(driver, node, *held[node])
    for node in ("node0", "node1"):
        answer(driver, SaveCheckpoint, node)
    return driver


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


def test_without_a_place_for_checkpoints_survivors_keep_their_state_in_memory() -> None:
    """Nothing is written, and the next round resumes from memory."""
    four = [shard(rank, 5, ranks=4) for rank in range(4)]
    driver = dying(held={"node0": (four[0],), "node1": (four[2],)}, url="")
    assert open_orders(driver, PersistShards) == []
    driver.settle()
    assert of(driver, WorldFormed)[-1].resume == Resume(step=5, round=1, source="memory")


def copying(labels: Sequence[str], **declared: Any) -> JobDriver:
    """A job whose nodes copy their shards, each with its value of the label ``switch``."""
    chain = default_chain()
    options = DeclaredCheckpoints(**declared)
    policy = attrs.evolve(chain, declared=attrs.evolve(chain.declared, checkpoints=options))
    driver = JobDriver(len(labels), 1, policy=policy)
    driver.submit()
    for number, label in enumerate(labels):
        driver.join(f"node{number}", labels={"switch": label} if label else {}, copies_port=7000 + number)
    driver.settle()
    return driver


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
    hold(driver, "node0", mine, attrs.evolve(other, copy=True))
    assert resume_of(driver.state, world(driver)) == Resume(step=9, round=1, source="memory")
    (state,) = states_of(held_by(driver.state, [(each.node, each.incarnation) for each in world(driver)]))
    assert state.savers == {0: ("node0", 0), 1: ("node0", 1)}
    hold(driver, "node1", other, attrs.evolve(mine, copy=True))
    (state,) = states_of(held_by(driver.state, [(each.node, each.incarnation) for each in world(driver)]))
    assert state.savers == {0: ("node0", 0), 1: ("node1", 1)}
    assert "copies of step 9 of rank 1" in "".join(map(summary, driver.events))


def found(driver: JobDriver, *groups: tuple[int, ...], round_: int = 1) -> None:
    """Rank 0 reports which ranks registered the same state."""
    life = driver.state.membership.nodes["node0"].incarnation
    driver.say("node0", ReplicasFound(node="node0", incarnation=life, round=round_, groups=groups))


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


def test_a_rollback_whose_checkpoint_was_removed_meanwhile_fails() -> None:
    """The next policy restarts from what there is; else the training would begin from nothing."""
    driver = job(policies=("rollback_and_skip",))
    driver.state.policy.chain[0].options.update(before=5, skip=0)
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save", "rollback", "skip")))
    driver.step = 20
    for step in (5, 10):
        committed(driver, step)
    driver.observe("node1", "loss-nan")
    assert driver.state.incident.plan.terms.rollback_to == 10
    life = driver.state.membership.nodes["node0"].incarnation
    driver.say("node0", MemoryHeld(node="node0", incarnation=life, log=LOG, shards=()))
    driver.own(CheckpointCommitted(round=1, step=25, where="/checkpoints/25", kept=1, own=True))
    driver.settle()
    assert driver.wait()  # the back-off
    driver.settle()
    assert [each.policy for each in of(driver, IncidentEscalated)] == ["rollback_and_skip"]
    assert not of(driver, JobRolledBack) and of(driver, WorldFormed)[-1].resume.step == 25
    assert verify(driver.events).mismatches == ()
