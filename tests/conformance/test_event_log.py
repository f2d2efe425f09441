"""Conformance of log adapters: append, read, follow."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_harness import JOB, Harness, followed, me, note, notes, seqs

from ftcore.errors import Conflict, Fenced, NotFound, UsageError
from ftcore.events import Event, EventId, Kind, Unknown, encode
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.ports import GROUP_BYTES_MAX, EventLog


async def opened(place: Harness) -> tuple[EventLog, Term]:
    log = await place.open()
    return log, (await log.campaign(me())).term


async def put(log: EventLog, term: int, first: int, last: int, text: str = "") -> None:
    await log.append(notes(first, last, term, text), term=Term(term), expected_seq=Seq(first - 1))


def test_a_new_log_is_empty(conform):
    """An empty log ends at 0 and reads as nothing."""

    async def scenario(place: Harness) -> None:
        log = await place.open()
        assert log.job == JOB
        assert await log.last_seq() == 0
        assert await seqs(log) == []

    conform(scenario)


def test_events_come_back_in_order(conform):
    """What was appended in groups is read back equal, dense and in order, by any handle."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        for first, last in ((1, 1), (2, 40), (41, 43)):
            await put(log, term, first, last, f"group {first}")
        other = await place.open()
        for handle in (log, other):
            events = [event async for event in handle.read()]
            assert [encode(event) for event in events] == [
                encode(note(seq, term, f"group {1 if seq == 1 else 2 if seq < 41 else 41}")) for seq in range(1, 44)
            ]
            assert await handle.last_seq() == 43

    conform(scenario)


def test_a_part_can_be_read(conform):
    """``after`` is excluded and ``until`` included; parts beyond the end are empty."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        await put(log, term, 1, 7)
        await put(log, term, 8, 10)
        assert await seqs(log, 3, 8) == [4, 5, 6, 7, 8]
        assert await seqs(log, 9) == [10]
        assert await seqs(log, 0, 2) == [1, 2]
        assert await seqs(log, 8, 99) == [9, 10]
        assert await seqs(log, 5, 5) == []
        assert await seqs(log, 6, 4) == []
        assert await seqs(log, 10) == []
        assert await seqs(log, 11) == []

    conform(scenario)


def test_no_batch_is_empty(conform):
    """Parts of a log that are read in batches: none is empty, and together they are what ``read`` gives."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        await put(log, term, 1, 7)
        await put(log, term, 8, 10)
        await put(log, term, 11, 3_000)
        for after, until in ((0, None), (3, 8), (9, 1_234), (2_999, 9_999), (5, 5), (6, 4), (3_000, None)):
            end = None if until is None else Seq(until)
            batches = [[event.seq for event in batch] async for batch in log.read_batches(Seq(after), end)]
            assert all(batches)
            assert [seq for batch in batches for seq in batch] == await seqs(log, after, until)

    conform(scenario)


def test_a_conflict_tells_where_the_log_ends(conform):
    """An append with a wrong expected end changes nothing and raises the true one."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        await put(log, term, 1, 5)
        for first in (1, 4, 5, 7, 100):
            with pytest.raises(Conflict) as caught:
                await put(log, term, first, first + 1, "another")
            assert caught.value.last_seq == 5
        assert await seqs(log) == [1, 2, 3, 4, 5]
        await put(log, term, 6, 6)

    conform(scenario)


def test_of_two_appends_at_one_place_one_lands(conform):
    """Of concurrent appends at the same seq one succeeds; the others conflict."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        handles = [log, await place.open(), await place.open()]
        results = await asyncio.gather(
            *(put(handle, term, 1, 2, f"racer {i}") for i, handle in enumerate(handles)), return_exceptions=True
        )
        assert [type(result) for result in results].count(Conflict) == 2
        winner = results.index(None)
        assert [event.data.why async for event in log.read()] == [f"racer {winner}"] * 2

    conform(scenario)


def test_a_term_that_is_over_is_fenced(conform):
    """After a newer term was won, the older one cannot append, with any expected end."""

    async def scenario(place: Harness) -> None:
        log = await place.open()
        first = await log.campaign(me("first"))
        await put(log, first.term, 1, 3)
        await first.resign()
        other = await place.open()
        second = await other.campaign(me("second"))
        assert second.term > first.term
        for at in (1, 4, 9):
            with pytest.raises(Fenced):
                await put(log, first.term, at, at)
        await put(other, second.term, 4, 4)
        assert await seqs(log) == [1, 2, 3, 4]

    conform(scenario)


def test_a_term_that_never_was_is_fenced(conform):
    """No append without an election: neither with term 0 nor with an invented term."""

    async def scenario(place: Harness) -> None:
        log = await place.open()
        for term in (0, 1):
            with pytest.raises(Fenced):
                await put(log, term, 1, 1)
        leadership = await log.campaign(me())
        for term in (0, leadership.term - 1, leadership.term + 1):
            with pytest.raises(Fenced):
                await put(log, term, 1, 1)
        assert await log.last_seq() == 0

    conform(scenario)


def test_an_append_made_again_lands_once(conform):
    """A repeated append after a lost answer succeeds without a second copy."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        await put(log, term, 1, 3)
        await put(log, term, 1, 3)
        await put(log, term, 4, 6)
        await put(await place.open(), term, 4, 6)
        assert await seqs(log) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(Conflict):
            await put(log, term, 4, 6, "something else")
        with pytest.raises(Conflict):
            await put(log, term, 4, 7)

    conform(scenario)


def test_what_one_append_holds_is_limited(conform):
    """Groups over the limit, with gaps, or empty, are refused as programming errors; one at the limit is taken."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        room = GROUP_BYTES_MAX - len(encode(note(1, term)))
        for events in ([note(1, term, "x" * (room + 1))], [note(2, term)], [note(1, term), note(3, term)], []):
            with pytest.raises(ValueError, match=r"."):
                await log.append(events, term=term, expected_seq=Seq(0))
        assert await log.last_seq() == 0
        await log.append([note(1, term, "x" * room)], term=term, expected_seq=Seq(0))
        (event,) = [event async for event in log.read()]
        assert len(event.data.why) == room

    conform(scenario)


def test_ten_thousand_events(conform):
    """A long log is appended in large groups and read back whole, in parts, and by following."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        for first in range(1, 10_000, 2_500):
            await put(log, term, first, first + 2_499)
        assert await seqs(log) == list(range(1, 10_001))
        assert await seqs(log, 4_990, 7_510) == list(range(4_991, 7_511))
        assert await followed(log, 17, 10_000) == list(range(18, 10_001))

    conform(scenario)


def test_unknown_types_are_kept_as_they_are(conform):
    """An event from a newer ftcore comes back byte for byte."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        fields = {"z": [1, 2.5, None, {"b": "\u2713\n\0", "a": -7}], "a": 1e300, "n": 2**63 - 1}
        strange = Event(
            seq=Seq(1),
            id=EventId("master", "1", 1),
            time=Nanoseconds(5),
            type="moon.eclipsed",
            kind=Kind.FACT,
            source="sky",
            term=term,
            v=7,
            ignorable=True,
            data=Unknown(fields=fields),
        )
        await log.append([strange], term=term, expected_seq=Seq(0))
        (event,) = [event async for event in (await place.open()).read()]
        assert event == strange
        assert encode(event) == encode(strange)

    conform(scenario)


def test_followers_see_each_event_once(conform):
    """Followers that start anywhere during appends see every later event exactly once."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        other = await place.open()
        followers = []
        last = 0
        for group in range(60):
            size = 1 + group % 4
            if group % 10 == 0:
                handle = (log, other)[group // 10 % 2]
                followers.append((group, asyncio.create_task(followed(handle, group, 149))))
            await put(log, term, last + 1, last + size)
            last += size
            await asyncio.sleep(0)
        assert last == 150
        for start, follower in followers:
            assert await follower == list(range(start + 1, 150))

    conform(scenario)


def test_a_follower_waits_for_what_comes(conform):
    """An idle follower gets the next event, also if it started after the end."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        other = await place.open()
        here, beyond = (asyncio.create_task(followed(other, after, 3)) for after in (0, 2))
        await asyncio.sleep(0.05)
        await put(log, term, 1, 2)
        await asyncio.sleep(0.05)
        await put(log, term, 3, 3)
        assert await here == [1, 2, 3]
        assert await beyond == [3]

    conform(scenario)


def test_following_goes_on_after_reopening(conform):
    """A reader that reopens the log continues from the last seq, without gap or repeat."""

    async def scenario(place: Harness) -> None:
        log, term = await opened(place)
        await put(log, term, 1, 30)
        reader = await place.open()
        seen = await followed(reader, 0, 12)
        await reader.close()
        await put(log, term, 31, 40)
        seen += await followed(await place.open(), seen[-1], 40)
        assert seen == list(range(1, 41))

    conform(scenario)


def test_closing_keeps_the_log(conform):
    """After all handles are closed, the log can be opened again and appended to."""

    async def scenario(place: Harness) -> None:
        store = place.store()
        log = await store.open(JOB, create=True)
        term = (await log.campaign(me())).term
        await put(log, term, 1, 4)
        await log.close()
        await log.close()
        await store.close()
        log, newer = await opened(place)
        assert newer > term
        assert await seqs(log) == [1, 2, 3, 4]
        await put(log, newer, 5, 5)

    conform(scenario)


def test_stores_list_and_find_jobs(conform):
    """A job is listed after it was created; creating it is idempotent."""

    async def scenario(place: Harness) -> None:
        store = place.store()
        assert await store.jobs() == []
        with pytest.raises(NotFound):
            await store.open(JOB)
        assert await store.jobs() == []
        await store.open(JOB, create=True)
        log = await store.open(JOB, create=True)
        assert await store.jobs() == [JOB]
        assert (await store.open(JOB)).job == log.job == JOB
        with pytest.raises(NotFound):
            await store.open(JobName("other"))
        for bad in ("", "../x", "a/b", ".x", "-x", "x" * 101, "a b", "a\n"):
            with pytest.raises(UsageError):
                await store.open(JobName(bad), create=True)

    conform(scenario)


operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "again", "conflict", "stale", "unelected", "elect", "reopen"]),
        st.integers(min_value=1, max_value=4),
    ),
    max_size=12,
)


async def transcript(place: Harness, steps: list[tuple[str, int]]) -> list[object]:
    """Results of a sequence of operations, without terms, which differ between adapters."""
    log = await place.open()
    leadership = await log.campaign(me())
    old = Term(leadership.term - 1)
    previous: tuple[int, int] = (1, 0)
    said: list[object] = []
    for what, size in steps:
        last = await log.last_seq()
        first, term = last + 1, leadership.term
        try:
            if what == "elect":
                await leadership.resign()
                old, leadership = leadership.term, await log.campaign(me())
                previous = (1, 0)
            elif what == "reopen":
                log = await place.open()
            elif what == "again" and previous[1]:
                await put(log, term, *previous)
            elif what == "conflict":
                await put(log, term, first + size, first + size)
            elif what == "stale":
                await put(log, old, first, first)
            elif what == "unelected":
                await put(log, term + size, first, first)
            elif what == "append":
                await put(log, term, first, last + size)
                previous = (first, last + size)
            said.append((what, await log.last_seq()))
        except (Conflict, Fenced) as error:
            said.append((what, type(error), getattr(error, "last_seq", None)))
    return [*said, *[(event.seq, event.data) async for event in log.read()]]


@given(steps=operations)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_interleaving_gives_what_the_memory_log_gives(conform_shared, steps):
    """Any sequence of appends, repeats, conflicts, elections and reopenings has the same results as the reference."""

    async def scenario(place: Harness) -> None:
        reference = Harness(f"memory://{place.url}", shared=False)
        expected = await transcript(reference, steps)
        assert await transcript(place, steps) == expected
        await reference.close()

    conform_shared(scenario)
