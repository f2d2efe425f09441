"""Compaction of etcd's log: what is remembered for it."""

import asyncio
from typing import Any

import pytest

from ftcore.errors import StoreError
from ftcore.etcd3 import Status
from ftcore.ids import JobName
from ftcore.logs import etcd_upkeep
from ftcore.logs.etcd_layout import Keys
from ftcore.logs.etcd_upkeep import COMPACT_REVISIONS, LAG_S, Upkeep


class Cluster:
    """An etcd that has room, and may refuse to compact."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.compacted: list[int] = []

    async def status(self) -> Status:
        return Status(version="3.6.14", member=1, leader=1, db_size=1, db_size_in_use=1, quota=100, errors=())

    async def alarms(self) -> tuple[()]:
        return ()

    async def compact(self, revision: int) -> None:
        if self.refuses:
            raise StoreError("permission denied")
        self.compacted.append(revision)


def looked(cluster: Cluster, revisions: list[int], monkeypatch: pytest.MonkeyPatch) -> Upkeep:
    """Upkeep that saw these revisions, one in ten seconds."""
    upkeep = Upkeep(JobName("j"), cluster, Keys(b"/j/"))  # type: ignore[arg-type]
    now = 0.0

    async def look() -> None:
        nonlocal now
        for revision in revisions:
            now += 10.0
            await upkeep.reclaim(revision)

    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: now)})
    monkeypatch.setattr(etcd_upkeep, "time", clock)
    asyncio.run(look())
    return upkeep


def test_an_idle_log_is_looked_at_for_ever_and_little_is_remembered(monkeypatch):
    """What is younger than the lag, and one older."""
    cluster = Cluster()
    upkeep = looked(cluster, [7] * 2000, monkeypatch)
    assert cluster.compacted == []
    assert len(upkeep._revisions) <= LAG_S / 10 + 2


def test_what_is_old_enough_is_compacted(monkeypatch):
    """Up to the newest revision that is older than the lag, once enough was superseded."""
    cluster = Cluster()
    looked(cluster, [1, *[COMPACT_REVISIONS + 1] * 200], monkeypatch)
    assert cluster.compacted == [COMPACT_REVISIONS + 1]


def test_who_may_not_compact_remembers_no_more(monkeypatch):
    """It is told once, and left to others."""
    upkeep = looked(Cluster(refuses=True), [COMPACT_REVISIONS * n for n in range(2000)], monkeypatch)
    assert len(upkeep._revisions) <= LAG_S / 10 + 2
