"""Verification: decided again, and every difference told."""

import asyncio

import msgspec
import pytest

from ftcore.errors import LogCorrupt, UnknownEvent
from ftcore.events import decode, encode
from ftcore.events.envelope import Event, EventId, Unknown
from ftcore.events.job import JobParked, JobProgressed
from ftcore.events.registry import Kind
from ftcore.replay import fold_log, fold_log_async, verify, verify_async
from ftcore.replay.verification import MISMATCHES_MAX
from ftcore.states.model import digest
from ftcore.testing.driver import JobDriver


def recovered(incidents: int = 1) -> JobDriver:
    driver = JobDriver(nodes=2, slots=2, tick_s=200)
    driver.start()
    for number in range(incidents):
        driver.make_steps(2)
        driver.fail(f"node{number % 2}", exitcode=-9)
        driver.settle()
    assert driver.state.phase == "running"
    return driver


def stored(driver: JobDriver) -> list[Event]:
    return [decode(encode(event)) for event in driver.events]


def altered(events: list[Event], seq: int, **fields) -> list[Event]:
    """The log with one event's data or envelope changed."""
    event = events[seq - 1]
    data = {key: fields.pop(key) for key in list(fields) if hasattr(event.data, key) and key not in ("type",)}
    changed = msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, **data), **fields)
    return [*events[: seq - 1], changed, *events[seq:]]


def renumbered(events: list[Event]) -> list[Event]:
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(events, 1)]


def seq_of(events: list[Event], type_: str, which: int = 0) -> int:
    return [event.seq for event in events if event.type == type_][which]


def test_a_log_as_it_was_written_verifies():
    """Nothing differs, and the state that is left is the folded one."""
    driver = recovered(3)
    report = verify(stored(driver))
    assert (report.ok, report.complete, report.events, report.skipped) == (True, True, len(driver.events), 0)
    assert report.digest == digest(driver.state) == digest(fold_log(stored(driver)))


def test_reading_asynchronously_is_the_same():
    """Folding and verifying what comes from a store gives what they give of a list."""
    driver = recovered()

    async def events():
        for event in stored(driver):
            yield event

    async def both():
        return await fold_log_async(events(), until=20), await verify_async(events())

    state, report = asyncio.run(both())
    assert digest(state) == digest(fold_log(stored(driver), until=20))
    assert report.ok


def test_one_altered_decision_is_found_with_its_fields():
    """The seq, the field, what was expected and what was found; everything behind it still agrees."""
    driver = recovered(2)
    events = stored(driver)
    seq = next(event.seq for event in events if event.type == "policy.considered" and event.data.verdict == "take")
    report = verify(altered(events, seq, deadline_s=7.0, reason="because"))
    [mismatch] = report.mismatches
    assert mismatch.seq == seq
    assert sorted(mismatch.differences) == [
        "data.deadline_s: expected 1800.0, found 7.0",
        'data.reason: expected "restart 1 of 20 in 1h", found "because"',
    ]
    assert str(mismatch).startswith(f"event {seq}: data.")
    assert not report.ok
    assert report.complete


@pytest.mark.parametrize(
    ("field", "value"),
    [("time", 1), ("cause", 2), ("term", 9), ("incident", "i9"), ("id", EventId("master", "9", 1)), ("v", 7)],
)
def test_the_envelope_is_compared_too(field, value):
    """A decision that differs in its envelope alone is a mismatch."""
    events = stored(recovered())
    seq = seq_of(events, "policy.considered")
    report = verify(altered(events, seq, **{field: value}))
    assert seq in [mismatch.seq for mismatch in report.mismatches]


def test_another_decision_in_its_place():
    """A decision of another type is told with what was expected."""
    events = stored(recovered())
    seq = seq_of(events, "action.done")
    other = events[seq_of(events, "round.started") - 1]
    events[seq - 1] = msgspec.structs.replace(events[seq - 1], type=other.type, data=other.data)
    [mismatch, *_] = verify(events).mismatches
    assert mismatch.differences[0].startswith("type: expected action.done")
    assert mismatch.differences[0].endswith("found round.started")


def test_a_missing_decision():
    """What should have been decided and was not is told by its type."""
    events = stored(recovered())
    seq = seq_of(events, "action.done", -1)
    report = verify(renumbered(events[: seq - 1] + events[seq:]))
    assert report.mismatches[0].found is None
    assert report.mismatches[0].seq == seq
    assert report.mismatches[0].differences[0].startswith('missing decision action.done {"effect":"start_workers')


def test_an_extra_decision():
    """What was recorded and would not be decided is told by its type."""
    events = stored(recovered())
    done = events[seq_of(events, "action.done", -1) - 1]
    extra = msgspec.structs.replace(done, seq=done.seq + 1)
    report = verify([*events[: done.seq], extra])
    [mismatch] = report.mismatches
    assert (mismatch.seq, mismatch.expected) == (done.seq + 1, None)
    assert mismatch.differences == ("extra decision action.done: no further decision is expected here",)


def test_every_mismatch_is_found_up_to_a_bound():
    """Each altered decision is one mismatch; after so many the comparing is given up, the folding is not."""
    driver = recovered(MISMATCHES_MAX + 5)
    events = stored(driver)
    takes = [event.seq for event in events if event.type == "policy.considered" and event.data.verdict == "take"]
    for seq in takes[:3]:
        events = altered(events, seq, grace_s=99.0)
    assert verify(events).mismatches[0].seq == takes[0]
    for seq in takes:
        events = altered(events, seq, reason="because")
    report = verify(events)
    assert [mismatch.seq for mismatch in report.mismatches] == takes[:MISMATCHES_MAX]
    assert not report.complete
    assert report.events == len(events)
    assert report.state.seq == len(events)


def test_an_altered_fact_shows_in_its_decisions():
    """A fact cannot be decided again, but what followed from it no longer follows."""
    events = stored(recovered())
    report = verify(altered(events, seq_of(events, "worker.failed"), exitcode=-11))
    assert report.mismatches[0].seq == seq_of(events, "incident.opened")
    assert any("SIGSEGV" in line for line in report.mismatches[0].differences)


def test_a_log_that_contradicts_itself_is_told():
    """An event that cannot be folded ends the comparison, in words; folding alone refuses the log."""
    events = stored(recovered())
    seq = seq_of(events, "world.members")
    broken = altered(events, seq, round=77)
    report = verify(broken)
    assert not report.complete
    assert "contradicts the events before it" in str(report.mismatches[-1])
    with pytest.raises(LogCorrupt, match=r"event \d+ \(world.formed\) contradicts the events before it"):
        fold_log(broken)


def test_a_decision_without_a_fact_is_a_mismatch():
    """A log cannot begin with a decision."""
    events = stored(recovered())
    first = msgspec.structs.replace(events[5], seq=1)
    report = verify([first])
    assert report.mismatches[0].differences == ("decision round.planned has no fact before it",)


def test_a_cut_group_is_no_mismatch():
    """Reading up to any event compares what is there, and leaves the state at that very event."""
    driver = recovered()
    events = stored(driver)
    for until in range(1, len(events) + 1):
        report = verify(events, until=until)
        assert report.ok, report.mismatches
        assert report.digest == digest(fold_log(events, until=until))


@pytest.mark.parametrize("with_cause", [True, False])
def test_a_parked_fact_is_not_decided_again(with_cause):
    """The group of ``job.parked`` is folded only; what an operator does afterwards is decided again."""
    from ftcore.events.operator import OperatorCommanded

    driver = recovered()
    if with_cause:
        driver.own(JobProgressed(round=2, step=9))
    last = driver.events[-1]
    seq = last.seq + 1
    parked = Event(
        seq=seq,
        id=EventId("master", "1", seq),
        time=last.time,
        type="job.parked",
        kind=Kind.DECISION,
        source="master",
        term=last.term,
        cause=last.seq if with_cause else None,
        data=JobParked(error="KeyError: 'x'", fact="{}", version="0.1.0"),
    )
    from ftcore.states.fold import fold

    fold(driver.state, parked)
    driver.events.append(parked)
    driver.own(JobProgressed(round=2, step=10))
    driver.own(OperatorCommanded(command="resume", who="me"))
    assert driver.state.phase == "running"
    report = verify(stored(driver))
    assert (report.ok, report.skipped) == (True, 1)
    assert report.digest == digest(driver.state)


def test_events_of_another_version_are_folded_only():
    """A group with an unknown ignorable decision was made by another ftcore; one that may not be ignored stops it."""
    events = stored(recovered())
    done = events[seq_of(events, "action.done", -1) - 1]
    newer = msgspec.structs.replace(
        done, seq=done.seq + 1, type="node.scored", v=2, ignorable=True, data=Unknown(fields={"score": 1})
    )
    report = verify([*events[: done.seq], newer])
    assert (report.ok, report.skipped) == (True, 1)
    with pytest.raises(UnknownEvent, match=r"node.scored v2"):
        verify([*events[: done.seq], msgspec.structs.replace(newer, ignorable=False)])
