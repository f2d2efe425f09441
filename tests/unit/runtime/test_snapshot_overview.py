"""Overviews in the snapshots of a log: what its readers would have collected, or none."""

import asyncio
from collections.abc import Sequence

import pytest

from ftcore.errors import LogUnavailable
from ftcore.ids import JobName, Seq
from ftcore.launch.overview import LogOverview
from ftcore.logs.memory import MemoryLog, MemoryStore
from ftcore.ports import Candidate, Snapshot
from ftcore.replay.overview import JobOverview, OverviewLabel, label_in, pack_overview, restore_overview
from ftcore.runtime.master import overview as module
from ftcore.runtime.master.overview import SnapshotOverview
from ftcore.states.snapshot import overview_in, pack, restore, seal
from ftcore.testing.driver import JobDriver

JOB = JobName("demo")


class Fed(LogOverview):
    """Notes the numbers of events that it was fed with."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def feed(self, bodies: Sequence[bytes]) -> None:
        self.counts.append(len(bodies))
        super().feed(bodies)


class Fails(LogOverview):
    """Cannot process anything."""

    def feed(self, bodies: Sequence[bytes]) -> None:
        raise KeyError("a defect")


def story() -> JobDriver:
    driver = JobDriver(nodes=3, slots=2, tick_s=0.5)
    driver.start()
    driver.make_steps(5)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    return driver


async def opened(driver: JobDriver, name: str) -> MemoryLog:
    log = await MemoryStore(f"overview {name}").open(JOB, create=True)
    lead = await log.campaign(Candidate(host="h", pid=1, address="a"))
    await log.append(driver.events, term=lead.term, expected_seq=Seq(0))
    return log


def read_from_start(driver: JobDriver, label: OverviewLabel) -> bytes | None:
    overview = JobOverview()
    for event in driver.events[: label.seq]:
        overview.feed(event)
    return pack_overview(overview, label)


def test_it_equals_a_reading_of_the_log():
    async def body() -> None:
        driver = story()
        log = await opened(driver, "equals")
        for last in (7, len(driver.events)):
            stored = await SnapshotOverview(log, LogOverview()).until(Seq(last))
            label = label_in(stored)
            assert label is not None and label.seq == last and label.digest == await log.digest_at(Seq(last))
            assert stored == read_from_start(driver, label)

    asyncio.run(body())


def test_the_next_master_continues_from_the_snapshot():
    async def body() -> None:
        driver = story()
        log = await opened(driver, "continues")
        last = Seq(len(driver.events))
        stored = await SnapshotOverview(log, LogOverview()).until(Seq(9))
        await log.save_snapshot(Snapshot(seq=Seq(9), body=seal(packed(driver, 9), stored).body), term=1)
        next_one = Fed()
        following = SnapshotOverview(log, next_one)
        continued = await following.until(last)
        label = label_in(continued)
        assert label is not None and continued == read_from_start(driver, label)
        assert sum(next_one.counts) == last - 9
        assert await following.until(last) == continued

    asyncio.run(body())


def packed(driver: JobDriver, last: int):
    overview = JobOverview()
    for event in driver.events[:last]:
        overview.feed(event)
    return pack(overview.state)


@pytest.mark.parametrize("stored", [b"", b"x", b'{"ftview":1}\nbody'])
def test_an_overview_that_does_not_fit_is_made_anew(stored: bytes):
    async def body() -> None:
        driver = story()
        log = await opened(driver, f"anew {stored!r}")
        await log.save_snapshot(Snapshot(seq=Seq(9), body=seal(packed(driver, 9), stored).body), term=1)
        fed = Fed()
        assert await SnapshotOverview(log, fed).until(Seq(12))
        assert sum(fed.counts) == 12

    asyncio.run(body())


def test_without_the_events_there_is_none(monkeypatch: pytest.MonkeyPatch):
    async def body() -> None:
        driver = story()
        log = await opened(driver, "truncated")
        monkeypatch.setattr(module, "BEHIND_MAX", 5)
        assert await SnapshotOverview(log, LogOverview()).until(Seq(9)) == b""
        monkeypatch.undo()
        await log.truncate(Seq(4), term=1, archive="elsewhere")
        assert await SnapshotOverview(log, LogOverview()).until(Seq(9)) == b""
        assert await SnapshotOverview(log, None).until(Seq(9)) == b""

    asyncio.run(body())


def test_an_error_ends_the_overviews_of_the_term():
    async def body() -> None:
        driver = story()
        log = await opened(driver, "error")
        broken = SnapshotOverview(log, Fails())
        assert await broken.until(Seq(9)) == b""
        assert await broken.until(Seq(12)) == b""

    asyncio.run(body())


def test_a_store_that_does_not_answer_delays_it(monkeypatch: pytest.MonkeyPatch):
    async def body() -> None:
        driver = story()
        log = await opened(driver, "silent")
        made = SnapshotOverview(log, LogOverview())

        async def silent(self: MemoryLog) -> None:
            raise LogUnavailable("the store does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryLog, "floor", silent)
            assert await made.until(Seq(9)) == b""
        assert await made.until(Seq(9))

    asyncio.run(body())


def test_a_snapshot_with_an_overview_restores_as_one_without():
    driver = story()
    state = packed(driver, 9)
    for stored in (b"", b"overview\n\0bytes"):
        snapshot = seal(state, stored)
        restored = restore(snapshot)
        assert restored is not None and pack(restored.state) == state
        assert overview_in(snapshot) == stored
    assert overview_in(Snapshot(seq=Seq(1), body=b"torn")) == b""
    torn = seal(state, b"overview").body[:-20]
    assert restore(Snapshot(seq=Seq(9), body=torn)) is None


def test_restored_overviews_go_on():
    """What a reader does with it."""

    async def body() -> None:
        driver = story()
        log = await opened(driver, "reader")
        stored = await SnapshotOverview(log, LogOverview()).until(Seq(9))
        label = label_in(stored)
        assert label is not None
        overview = restore_overview(stored, label)
        assert overview is not None and overview.state.seq == 9

    asyncio.run(body())
