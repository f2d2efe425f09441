"""Salvage of a damaged SQLite log; the damaged file is kept."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcore.errors import LogCorrupt
from ftcore.events.envelope import Event
from ftcore.logs import open_log
from ftcore.logs.archive import read_events
from ftcore.logs.sqlite_lease import LockFile, lock_path
from ftcore.ports import Candidate
from ftcore.replay import verify_async

GOLDEN = Path(__file__).parents[2] / "golden/logs/0.1.0/kill_raise_segfault_lose.ftlog"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with the events of a real job."""

    async def fill() -> None:
        made = await open_log(f"sqlite://{tmp_path}", "job", create=True)
        leadership = await made.campaign(Candidate(host="h", pid=1, address="unix:x"))
        group: list[Event] = []
        for event in read_events(GOLDEN):
            group.append(event)
        await made.append(group, term=leadership.term, expected_seq=0)
        await made.close()

    asyncio.run(fill())
    return tmp_path / "job.db"


def ftctl(log: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", f"sqlite://{log.parent}", "--job", "job", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def events(log: Path) -> list[Event]:
    async def read() -> list[Event]:
        found = await open_log(f"sqlite://{log.parent}", "job")
        try:
            return [event async for event in found.read()]
        finally:
            await found.close()

    return asyncio.run(read())


def change(sql: str) -> Callable[[Path], None]:
    def damage(log: Path) -> None:
        with sqlite3.connect(log) as db:
            db.execute(sql)

    return damage


def flip(log: Path) -> None:
    """Bytes of one event's body, in the file itself."""
    with sqlite3.connect(log) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        body = db.execute("SELECT body FROM events WHERE seq = 20").fetchone()[0]
    content = bytearray(log.read_bytes())
    at = content.index(body[:200]) + 100
    for place in range(at, at + 8):
        content[place] ^= 0xFF
    log.write_bytes(content)


DAMAGES: dict[str, Any] = {
    "bytes flipped": (flip, 20),
    "an event is gone": (change("DELETE FROM events WHERE seq = 20"), 20),
    "the end is gone": (change("DELETE FROM events WHERE seq >= 20"), 20),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_the_readable_part_becomes_a_new_log(log: Path, kind: str) -> None:
    """Every complete group before the damage is kept; the next event records the salvage, with a new identity."""
    damage, first_bad = DAMAGES[kind]
    before = events(log)
    damage(log)
    told = ftctl(log, "events")
    assert told.returncode != 0 and "salvage" in told.stderr
    done = ftctl(log, "salvage", "--format", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    after = events(log)
    last = said["last_seq"]
    assert 0 < last < first_bad and after[:-1] == before[:last]
    assert before[last].kind == "fact", "a group is kept whole or not at all"
    word = after[-1]
    assert (word.type, word.seq) == ("log.salvaged", last + 1)
    assert said["lost_count"] == word.data.lost == len(before) - last and word.data.log_id
    assert Path(said["damaged"]) == Path(word.data.damaged)
    assert Path(said["damaged"]).exists()

    async def stream() -> Any:
        for event in after:
            yield event

    report = asyncio.run(verify_async(stream()))
    assert report.complete and not report.mismatches and report.state.log.identity == word.data.log_id


def test_an_undamaged_log_is_unchanged(log: Path) -> None:
    """An undamaged log is refused unchanged."""
    before = events(log)
    done = ftctl(log, "salvage")
    assert done.returncode == 0 and "nothing was changed" in done.stderr
    assert events(log) == before and [path.name for path in log.parent.glob("*.damaged*")] == []


def test_a_log_with_a_leader_is_refused(log: Path) -> None:
    """A log whose master holds the lock is refused."""
    lock = LockFile(lock_path(log), write=True)
    assert lock.try_lock()
    flip(log)
    content = log.read_bytes()
    done = ftctl(log, "salvage")
    assert done.returncode != 0 and "end every ftrun" in done.stderr and log.read_bytes() == content
    lock.close()


def test_a_log_without_readable_events_is_kept(log: Path) -> None:
    """A log without readable events is refused, and not replaced by an empty one."""
    change("DELETE FROM events WHERE seq < 30")(log)
    done = ftctl(log, "salvage")
    assert done.returncode == LogCorrupt("").exit_code and "no event can be read" in done.stderr and log.exists()
