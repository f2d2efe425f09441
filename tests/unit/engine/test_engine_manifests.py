"""Orders of manifests, what waits for them, and saves that fail."""

import pytest
from checkpoint_jobs import answer, committed, job, of, open_orders, persist, shard

from ftcore.commands import CommitCheckpoint
from ftcore.engine.checkpoints import COMMIT_TRIES, awaits_manifest
from ftcore.engine.orders import order_for
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import (
    CheckpointFailed,
)
from ftcore.events.policy import AlertRaised
from ftcore.events.world import WorldFormed
from ftcore.replay import verify
from ftcore.testing.driver import JobDriver


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


def test_older_manifests_do_not_delay_the_newest() -> None:
    """No order is answered: at most one older one is ordered for each order of the newest, which the end waits for."""
    driver = job()
    for step in range(1, 9):
        persist(driver, "node0", shard(0, step))
    driver.finish()
    while driver.state.phase == "running":
        assert driver.wait(), "an order is not answered, or a delay ends"
    commands = [ordered.command for ordered in of(driver, ActionOrdered)]
    steps = [each.step for each in commands if isinstance(each, CommitCheckpoint)]
    assert steps == [1, 8, 8, 7, 8, 6], "the last one is not waited for"
    assert verify(driver.events).mismatches == ()


def test_a_plan_waits_neither_for_older_manifests_nor_beyond_the_tries_of_later_ones() -> None:
    """Orders of later ones come first: those of its own may never come."""
    driver = job()
    for step in (7, 8, 9):
        persist(driver, "node0", shard(0, step))
    waits = 0
    while awaits_manifest(driver.state, 8):
        waits += 1
        assert waits < 10
        again_after(driver)
        refuse(driver)
    orders = {each.step: each.tries for each in driver.state.training.saved.saving}
    assert orders[8] + orders[9] == COMMIT_TRIES
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
