"""Conformance of log retention: snapshots, truncation, archives."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from log_harness import JOB, Harness, followed, me, notes, seqs

from ftcore.errors import Conflict, Fenced, LogCorrupt, Truncated
from ftcore.events import encode
from ftcore.events.codec import GENESIS, chain
from ftcore.ids import Seq, Term
from ftcore.logs.archived import JoinedLog
from ftcore.logs.pieces import FileArchive
from ftcore.ports import EventLog, Snapshot


async def filled(place: Harness, last: int, group: int = 10) -> tuple[EventLog, Term]:
    log = await place.open()
    term = (await log.campaign(me())).term
    for first in range(1, last + 1, group):
        end = min(first + group - 1, last)
        await log.append(notes(first, end, term), term=term, expected_seq=Seq(first - 1))
    return log, term


async def stored(log: EventLog, after: int, until: int) -> list[bytes]:
    return [body async for part in log.stored(Seq(after), Seq(until)) for body in part]


def chained(bodies: list[bytes], digest: bytes = GENESIS) -> str:
    for body in bodies:
        digest = chain(digest, body)
    return digest.hex()


async def archived(log: EventLog, root: Path, until: int, size: int) -> FileArchive:
    archive = FileArchive(root, JOB)
    archive.prepare()
    digest = GENESIS
    for after in range(0, until, size):
        bodies = await stored(log, after, min(until, after + size))
        archive.add(after, digest, bodies)
        digest = bytes.fromhex(chained(bodies, digest))
    return archive


def test_the_newest_snapshots_are_kept(conform):
    """Two snapshots of any size are kept; the newest up to a seq is returned; older terms are fenced."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 30)
        assert await log.snapshot() is None
        large = bytes(range(256)) * 6000
        for seq, body in ((10, b"ten"), (20, large), (30, b""), (30, b"thirty")):
            await log.save_snapshot(Snapshot(seq=Seq(seq), body=body), term=term)
        other = await place.open()
        assert await other.snapshot() == Snapshot(seq=Seq(30), body=b"thirty")
        assert await other.snapshot(Seq(29)) == Snapshot(seq=Seq(20), body=large)
        assert await other.snapshot(Seq(19)) is None
        for wrong in (0, term + 1):
            with pytest.raises(Fenced):
                await log.save_snapshot(Snapshot(seq=Seq(31), body=b"x"), term=Term(wrong))
            assert await place.store().jobs() == [JOB]
        assert (await other.snapshot()) == Snapshot(seq=Seq(30), body=b"thirty")

    conform(scenario)


def test_truncation_removes_only_the_given_events(conform):
    """Truncation removes only the given events, not the last one; digests continue; older terms are fenced."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 100)
        whole = await stored(log, 0, 100)
        assert [encode(event) async for event in log.read()] == whole
        assert (await log.floor()).seq == 0
        for until in (35, 20, 60, 60, 4000):
            before = await log.floor()
            floor = await log.truncate(Seq(until), term=term, archive="/somewhere")
            assert floor == await (await place.open()).floor()
            assert before.seq <= floor.seq <= max(before.seq, min(until, 99))
            assert floor.seq >= min(until, 99) - 9  # whole segments may stay
            assert floor.archive == "/somewhere"
            assert await place.store().jobs() == [JOB]
            assert floor.digest == chained(whole[: floor.seq])
            assert await seqs(log, floor.seq) == list(range(floor.seq + 1, 101))
            assert await stored(log, floor.seq, 100) == whole[floor.seq :]
            for after in (0, floor.seq - 1):
                for reading in (seqs(log, after), followed(log, after, 100), stored(log, after, 100)):
                    with pytest.raises(Truncated) as caught:
                        await reading
                    assert caught.value.floor == floor.seq
            assert await seqs(log, 5, 5) == []
        for wrong in (0, term + 1):
            with pytest.raises(Fenced):
                await log.truncate(Seq(99), term=Term(wrong), archive="")
        with pytest.raises(Conflict):
            await log.append(notes(3, 4, term), term=term, expected_seq=Seq(2))
        await log.append(notes(101, 101, term), term=term, expected_seq=Seq(100))
        assert await seqs(await place.open(), 100) == [101]

    conform(scenario)


def test_a_digest_is_told_of_every_event_that_is_there(conform, tmp_path):
    """Digests exist from before the first to the last event, but not for truncated or missing events."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 45)
        bodies = await stored(log, 0, 45)
        for seq in (0, 1, 10, 11, 27, 45):
            assert await log.digest_at(Seq(seq)) == chained(bodies[:seq]), seq
        assert await log.digest_at(Seq(46)) == ""
        floor = await log.truncate(Seq(20), term=term, archive="elsewhere")
        assert floor.seq == 20
        assert await log.digest_at(Seq(7)) == ""
        for seq in (20, 21, 45):
            assert await log.digest_at(Seq(seq)) == chained(bodies[:seq]), seq

    conform(scenario)


def test_archive_and_live_log_read_as_one(conform, tmp_path):
    """Reader and follower get every event once, also during a truncation."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 200)
        archive = await archived(log, tmp_path, 180, 23)
        reader = JoinedLog(await place.open(), None)
        slow = reader.follow()
        seen = [(await anext(slow)).seq for _ in range(3)]
        for until in (50, 120, 175):
            await log.truncate(Seq(until), term=term, archive=str(archive.path))
            for one in (reader, JoinedLog(await place.open(), tmp_path)):
                assert await seqs(one) == list(range(1, 201))
                assert await seqs(one, 40, 45) == [41, 42, 43, 44, 45]
                assert await seqs(one, 110, 190) == list(range(111, 191))
                assert await followed(one, 33, 200) == list(range(34, 201))
        while seen[-1] < 200:
            seen.append((await anext(slow)).seq)
        assert seen == list(range(1, 201))
        coming = asyncio.ensure_future(anext(slow))
        await log.append(notes(201, 201, term), term=term, expected_seq=Seq(200))
        assert (await coming).seq == 201
        await slow.aclose()

    conform(scenario)


def test_a_wrong_archive_is_refused(conform, tmp_path):
    """A missing archive, a gap in it, or the archive of another log of the same name raises."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 100)
        archive = await archived(log, tmp_path / "right", 100, 25)
        await log.truncate(Seq(80), term=term, archive="")
        with pytest.raises(Truncated, match="--archive"):
            await seqs(JoinedLog(log, None))
        with pytest.raises(Truncated, match="does not exist"):
            await seqs(JoinedLog(log, tmp_path / "none"))
        archive.pieces()[1].path.unlink()
        with pytest.raises(Truncated, match="has 1 to 25, 51 to 100"):
            await seqs(JoinedLog(log, tmp_path / "right"))
        other = FileArchive(tmp_path / "other", JOB)
        other.prepare()
        other.add(0, GENESIS, [encode(event) for event in notes(1, 90, term, "not these")])
        with pytest.raises(LogCorrupt, match="another log"):
            await seqs(JoinedLog(log, tmp_path / "other"))

    conform(scenario)


def test_appends_and_truncations_do_not_disturb_each_other(conform):
    """While a log is appended to, truncated, snapshotted and followed, the follower sees each event once."""

    async def scenario(place: Harness) -> None:
        log, term = await filled(place, 10)
        retention, reader = await place.open(), await place.open()
        seen: list[int] = []

        async def follow() -> None:
            async with contextlib.aclosing(reader.follow()) as events:
                async for event in events:
                    seen.append(event.seq)
                    if event.seq == 610:
                        return

        following = asyncio.create_task(follow())
        for first in range(11, 611, 20):
            while not seen or seen[-1] < first - 20:
                await asyncio.sleep(0.001)
            appended = log.append(notes(first, first + 19, term), term=term, expected_seq=Seq(first - 1))
            shortened = retention.truncate(Seq(first - 21), term=term, archive="")
            snapped = retention.save_snapshot(Snapshot(seq=Seq(first), body=b"x" * 1000), term=term)
            await asyncio.gather(appended, shortened, snapped, retention.reclaim(), retention.space())
        await following
        assert seen == list(range(1, 611))

    conform(scenario)
