"""Which checkpoints the state assumes to exist."""

from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.policies.file.config import parse
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
