"""A spike of the loss opens an incident once enough ranks find it."""

import pytest

from ftcore.events.incident import IncidentOpened
from ftcore.events.job import JobProgressed
from ftcore.replay import verify
from ftcore.states.revisions import RANKS_AGREE
from ftcore.testing.driver import JobDriver


def job(nodes: int = 4, **options: int) -> JobDriver:
    """A job with two ranks on each node."""
    driver = JobDriver(nodes, 2, **options)
    driver.start()
    return driver


def spike(driver: JobDriver, node: int, at: int, found: int, reporting: int = 2, kind: str = "loss-spike") -> None:
    """A node reports a spike."""
    values = {"loss": 9.0, "at": float(at), "ranks": float(found), "reporting": float(reporting)}
    driver.observe(f"node{node}", kind, values=values)


def progress(driver: JobDriver, reporting: int) -> None:
    """The master records how many ranks report a loss."""
    assert driver.state.rounds.world is not None
    driver.own(JobProgressed(round=driver.state.rounds.world.round, step=5, loss=1.0, reporting=reporting))


def opened(driver: JobDriver) -> int:
    """The number of incidents."""
    return sum(isinstance(event.data, IncidentOpened) for event in driver.events)


def test_half_of_the_ranks_agree() -> None:
    """Ranks of several nodes count together; those that come later open no second incident."""
    driver = job()
    progress(driver, 8)
    spike(driver, 0, 100, 1)
    spike(driver, 0, 100, 1)  # the same rank again
    spike(driver, 1, 101, 2)
    assert opened(driver) == 0
    spike(driver, 2, 99, 1)
    assert opened(driver) == 1
    spike(driver, 3, 100, 2)
    assert opened(driver) == 1
    assert verify(driver.events).ok


def test_spikes_of_other_steps_and_kinds_are_others() -> None:
    """Two ranks with unusual samples, each at its own time."""
    driver = job(nodes=2)
    progress(driver, 4)
    spike(driver, 0, 100, 1)
    spike(driver, 1, 140, 1)
    spike(driver, 0, 141, 1, kind="loss-divergence")
    assert opened(driver) == 0
    spike(driver, 0, 142, 1)
    assert opened(driver) == 1


@pytest.mark.parametrize(("reporting", "needed"), [(2, 4), (1, 1)], ids=["all ranks report", "one rank does"])
def test_before_the_first_sample_of_progress(reporting: int, needed: int) -> None:
    """If all ranks of a node report a loss, all nodes' do; else nothing is known of the others."""
    driver = job()
    for node in range(needed):
        assert opened(driver) == 0
        spike(driver, node, 100, 1, reporting)
    assert opened(driver) == 1


def test_only_the_last_stage_reports() -> None:
    """As in a pipeline: the other nodes' ranks have no say."""
    driver = job()
    progress(driver, 2)
    spike(driver, 3, 100, 1)
    assert opened(driver) == 1


def test_a_loss_that_is_no_number_needs_no_other_rank() -> None:
    """The next gradients spread it."""
    driver = job()
    progress(driver, 8)
    spike(driver, 0, 100, 1, kind="loss-nan")
    assert opened(driver) == 1


def test_earlier_masters_asked_one_rank() -> None:
    """Their logs replay as they were written."""
    driver = job(decides=RANKS_AGREE - 1)
    progress(driver, 8)
    spike(driver, 0, 100, 1)
    assert opened(driver) == 1
    assert verify(driver.events).ok
