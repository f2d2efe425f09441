"""The master's retention: what it archives and truncates, and what it leaves unchanged after errors."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ftcore.errors import LogFull
from ftcore.events import Event, EventId, Kind
from ftcore.events.operator import OperatorCommanded
from ftcore.events.retention import ArchiveExtended, ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.logs.archived import JoinedLog
from ftcore.logs.memory import MemoryLog, MemoryStore
from ftcore.logs.pieces import FileArchive
from ftcore.ports import Candidate, Space
from ftcore.runtime.master.retention import LogRetention, RetentionConfig, Sizes
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall

JOB = JobName("demo")
SIZES = Sizes(snapshot=50, quiet_snapshot=50, piece=10, keep=20)


def note(seq: int, term: int, text: str) -> Event:
    return Event(
        seq=Seq(seq),
        id=EventId("master", str(term), seq),
        time=Nanoseconds(seq),
        type="operator.commanded",
        kind=Kind.FACT,
        source="master",
        term=Term(term),
        data=OperatorCommanded(command="note", who="test", why=text),
    )


class Place:
    """A log in memory, a master's leadership, and the recorded facts of its retention."""

    def __init__(self, root: Path, name: str, text: str = "") -> None:
        self.root = root
        self.text = text
        self.told: list[object] = []
        self.store = MemoryStore(f"retention {name}")
        self.state = JobState()

    async def __aenter__(self) -> "Place":
        self.log = await self.store.open(JOB, create=True)
        self.leadership = await self.log.campaign(Candidate(host="h", pid=1, address="a"))
        async for event in JoinedLog(self.log, self.root).read():
            fold(self.state, event)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.log.close()

    @contextlib.asynccontextmanager
    async def retention(self, archive: FileArchive | None = None, sizes: Sizes = SIZES) -> AsyncIterator[LogRetention]:
        archive = archive if archive is not None else FileArchive(self.root, JOB)
        retention = RetentionConfig(log=self.log, archive=archive, sizes=sizes, interval_s=0.01)
        retention = LogRetention(retention, self.leadership.term, self.told.append)
        running = asyncio.create_task(retention.run())

        async def knows() -> bool:
            return retention.ready

        try:
            await self.until(knows)
            yield retention
        finally:
            running.cancel()
            await asyncio.wait({running})
            retention.close()
            assert running.cancelled()

    async def write(self, retention: LogRetention, last: int, group: int = 5) -> None:
        while self.state.seq < last:
            first = self.state.seq + 1
            term = self.leadership.term
            events = [note(seq, term, self.text) for seq in range(first, first + group)]
            await self.log.append(events, term=term, expected_seq=Seq(first - 1))
            for event in events:
                fold(self.state, event)
            retention.committed(self.state, ())
            await asyncio.sleep(0)

    async def until(self, holds) -> None:
        async with asyncio.timeout(30):
            while not await holds():
                await asyncio.sleep(0.005)

    async def floor_is(self, least: int) -> None:
        async def holds() -> bool:
            return (await self.log.floor()).seq >= least

        await self.until(holds)

    async def tells(self, kind: type) -> None:
        async def holds() -> bool:
            return any(isinstance(fact, kind) for fact in self.told)

        await self.until(holds)

    async def whole(self) -> list[int]:
        return [event.seq async for event in JoinedLog(self.log, self.root).read()]


def run(body) -> None:
    asyncio.run(asyncio.wait_for(body, 90))


async def _snapshots(place: Place, retention: LogRetention, *lasts: int) -> None:
    """Write up to each seq, and wait for its snapshot."""
    for last in lasts:
        await place.write(retention, last)

        async def holds(last: int = last) -> bool:
            found = await place.log.snapshot()
            return found is not None and found.seq == last

        await place.until(holds)


def test_old_archived_events_are_truncated(tmp_path):
    """Snapshots follow the configured sizes; the log is truncated before the older one; no event is missing."""

    async def scenario() -> None:
        async with Place(tmp_path, "old") as place, place.retention() as retention:
            await _snapshots(place, retention, 50, 100, 150)
            await place.floor_is(100)
            floor = await place.log.floor()
            assert floor.seq == 100
            assert floor.archive == str(tmp_path / JOB)
            assert await place.whole() == list(range(1, 151))
            restored = await recall(place.log)
            assert restored.state.seq == 150
            await place.tells(ArchiveExtended)
            names = sorted(path.name for path in (tmp_path / JOB).iterdir())
            assert names[0] == "000000000001-000000000010.ftlog"
            assert len(names) == 15

    run(scenario())


def test_without_an_archive_nothing_is_truncated(tmp_path):
    """Snapshots are made nevertheless."""

    async def scenario() -> None:
        async with Place(tmp_path, "none") as place:
            retention = LogRetention(
                RetentionConfig(log=place.log, sizes=SIZES, interval_s=0.01), place.leadership.term, place.told.append
            )
            running = asyncio.create_task(retention.run())
            while not retention.ready:
                await asyncio.sleep(0.001)
            await _snapshots(place, retention, 50, 100, 150)
            assert (await place.log.floor()).seq == 0
            running.cancel()
            assert place.told == []

    run(scenario())


STEPS = ("prepare", "reaches", "add", "synced", "truncate", "told")


@pytest.mark.parametrize("step", STEPS)
def test_a_master_that_dies_between_two_steps_loses_nothing(tmp_path, step):
    """After a kill at any step the next master continues: no event is missing, and the log is truncated."""

    class Dies(Exception):
        pass

    class Deadly(FileArchive):
        def prepare(self, make: bool = True) -> None:
            super().prepare(make)
            if step == "prepare":
                raise Dies

        def reaches(self, seq: Seq) -> Seq | None:
            found = super().reaches(seq)
            if step == "reaches" and seq > 30:
                raise Dies
            return found

        def add(self, after: Seq, previous: bytes, bodies) -> None:
            if step == "add" and after == 40:
                (self.path / ".draft.1234").write_bytes(bodies[0])
                raise Dies
            super().add(after, previous, bodies)
            if step == "synced" and after == 40:
                raise Dies

    async def scenario() -> None:
        async with Place(tmp_path, f"dies {step}") as place:
            if step in ("truncate", "told"):
                truncate = place.log.truncate

                async def dying(until: Seq, *, term: Term, archive: str):
                    if step == "told":
                        await truncate(until, term=term, archive=archive)
                    raise Dies

                place.log.truncate = dying
            async with place.retention(Deadly(tmp_path, JOB)) as retention:
                await _snapshots(place, retention, 50, 100, 150)
                for _ in range(50):
                    await asyncio.sleep(0.002)
            assert await place.whole() == list(range(1, 151))
        async with Place(tmp_path, f"dies {step}") as place, place.retention() as retention:
            await _snapshots(place, retention, 200, 250)
            await place.floor_is(200)
            assert await place.whole() == list(range(1, 251))
            assert not any(isinstance(fact, ArchiveFailed) for fact in place.told)

    run(scenario())


def test_two_masters_that_archive_at_once_do_no_harm(tmp_path):
    """The deposed master and its successor, with other file sizes, leave an archive equal to the log."""

    async def scenario() -> None:
        async with Place(tmp_path, "two") as place:
            sizes = Sizes(snapshot=50, quiet_snapshot=50, piece=7, keep=20)
            async with place.retention() as one, place.retention(sizes=sizes) as other:
                for last in range(50, 301, 50):
                    await _snapshots(place, one, last)
                    other.committed(place.state, ())
                await place.floor_is(180)
                assert await place.whole() == list(range(1, 301))
            # The term is over: nothing more is taken out by them.
            old = place.leadership.term
            await place.leadership.resign()
            place.leadership = await place.log.campaign(Candidate(host="h", pid=2, address="b"))
            floor = await place.log.floor()
            deposed = LogRetention(
                RetentionConfig(log=place.log, archive=FileArchive(tmp_path, JOB), sizes=SIZES, interval_s=0.01),
                old,
                place.told.append,
            )
            running = asyncio.create_task(deposed.run())
            async with place.retention() as retention:
                place.text = "newer"
                for last in (350, 400):
                    await _snapshots(place, retention, last)
                    deposed.committed(place.state, ())
                assert await place.whole() == list(range(1, 401))
            assert not running.done()
            running.cancel()
            assert (await place.log.floor()).seq >= floor.seq
            assert not any(isinstance(fact, ArchiveFailed) for fact in place.told)

    run(scenario())


def test_a_master_that_is_overtaken_while_it_archives_reports_nothing(tmp_path):
    """Its successor truncates the events that it is about to read: it continues behind them."""

    class Slow(FileArchive):
        gate = threading.Event()

        def reaches(self, seq: Seq):
            self.gate.wait(30)
            return super().reaches(seq)

    async def scenario() -> None:
        async with Place(tmp_path, "overtaken") as place:
            slow = Slow(tmp_path, JOB)
            async with place.retention(slow) as overtaken, place.retention() as newer:
                await place.write(newer, 20)
                overtaken.committed(place.state, ())
                await _snapshots(place, newer, 50, 100, 150)
                await place.floor_is(100)
                slow.gate.set()
                for last in (200, 250):
                    await _snapshots(place, newer, last)
                    overtaken.committed(place.state, ())
                assert await place.whole() == list(range(1, 251))
                assert not any(isinstance(fact, ArchiveFailed) for fact in place.told)

    run(scenario())


def test_an_archive_that_cannot_be_written_costs_only_room(tmp_path):
    """One report, no truncation; once it is writable again, the log is truncated, and no event is missing."""

    class Failing(FileArchive):
        broken = True
        tried = 0

        def add(self, after: Seq, previous: bytes, bodies) -> None:
            self.tried += 1
            if self.broken:
                raise LogFull(f"no space to write {self.path}: {os.strerror(errno.ENOSPC)}")
            super().add(after, previous, bodies)

    async def scenario() -> None:
        archive = Failing(tmp_path, JOB)
        async with Place(tmp_path, "full disk") as place, place.retention(archive) as retention:
            await _snapshots(place, retention, 50, 100, 150)
            await place.tells(ArchiveFailed)
            while archive.tried < 5:
                await asyncio.sleep(0.005)
            (failed,) = [fact for fact in place.told if isinstance(fact, ArchiveFailed)]
            assert "No space left" in failed.error
            assert (await place.log.floor()).seq == 0
            archive.broken = False
            await place.floor_is(100)
            assert await place.whole() == list(range(1, 151))
            await place.tells(ArchiveExtended)

    run(scenario())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permissions_is_reported(tmp_path):
    """The message names the directory and the reason."""

    async def scenario() -> None:
        tmp_path.chmod(0o500)
        try:
            async with Place(tmp_path, "rights") as place, place.retention() as retention:
                await place.write(retention, 30)
                await place.tells(ArchiveFailed)
                assert "Permission denied" in place.told[0].error
        finally:
            tmp_path.chmod(0o700)

    run(scenario())


def test_the_archive_of_another_log_is_left_alone(tmp_path):
    """A new log with the name of an old one does not mix with its archive, whichever of the two is longer."""

    async def scenario() -> None:
        async with Place(tmp_path, "first", "first") as place, place.retention() as retention:
            await _snapshots(place, retention, 50, 100, 150)
            await place.floor_is(100)
        before = {path.name: path.read_bytes() for path in (tmp_path / JOB).iterdir()}
        for name, last in (("shorter", 5), ("longer", 200)):
            async with Place(tmp_path, name, "second") as place, place.retention() as retention:
                await place.write(retention, last)
                await place.tells(ArchiveFailed)
                assert "another log" in place.told[0].error
                assert (await place.log.floor()).seq == 0
        assert {path.name: path.read_bytes() for path in (tmp_path / JOB).iterdir()} == before

    run(scenario())


def test_a_missing_archive_is_not_started_again(tmp_path):
    """An unmounted disk has no archived events: nothing is written there, and nothing is truncated."""

    async def scenario() -> None:
        async with Place(tmp_path / "disk", "unmounted") as place:
            async with place.retention() as retention:
                await _snapshots(place, retention, 50, 100, 150)
                await place.floor_is(100)
            (tmp_path / "disk").rename(tmp_path / "away")
            async with place.retention() as retention:
                await _snapshots(place, retention, 200, 250)
                await place.tells(ArchiveFailed)
                assert (await place.log.floor()).seq == 100
                assert not (tmp_path / "disk").exists()
                (tmp_path / "disk" / JOB).mkdir(parents=True)

                async def says_so() -> bool:
                    return any(
                        "mount the archive" in fact.error for fact in place.told if isinstance(fact, ArchiveFailed)
                    )

                await place.until(says_so)
                (tmp_path / "disk" / JOB).rmdir()
                (tmp_path / "disk").rmdir()
                (tmp_path / "away").rename(tmp_path / "disk")
                await place.floor_is(200)
                assert await place.whole() == list(range(1, 251))

    run(scenario())


class Tight(MemoryLog):
    """A log whose store has a limit set by the test."""

    said = Space(used=10, limit=100, full=False)

    async def space(self) -> Space | None:
        return self.said


def test_low_space_is_reported_and_freed(tmp_path):
    """Near the limit, samples are shed and archived events truncated at once; the recovery is recorded."""

    async def scenario() -> None:
        for low in (Space(used=75, limit=100, full=False), Space(used=1 << 30, limit=0, full=True)):
            async with Place(tmp_path / str(low.used), f"low {low.used}") as place:
                place.log = Tight(JOB, place.log._log)
                sizes = Sizes(snapshot=50, quiet_snapshot=50, piece=10, keep=10_000)
                async with place.retention(sizes=sizes) as retention:
                    await _snapshots(place, retention, 50, 100)
                    assert not retention.shedding
                    assert (await place.log.floor()).seq == 0
                    place.log.said = low
                    await place.tells(SpaceRanLow)
                    assert retention.shedding
                    await place.floor_is(50)
                    place.log.said = Space(used=65 if low.limit else 0, limit=low.limit, full=False)
                    if low.limit:
                        await asyncio.sleep(0.05)
                        assert retention.shedding  # it does not flutter
                    place.log.said = Space(used=50, limit=low.limit, full=False)
                    await place.tells(SpaceRecovered)
                    assert not retention.shedding
                    assert await place.whole() == list(range(1, 101))

    run(scenario())


def test_a_poisoned_state_has_no_snapshot(tmp_path):
    """No snapshot of a poisoned state is made."""

    async def scenario() -> None:
        async with Place(tmp_path, "poison") as place, place.retention() as retention:
            place.state.log.poisoned = "event 7: made up"
            await place.write(retention, 100)
            await asyncio.sleep(0.05)
            assert await place.log.snapshot() is None

    run(scenario())
