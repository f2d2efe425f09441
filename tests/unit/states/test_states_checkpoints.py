"""Which checkpoints the state counts on."""

from ftcore.events.job import CheckpointCommitted
from ftcore.policies.config import parse
from ftcore.testing.driver import JobDriver


def kept(driver: JobDriver, *kept: int) -> list[int]:
    """The steps counted on after a checkpoint every ten steps, with what the script says is kept."""
    driver.start()
    for place, count in enumerate(kept, start=1):
        driver.own(CheckpointCommitted(round=1, step=10 * place, kept=count))
    return driver.state.checkpoints


def test_all_are_counted_on_where_nobody_says_what_is_kept() -> None:
    """Up to a bound."""
    assert kept(JobDriver(), *[0] * 5) == [10, 20, 30, 40, 50]
    assert len(kept(JobDriver(), *[0] * 100)) == 64


def test_the_script_says_what_is_kept() -> None:
    """What it removed is not gone back to; the newest word counts."""
    assert kept(JobDriver(), 3, 3, 3, 3, 3) == [30, 40, 50]
    assert kept(JobDriver(), 0, 0, 0, 0, 1) == [50]


def test_else_the_policy_file_says_it() -> None:
    """The script's own word comes before the file's."""
    text = "version: 1\njob: {checkpoints_kept: 2}\n"
    assert kept(JobDriver(policy=parse(text, "file")), 0, 0, 0) == [20, 30]
    assert kept(JobDriver(policy=parse(text, "file")), 3, 3, 3) == [10, 20, 30]


def test_abilities_of_the_file_count_whichever_comes_first() -> None:
    """A master states the policy before it submits the run."""
    driver = JobDriver(policy=parse("version: 1\njob: {abilities: [rollback]}\n", "file"))
    driver.own(driver.policy)
    driver.start()
    assert driver.state.can("rollback")
