"""Logs for tests of reports, made by the production engine."""

from pathlib import Path

from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.events.worker import FaultObserved, StepTimes
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter
from ftcore.policies.file.config import default_chain
from ftcore.testing.driver import JobDriver

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "\x1b[31m\u202e%%SCRIPT%%"
)
"""Markup, a terminal escape, a character that turns the order of writing, and a placeholder of the page."""


def stored(path: Path, events: list[Event], job: str = "demo") -> str:
    with ArchiveWriter(path, JobName(job)) as writer:
        for event in events:
            writer.add(event)
    return f"file:{path}"


def eventful() -> JobDriver:
    """A job with progress, two faults, step times of ranks and a flagged loss; it trains."""
    driver = JobDriver(nodes=3, slots=2, tick_s=0.5)
    driver.start()
    train(driver, 12)
    driver.fail("node1", exitcode=-9, message="RuntimeError: lost")
    driver.settle()
    train(driver, 8)
    last = (StepTimes(rank=2, step=20, ago_ms=40, steps=(1, 2), took_ms=(100, 240)),)
    driver.say("node1", observed(driver, "loss-spike", {"loss": 9.5, "at": 19.0}, last))
    driver.settle()
    driver.say("node2", observed(driver, "norm-spike", {"norm": 80.0, "at": 20.0}, ()))
    driver.settle()
    driver.fail("node1", exitcode=1, message="ValueError: bad")
    driver.settle()
    return driver


def train(driver: JobDriver, steps: int) -> None:
    for _ in range(steps):
        driver.step += 1
        driver.own(JobProgressed(round=driver.state.rounds.newest, step=driver.step, loss=3.0 - driver.step / 50))


def observed(
    driver: JobDriver, kind: str, values: dict[str, float], last: tuple[StepTimes, ...], message: str = ""
) -> FaultObserved:
    return FaultObserved(
        node="node1",
        incarnation="node1-1",
        round=driver.state.rounds.newest,
        source="detector",
        kind=kind,
        rank=2,
        message=message or kind,
        step=driver.step,
        absolute=True,
        values=values,
        last=last,
    )


def hostile(text: str = HOSTILE) -> JobDriver:
    """A job in whose texts an attacker wrote."""
    driver = JobDriver(nodes=2, slots=1, policy=default_chain(), tick_s=0.5)
    driver.start()
    train(driver, 3)
    driver.fail("node0", exitcode=1, message=text, tail=text)
    driver.settle()
    return driver
