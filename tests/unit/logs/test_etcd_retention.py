"""Compaction of a log in etcd."""

import asyncio
from typing import Any

import pytest

from ftcore.errors import StoreError
from ftcore.etcd3 import Status
from ftcore.ids import JobName
from ftcore.logs import etcd_retention
from ftcore.logs.etcd_layout import Keys
from ftcore.logs.etcd_retention import COMPACT_REVISIONS, LAG_S, EtcdRetention


class Cluster:
    """An etcd with free space, which may refuse to compact."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.compacted: list[int] = []

    async def status(self) -> Status:
        return Status(version="3.6.14", db_size=1, quota=100)

    async def alarms(self) -> tuple[()]:
        return ()

    async def compact(self, revision: int) -> None:
        if self.refuses:
            raise StoreError("permission denied")
        self.compacted.append(revision)


def looked(cluster: Cluster, revisions: list[int], monkeypatch: pytest.MonkeyPatch) -> EtcdRetention:
    """The retention that saw these revisions, one every ten seconds."""
    retention = EtcdRetention(JobName("j"), cluster, Keys(b"/j/"))  # type: ignore[arg-type]
    now = 0.0

    async def look() -> None:
        nonlocal now
        for revision in revisions:
            now += 10.0
            await retention.reclaim(revision)

    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: now)})
    monkeypatch.setattr(etcd_retention, "time", clock)
    asyncio.run(look())
    return retention


def test_few_revisions_of_an_idle_log_are_kept(monkeypatch):
    """Only revisions younger than the lag, and one older, are kept."""
    cluster = Cluster()
    retention = looked(cluster, [7] * 2000, monkeypatch)
    assert cluster.compacted == []
    assert len(retention._revisions) <= LAG_S / 10 + 2


def test_old_revisions_are_compacted(monkeypatch):
    """Compaction is up to the newest revision older than the lag, once there are enough."""
    cluster = Cluster()
    looked(cluster, [1, *[COMPACT_REVISIONS + 1] * 200], monkeypatch)
    assert cluster.compacted == [COMPACT_REVISIONS + 1]


def test_a_refused_compaction_is_not_retried(monkeypatch):
    """A refused compaction is logged once and not retried."""
    retention = looked(Cluster(refuses=True), [COMPACT_REVISIONS * n for n in range(2000)], monkeypatch)
    assert len(retention._revisions) <= LAG_S / 10 + 2
