"""What a round resumes from: memory, copies and storage; what does not count."""

import msgspec
import pytest
from checkpoint_jobs import LOG, committed, hold, job, of, persist, shard, world

from ftcore.cli.ctl_lines import summary
from ftcore.engine.orders import slice_of
from ftcore.engine.turn import Turn, own_fact, sequence
from ftcore.events.checkpoint import (
    CheckpointCommitted,
    CheckpointFound,
    CheckpointOnStorage,
    MemoryHeld,
    Resume,
    StateLoaded,
)
from ftcore.events.incident import IncidentEscalated
from ftcore.events.job import JobRolledBack
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AbilityDeclared
from ftcore.events.world import WorldFormed
from ftcore.ids import Nanoseconds
from ftcore.replay import verify
from ftcore.states.resume import resume_of
from ftcore.testing.driver import JobDriver


def turn_back(driver: JobDriver, step: int) -> None:
    """Fold a rollback as a decision of the engine."""
    driver.now += driver.tick
    fact = own_fact(OperatorCommanded(command="note", who="test", why="a rollback"))
    one = Turn(driver.state, sequence(driver.state, fact, now=Nanoseconds(driver.now), term=driver.term))
    one.emit(JobRolledBack(step=step, before=9, reason="loss"))


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
    own = [msgspec.structs.replace(shard(1, step), tensors=False) for step in (7, 8)]
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
