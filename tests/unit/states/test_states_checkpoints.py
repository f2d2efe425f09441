"""Which checkpoints the state assumes to exist."""

import pytest

from ftcore.engine.orders import slice_of
from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.policies.file.config import parse
from ftcore.replay import verify
from ftcore.states.revisions import NEWEST, RESUME_LATER
from ftcore.testing.driver import JobDriver


def kept(driver: JobDriver, *kept: int) -> list[int]:
    """The assumed checkpoints after one every ten steps, with the number that the script keeps."""
    driver.start()
    for place, count in enumerate(kept, start=1):
        driver.own(CheckpointCommitted(round=1, step=10 * place, kept=count))
    return driver.state.training.checkpoints


def test_without_a_declared_number_all_are_assumed_to_exist() -> None:
    """Up to a bound."""
    assert kept(JobDriver(), *[0] * 5) == [10, 20, 30, 40, 50]
    assert len(kept(JobDriver(), *[0] * 100)) == 64


def test_the_script_declares_how_many_are_kept() -> None:
    """A removed checkpoint is no rollback target; the newest declaration counts."""
    assert kept(JobDriver(), 3, 3, 3, 3, 3) == [30, 40, 50]
    assert kept(JobDriver(), 0, 0, 0, 0, 1) == [50]


def test_else_the_policy_file_declares_it() -> None:
    """The declaration of the script overrides the file's."""
    text = "version: 1\njob: {checkpoints: {kept: 2}}\n"
    assert kept(JobDriver(policy=parse(text, "file")), 0, 0, 0) == [20, 30]
    assert kept(JobDriver(policy=parse(text, "file")), 3, 3, 3) == [10, 20, 30]


def test_those_of_every_so_many_steps_are_kept_too() -> None:
    """As retention keeps them on storage: the first one of every 30 steps, beside the newest one."""
    driver = JobDriver()
    driver.start()
    for step in range(10, 101, 10):
        driver.own(CheckpointCommitted(round=1, step=step, where=f"/saved/{step}", kept=1, keep_every=30, own=True))
    assert driver.state.training.checkpoints == [10, 30, 60, 90, 100]
    assert [each.step for each in driver.state.training.saved.stored] == [10, 30, 60, 90, 100]


def test_abilities_of_the_file_count_whichever_comes_first() -> None:
    """A master states the policy before it submits the run."""
    driver = JobDriver(policy=parse("version: 1\njob: {abilities: [rollback]}\n", "file"))
    driver.own(driver.policy)
    driver.start()
    assert driver.state.can("rollback")


@pytest.mark.parametrize(("decides", "step"), [(RESUME_LATER - 1, 80), (NEWEST, 110)])
def test_after_a_rollback_the_next_round_resumes_from_what_was_committed_since(decides: int, step: int) -> None:
    """Also if a node was lost before its first step after the rollback: no step after that checkpoint is repeated."""
    policy = parse("version: 1\nchain: [{rollback_and_skip: {before: 20}}, process_restart, stop]\n", "file")
    driver = JobDriver(policy=policy, abilities=("rollback", "skip"), decides=decides)
    driver.start()
    for count in (79, 20):
        driver.make_steps(count)
        driver.commit()
    driver.observe("node0", "loss-spike")
    driver.settle(step=False)
    assert driver.state.rounds.newest == 2 and driver.state.training.resume_step == 80
    driver.own(CheckpointCommitted(round=1, step=105))
    assert driver.state.training.resume_step == 80, "a late report of the round before"
    driver.step = 110
    driver.commit()
    driver.lose("node1")
    driver.join("node1")
    driver.settle(step=False)
    driver.wait()
    driver.settle(step=False)
    assert driver.state.rounds.newest == 3
    assert slice_of(driver.state, "node0").resume_step == step
    assert verify(driver.events).mismatches == ()
