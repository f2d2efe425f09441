"""Archives: written, read, damaged, rewritten."""

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pytest

from ftcore.errors import LogCorrupt, NotFound, StoreError, UsageError
from ftcore.events import Event, EventId, Kind, encode
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.logs import open_store
from ftcore.logs.archive import ArchiveWriter
from ftcore.logs.memory import MemoryStore
from ftcore.logs.pieces import DRAFT_S, FileArchive
from ftcore.ports import Candidate
from ftcore.testing.logs import rewrite_archive

JOB = JobName("demo")
ME = Candidate(host="h", pid=1, address="a")


def note(seq, why):
    return Event(
        seq=Seq(seq),
        id=EventId("m", "1", seq),
        time=Nanoseconds(seq),
        type="operator.commanded",
        kind=Kind.FACT,
        source="t",
        term=Term(1),
        data=OperatorCommanded(command="note", who="w", why=why),
    )


async def exported(path, count):
    log = await MemoryStore(uuid.uuid4().hex).open(JOB, create=True)
    term = (await log.campaign(ME)).term
    if count:
        events = [note(seq, f"event {seq} \u2713") for seq in range(1, count + 1)]
        await log.append(events, term=term, expected_seq=Seq(0))
    with ArchiveWriter(path, log.job) as writer:
        async for event in log.read():
            writer.add(event)
    return writer.events


@pytest.fixture
def archive(tmp_path):
    """An archive of five events."""
    path = tmp_path / "x.ftlog"
    assert asyncio.run(exported(path, 5)) == 5
    return path


async def read(path, after=0, until=None):
    log = await open_store(f"file://{path}").open(JOB)
    return [event async for event in log.read(Seq(after), until)]


def test_an_archive_holds_the_log(archive):
    """What was exported is read back equal, whole or in part, and nothing else is left in the directory."""
    events = asyncio.run(read(archive))
    assert [encode(event) for event in events] == [encode(note(seq, f"event {seq} \u2713")) for seq in range(1, 6)]
    assert [event.seq for event in asyncio.run(read(archive, 2, 4))] == [3, 4]
    assert [event.seq for event in asyncio.run(read(archive, 4))] == [5]
    assert asyncio.run(read(archive, 5)) == []
    assert [*archive.parent.iterdir()] == [archive]


def test_an_empty_log_can_be_exported(tmp_path):
    """An archive of no events is whole and reads as nothing."""
    assert asyncio.run(exported(tmp_path / "x.ftlog", 0)) == 0
    assert asyncio.run(read(tmp_path / "x.ftlog")) == []


def test_an_archive_is_a_store_of_one_job(archive):
    """It lists its job, ends where the log ended, has no leader, and its follower waits forever."""

    async def main():
        store = open_store(f"file://{archive}")
        assert await store.jobs() == [JOB]
        with pytest.raises(NotFound):
            await store.open(JobName("other"))
        log = await store.open(JOB)
        assert (log.job, await log.last_seq(), await log.leader()) == (JOB, 5, None)
        seen = []

        async def follow():
            async for event in log.follow(Seq(1)):
                seen.append(event.seq)

        follower = asyncio.create_task(follow())
        await asyncio.wait([follower], timeout=0.2)
        assert (seen, follower.done()) == ([2, 3, 4, 5], False)
        follower.cancel()
        await log.close()
        await store.close()

    asyncio.run(main())


def test_an_archive_is_read_only(archive):
    """All writes are refused."""

    async def main():
        store = open_store(f"file://{archive}")
        log = await store.open(JOB)
        with pytest.raises(UsageError, match="read-only"):
            await log.append([note(6, "")], term=Term(1), expected_seq=Seq(5))
        with pytest.raises(UsageError, match="read-only"):
            await log.campaign(ME)
        with pytest.raises(UsageError, match="read-only"):
            await store.open(JOB, create=True)

    asyncio.run(main())


def test_every_truncation_is_detected(archive):
    """With any number of bytes missing at the end, opening or reading fails; it never returns fewer events."""
    whole = archive.read_bytes()
    for size in range(len(whole) - 1, -1, -1):
        archive.write_bytes(whole[:size])
        with pytest.raises(StoreError):
            asyncio.run(read(archive))


def test_a_truncated_file_is_refused_with_its_line(archive):
    """A truncated file is refused when it is opened, with the number of its last line."""
    lines = archive.read_bytes().splitlines(keepends=True)
    archive.write_bytes(b"".join(lines[:4]))
    with pytest.raises(LogCorrupt, match=r"x\.ftlog, line 4: the file is truncated"):
        asyncio.run(read(archive))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [*lines[:3], lines[3].replace(b"event 3", b"event 9"), *lines[4:]], 4),
        (lambda lines: [*lines[:3], *lines[4:]], 4),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
        (lambda lines: [*lines[:3], b"0" + lines[3][1:], *lines[4:]], 4),
        (lambda lines: [*lines[:3], b"rubbish\n", *lines[3:]], 4),
        (lambda lines: [*lines[:3], b"{rubbish\n", *lines[3:]], 4),
        (lambda lines: [*lines[:5], lines[6]], 6),
        (lambda lines: [lines[0].replace(b"0" * 32, b"1" * 32), *lines[1:]], 2),
    ],
    ids=["changed", "lost", "swapped", "digest", "rubbish", "brace", "lost-last", "other-start"],
)
def test_every_change_is_detected(archive, damage, line):
    """A changed, missing, swapped or additional line is reported with its number."""
    lines = archive.read_bytes().splitlines(keepends=True)
    changed = b"".join(damage(lines))
    assert changed != b"".join(lines)
    archive.write_bytes(changed)
    with pytest.raises(LogCorrupt, match=rf"x\.ftlog, line {line}:"):
        asyncio.run(read(archive))


def test_other_files_are_no_archives(tmp_path):
    """A file of another kind, a newer format and a missing file have different errors."""
    path = tmp_path / "x.ftlog"
    with pytest.raises(NotFound, match="does not exist"):
        asyncio.run(read(path))
    for other in (b"", b"hello\n", b'{"a": 1}\n', b"\xff\xfe\x00" * 3000):
        path.write_bytes(other)
        with pytest.raises(StoreError, match="is not an ftcore archive"):
            asyncio.run(read(path))
    path.write_bytes(b'{"ftlog":2,"job":"demo","first":1,"previous":"' + b"0" * 32 + b'"}\n')
    with pytest.raises(StoreError, match="has format 2, this ftcore reads up to 1"):
        asyncio.run(read(path))
    with pytest.raises(NotFound, match="no archive of job"):
        asyncio.run(read(tmp_path))


def test_a_failed_export_keeps_the_old_file(archive):
    """When the write fails, the old file stays and no draft is left."""
    before = archive.read_bytes()
    with pytest.raises(UsageError, match="cannot write"):
        asyncio.run(exported(archive.parent / "missing" / "x.ftlog", 1))
    code = (
        "import asyncio, resource, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from test_archive import exported; from ftcore.errors import LogFull\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: asyncio.run(exported(Path(sys.argv[1]), 100))\n"
        "except LogFull as error: sys.exit('no space to write' not in str(error))\n"
        "sys.exit(2)"
    )
    folder = str(Path(__file__).parent)
    assert subprocess.run([sys.executable, "-c", code, str(archive), folder], check=False).returncode == 0
    assert archive.read_bytes() == before
    assert [*archive.parent.iterdir()] == [archive]


def test_rewriting_makes_another_valid_archive(archive, tmp_path):
    """The helper for tests changes events and recomputes the digests."""
    other = tmp_path / "y.ftlog"

    def change(event):
        return msgspec.structs.replace(event, data=OperatorCommanded(command="note", who="w", why=f"new {event.seq}"))

    assert rewrite_archive(archive, other, change) == 5
    assert [event.data.why for event in asyncio.run(read(other))] == [f"new {seq}" for seq in range(1, 6)]
    assert rewrite_archive(archive, other, lambda event: event) == 5
    assert other.read_bytes() == archive.read_bytes()


def test_an_abandoned_draft_is_removed(tmp_path):
    """The draft of a killed process is removed; drafts being written and other files stay."""
    pieces = FileArchive(tmp_path, JOB)
    pieces.prepare()
    writers = [ArchiveWriter(pieces.path / f"{seq:012d}-{seq:012d}.ftlog", JOB) for seq in (1, 2)]
    (pieces.path / ".notes").touch()
    old, young = sorted(pieces.path.glob(".0*"))
    for path in (old, pieces.path / ".notes"):
        before = path.stat().st_mtime - DRAFT_S - 1
        os.utime(path, (before, before))
    pieces.prepare()
    assert {path.name for path in pieces.path.iterdir()} == {young.name, ".notes"}
    for writer in writers:
        writer.__exit__(KeyError)
