"""What an alert says of the first failure: the same as ``ftctl failures``, from the same events."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened
from ftcore.events.registry import Kind
from ftcore.faults.failure_notes import NOTES_MAX, TEXT_CHARS_MAX, FailureNotes
from ftcore.logs.archive import read_events
from ftcore.replay.explain import Explainer
from ftcore.replay.failures import failure_json
from ftcore.replay.reading import fold_recorded
from ftcore.states.model import JobState
from ftcore.testing.driver import JobDriver

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "logs").glob("*/*.ftlog"))


def groups(events: list[Event]) -> list[list[Event]]:
    """The events as a master makes them durable: each fact with its decisions."""
    found: list[list[Event]] = []
    for event in events:
        if event.kind is Kind.FACT or not found:
            found.append([])
        found[-1].append(event)
    return found


def noted(events: list[Event], size: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """The notes when each incident was opened, and what ``ftctl failures`` prints then; ``size`` groups in a batch."""
    notes, explainer, state = FailureNotes(), Explainer(), JobState()
    mine: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    made = groups(events)
    for start in range(0, len(made), size):
        batch = [event for group in made[start : start + size] for event in group]
        for event in batch:
            fold_recorded(state, event)
            explainer.feed(event)
        notes.feed(batch, state)
        for event in batch:
            if type(event.data) is IncidentOpened and event.incident is not None:
                newest = next(each for each in explainer.incidents() if each.id == event.incident)
                found = notes.of(event.incident, "job")
                mine[event.incident] = None if found is None else found.fields
                theirs[event.incident] = failure_json(newest, "job") if newest.failures else None
    return mine, theirs


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_same_as_ftctl_failures(path: Path) -> None:
    """Of every recorded incident with a failure, at the moment when its alert is raised."""
    events = list(read_events(path))
    mine, theirs = noted(events)
    assert any(theirs.values()) or not any(event.type == "worker.failed" for event in events)
    for incident, wanted in theirs.items():
        if wanted is not None:
            found = json.loads(json.dumps(mine[incident]))
            clocks = {name: wanted["first"][name] for name in ("time", "time_ns")}  # not corrected in an alert
            found["first"] |= clocks
            assert found == json.loads(json.dumps(wanted))


def failed_job(message: str = "ValueError: bad", **more: Any) -> list[Event]:
    driver = JobDriver(nodes=2)
    driver.start()
    driver.fail("node1", exitcode=1, message=message, **more)
    driver.settle()
    return driver.events


def test_incident_that_is_over_in_its_batch() -> None:
    """A batch may hold the whole incident, whose evidence is then no longer in the state."""
    events = failed_job()
    mine, _ = noted(events, size=len(events))
    assert mine["i1"]["first"]["message"] == "ValueError: bad" and mine["i1"]["first"]["rank"] == 1


def test_secrets_and_long_texts() -> None:
    """A message may hold a token, and may be megabytes long."""
    notes, state = FailureNotes(), JobState()
    token = "hf_" + "a" * 30
    events = failed_job(f"ValueError: {token} " + "x" * 100_000)
    for event in events:
        fold_recorded(state, event)
    notes.feed(events, state)
    found = notes.of("i1", "job")
    assert found is not None
    assert "[redacted]" in found.line and token not in found.line + json.dumps(found.fields)
    assert len(found.fields["first"]["message"]) <= TEXT_CHARS_MAX + 1


def test_nothing_failed() -> None:
    """An alert about no incident, about an unknown one and about a request has no first failure."""
    driver = JobDriver(nodes=2)
    driver.start()
    driver.command("pause")
    driver.settle()
    notes = FailureNotes()
    notes.feed(driver.events, driver.state)
    assert [notes.of(each, "job") for each in (None, "i1", "i9")] == [None] * 3


def test_bounded() -> None:
    """Notes of old incidents are dropped."""
    driver = JobDriver(nodes=2)
    driver.start()
    for number in range(NOTES_MAX + 3):
        driver.fail("node0", exitcode=1, message=f"ValueError: {'x' * number}")
        driver.settle()
    notes, state = FailureNotes(), JobState()
    for event in driver.events:
        fold_recorded(state, event)
        notes.feed((event,), state)
    kept = [number for number in range(1, NOTES_MAX + 4) if notes.of(f"i{number}", "job") is not None]
    assert len(kept) <= NOTES_MAX and kept[-1] == max(kept)
