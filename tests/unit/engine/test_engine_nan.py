"""A loss that is NaN for many steps in a row: an alert, a line in the status, a word at the end."""

from typing import Any

from ftcore.events.job import JobFinished, JobProgressed
from ftcore.events.policy import AlertRaised
from ftcore.events.worker import LASTING_NAN
from ftcore.launch.narrator import Narrator
from ftcore.replay import verify
from ftcore.replay.status import status_of
from ftcore.testing.driver import JobDriver


def spoiled(*nodes: str) -> JobDriver:
    """A job whose nodes said that the loss is NaN since step 40."""
    driver = JobDriver(2)
    driver.start()
    driver.make_steps(48)
    for node in nodes or ("node0", "node1"):
        driver.observe(node, LASTING_NAN, values={"since": 40.0, "count": 10.0})
    return driver


def test_one_alert_names_both_remedies() -> None:
    """Once for all nodes, and without an incident: nothing is stopped."""
    driver = spoiled()
    [alert] = [event.data for event in driver.events if isinstance(event.data, AlertRaised)]
    assert alert.severity == "critical"
    for word in ("since step 40", "rollback_and_skip", "recompute_step", "TRE"):
        assert word in alert.text
    assert (driver.state.incidents, str(driver.state.phase)) == (0, "running")
    assert verify(driver.events).ok


def test_the_status_shows_it_and_the_end_says_it() -> None:
    """With the step that it began at."""
    driver = spoiled()
    assert status_of(driver.state).nan_since == 40
    driver.finish()
    finished = next(event.data for event in driver.events if isinstance(event.data, JobFinished))
    assert (finished.outcome, finished.exit_code) == ("succeeded", 0)
    assert "the loss was NaN or infinite from step 40 on" in finished.reason


def test_a_finite_loss_takes_it_back() -> None:
    """A later sample with a finite loss ends the warning; one without a loss does not."""
    driver = spoiled()
    driver.own(JobProgressed(round=1, step=60))
    assert status_of(driver.state).nan_since == 40
    driver.own(JobProgressed(round=1, step=70, loss=1.5))
    assert status_of(driver.state).nan_since is None
    driver.finish()
    finished = next(event.data for event in driver.events if isinstance(event.data, JobFinished))
    assert "NaN" not in finished.reason


def test_it_is_printed_on_the_console() -> None:
    """The text of the alert is a line of the narration of ``ftrun``."""
    driver = spoiled("node1")
    narrator = Narrator(Any, job="j")  # its log is only followed once it is entered
    lines = [narrator.line(event) for event in driver.events]
    assert any("since step 40" in line and "rollback_and_skip" in line for line in lines)
