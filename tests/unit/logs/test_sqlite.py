"""The SQLite adapter: unusable files and disks, sidecar files, damage, notifications."""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftcore.errors import LogCorrupt, LogFull, LogUnavailable, NotFound, StoreError, UsageError
from ftcore.events import Event, EventId, Kind
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.logs import open_store, sqlite_file
from ftcore.logs.sqlite_file import LogFile, network_file_system
from ftcore.logs.sqlite_lease import LeaderRecord, LockFile, lock_path
from ftcore.logs.wake import Wake
from ftcore.ports import Candidate, EventLog

JOB = JobName("demo")
ME = Candidate(host="h", pid=1, address="a")


def note(seq, term, why=""):
    return Event(
        seq=Seq(seq),
        id=EventId("m", "1", seq),
        time=Nanoseconds(seq),
        type="operator.commanded",
        kind=Kind.FACT,
        source="t",
        term=Term(term),
        data=OperatorCommanded(command="note", who="w", why=why),
    )


async def put(log: EventLog, term: int, first: int, last: int, why: str = "") -> None:
    events = [note(seq, term, why) for seq in range(first, last + 1)]
    await log.append(events, term=Term(term), expected_seq=Seq(first - 1))


@contextlib.asynccontextmanager
async def opened(path: Path, create: bool = False):
    store = open_store(f"sqlite://{path}")
    try:
        yield await store.open(JOB, create=create)
    finally:
        await store.close()


async def filled(path: Path, last: int = 5) -> None:
    async with opened(path, create=True) as log:
        leadership = await log.campaign(ME)
        await put(log, leadership.term, 1, last)
        await leadership.resign()


async def count(path: Path) -> int:
    async with opened(path) as log:
        return len([event async for event in log.read()])


def edit(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.fixture
def log_path(tmp_path):
    """A log of five events."""
    path = tmp_path / "x.db"
    asyncio.run(filled(path))
    return path


def without_rights(code: str, *arguments: Path) -> None:
    """Run code in a process that is subject to permissions, also when the tests run as root; it must not raise."""
    text = f"import asyncio, sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    text += "from test_sqlite import *\n" + code
    root = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*root, sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- what is there is not ours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_another_programs_database_is_left_alone(tmp_path, mode):
    """A SQLite file that is not a log is refused, and no byte and no file beside it changes."""
    path = tmp_path / "x.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE head (job TEXT)")
        db.commit()
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
        for create in (True, False):
            with pytest.raises(StoreError, match="is not an ftcore log"):
                asyncio.run(filled(path) if create else count(path))
        assert asyncio.run(open_store(f"sqlite://{tmp_path}").jobs()) == []
        after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    assert after == before


@pytest.mark.parametrize("content", [b"", b"not a database\n" * 100], ids=["empty", "text"])
def test_another_file_is_left_alone(tmp_path, content):
    """A file that is not a database is refused unchanged."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    for create in (True, False):
        with pytest.raises(StoreError, match="it was not changed"):
            asyncio.run(filled(path) if create else count(path))
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == content


def test_a_newer_layout_names_what_it_needs(log_path):
    """A log with a newer layout is refused, with the version of ftcore that reads it."""
    edit(log_path, "PRAGMA user_version = 2", "UPDATE head SET reader = '9.1.0'")
    with pytest.raises(StoreError, match=r"has layout 2, this ftcore reads up to 1: it needs ftcore 9\.1\.0 or newer"):
        asyncio.run(count(log_path))


def test_one_file_holds_one_job(log_path):
    """A single file's store has the job whose name is in it, and no other."""

    async def main():
        store = open_store(f"sqlite://{log_path}")
        assert await store.jobs() == [JOB]
        with pytest.raises(NotFound, match="contains the log of job 'demo', not of 'other'"):
            await store.open(JobName("other"))
        with pytest.raises(UsageError, match="contains the log of job 'demo', not of 'other'"):
            await store.open(JobName("other"), create=True)

    asyncio.run(main())


def test_a_directory_holds_a_file_per_job(tmp_path):
    """Jobs of a directory are its log files; other files are ignored."""

    async def main():
        store = open_store(f"sqlite://{tmp_path}/logs")
        for job in ("b", "a", "a.db"):
            await store.open(JobName(job), create=True)
        (tmp_path / "logs" / "c.db").write_text("something else")
        assert await store.jobs() == ["a", "a.db", "b"]
        await store.close()

    asyncio.run(main())


# --- places that cannot be used ----------------------------------------------------------------------------------


def test_missing_and_mistaken_places(tmp_path, log_path):
    """A missing store has no jobs; a file is refused as a directory, and a directory as a file."""
    assert asyncio.run(open_store(f"sqlite://{tmp_path}/no/logs").jobs()) == []
    assert not (tmp_path / "no").exists()
    with pytest.raises(NotFound):
        asyncio.run(count(tmp_path / "no" / "y.db"))
    log_path.rename(tmp_path / "log")
    with pytest.raises(UsageError, match="is a file"):
        asyncio.run(filled(tmp_path / "log"))
    (tmp_path / "z.db").mkdir()
    with pytest.raises(StoreError, match="is a directory"):
        asyncio.run(filled(tmp_path / "z.db"))
    with pytest.raises(UsageError, match="cannot create the log"):
        asyncio.run(filled(tmp_path / "log" / "y.db"))


def test_a_log_is_private_to_its_user(tmp_path):
    """The directory, the log and its sidecar files have no permissions for others."""

    async def main():
        async with opened(tmp_path / "new" / "logs", create=True) as log:
            leadership = await log.campaign(ME)
            await put(log, leadership.term, 1, 1)
            follower = asyncio.create_task(anext(log.follow(Seq(1))))
            await asyncio.sleep(0.1)
            paths = [tmp_path / "new" / "logs", *(tmp_path / "new" / "logs").iterdir()]
            kinds = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in paths}
            follower.cancel()
        assert kinds == {"": 0o700, ".db": 0o600, ".db-wal": 0o600, ".db-shm": 0o600, ".lock": 0o600, ".wake": 0o700}

    asyncio.run(main())


def test_nothing_but_the_log_and_its_lock_is_left(tmp_path):
    """After everything is closed, only the log and the lock file remain."""

    async def main():
        async with opened(tmp_path / "x.db", create=True) as log:
            leadership = await log.campaign(ME)
            follower = asyncio.create_task(anext(log.follow()))
            await asyncio.sleep(0.05)
            await put(log, leadership.term, 1, 1)
            await follower
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db", "x.db.lock"]

    asyncio.run(main())


def test_an_unwritable_place_is_refused_with_the_reason(tmp_path):
    """An unwritable directory is refused with path and reason."""
    tmp_path.chmod(0o500)
    without_rights(
        "with pytest.raises(UsageError, match='cannot create the log .*Permission denied'):\n"
        "    asyncio.run(filled(Path(sys.argv[1])))",
        tmp_path / "y.db",
    )


@pytest.mark.parametrize("live", [False, True], ids=["closed", "in-use"])
def test_a_log_that_may_only_be_read_can_be_read(log_path, live):
    """A log without write permission can be read and followed; campaigns are refused."""

    async def main():
        async with opened(log_path) if live else contextlib.nullcontext():
            for path in log_path.parent.iterdir():
                path.chmod(0o400)
            log_path.parent.chmod(0o500)
            await asyncio.to_thread(
                without_rights,
                "async def main(path):\n"
                "    assert await count(path) == 5\n"
                "    async with opened(path) as log:\n"
                "        events = log.follow(Seq(2))\n"
                "        assert [(await anext(events)).seq for _ in range(3)] == [3, 4, 5]\n"
                "        await events.aclose()\n"
                "        assert not (await log.leader()).alive\n"
                "        with pytest.raises(StoreError): await log.campaign(ME)\n"
                "        with pytest.raises(StoreError, match='not writable'): await put(log, 1, 6, 6)\n"
                "    with pytest.raises(UsageError, match='not writable'): await filled(path)\n"
                "asyncio.run(main(Path(sys.argv[1])))",
                log_path,
            )

    asyncio.run(main())


def test_network_file_systems_are_detected_by_type():
    """The file system with the directory's device number decides, and only types shared over a network are refused."""
    mountinfo = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "40 22 0:52 / /home rw shared:9 master:2 - nfs4 server:/home rw,vers=4.2\n"
        "41 22 0:53 / /fs rw - fuse.sshfs me@host: rw\n"
        "42 22 0:54 / /lustre rw - lustre mgs@tcp:/fs rw\n"
        "43 22 0:55 / /fuse rw - fuse.mergerfs x rw\n"
    )
    kinds = [network_file_system(mountinfo, os.makedev(*device)) for device in ((8, 1), (0, 52), (0, 53), (0, 54))]
    assert kinds == [None, "nfs4", "fuse.sshfs", "lustre"]
    assert network_file_system(mountinfo, os.makedev(0, 55)) is None
    assert network_file_system(mountinfo, os.makedev(9, 9)) is None


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    """A log is neither created nor opened on a network file system."""
    monkeypatch.setattr(sqlite_file, "network_file_system", lambda mountinfo, device: "nfs4")
    with pytest.raises(UsageError, match=r"network file system \(nfs4\)"):
        asyncio.run(filled(tmp_path / "x.db"))
    assert [*tmp_path.iterdir()] == []


# --- disks that fail ---------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing(tmp_path):
    """On a full disk an append is refused as a whole; with space again the same append succeeds."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small disk")

    async def main():
        async with opened(disk / "x.db", create=True) as log:
            term = (await log.campaign(ME)).term
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * 400_000)
            last = 0
            with pytest.raises(LogFull, match="free some space"):
                while True:
                    await put(log, term, last + 1, last + 3, "x" * 10_000)
                    last += 3
            assert last > 0
            assert await log.last_seq() == last
            assert len([event async for event in log.read()]) == last
            ballast.unlink()
            await put(log, term, last + 1, last + 3, "x" * 10_000)
            assert await log.last_seq() == last + 3
        assert await count(disk / "x.db") == last + 3

    try:
        asyncio.run(main())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_size_limit_is_a_full_disk(log_path):
    """A write refused by a limit is reported as no space, and the log stays readable."""
    without_rights(
        "import resource\n"
        "async def main(path):\n"
        "    async with opened(path) as log:\n"
        "        term = (await log.campaign(ME)).term\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "        with pytest.raises(LogFull): await put(log, term, 6, 20, 'x' * 10_000)\n"
        "        assert await log.last_seq() == 5\n"
        "        await put(log, term, 6, 6)\n"
        "        assert [event.seq async for event in log.read()] == [1, 2, 3, 4, 5, 6]\n"
        "asyncio.run(main(Path(sys.argv[1])))",
        log_path,
    )


def test_a_locked_log_is_unavailable(log_path, monkeypatch):
    """While another program holds the file's write lock, appends fail as unavailable; afterwards they succeed."""
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)

    async def main():
        async with opened(log_path) as log:
            term = (await log.campaign(ME)).term
            with contextlib.closing(sqlite3.connect(log_path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(LogUnavailable, match="has been locked by another process"):
                    await put(log, term, 6, 6)
                assert len([event async for event in log.read()]) == 5
                other.execute("ROLLBACK")
            await put(log, term, 6, 6)

    asyncio.run(main())


def test_a_log_that_was_removed_is_not_written(log_path):
    """After the file was removed or replaced, appends fail, and no leader is reported."""

    async def main():
        async with opened(log_path) as log:
            term = (await log.campaign(ME)).term
            away = log_path.rename(log_path.with_name("away"))
            with pytest.raises(StoreError, match="was removed or replaced"):
                await put(log, term, 6, 6)
            with pytest.raises(StoreError, match="was removed or replaced"):
                await log.leader()
            away.rename(log_path)
            await put(log, term, 6, 6)
            leader = await log.leader()
            assert leader is not None and leader.term == term

    asyncio.run(main())


def test_a_write_ahead_log_without_its_database_is_not_adopted(log_path):
    """No log is created beside the write-ahead log of a removed one: SQLite would mix them."""
    wal = log_path.with_name("x.db-wal")
    wal.write_bytes(b"something")
    log_path.unlink()
    with pytest.raises(StoreError, match=r"is missing, but x\.db-wal exists"):
        asyncio.run(filled(log_path))
    wal.unlink()
    asyncio.run(filled(log_path))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM events WHERE seq = 3", "expected event 3, found 4"),
        (
            "UPDATE events SET body = replace(body, '\"seq\":3', '\"seq\":8') WHERE seq = 3",
            "event 3 does not match its digest",
        ),
        ("UPDATE events SET digest = zeroblob(16) WHERE seq = 2", "event 2 does not match its digest"),
        ("DELETE FROM events WHERE seq = 5", "the last event does not match the log's head"),
        ("UPDATE head SET next = 5", "the last event does not match the log's head"),
        ("UPDATE head SET digest = zeroblob(16)", "the last event does not match the log's head"),
        ("DELETE FROM head", "the last event does not match the log's head"),
    ],
)
def test_damage_is_found(log_path, statement, says):
    """A gap, changed bytes and a wrong end are detected when the log is read."""
    edit(log_path, statement)
    with pytest.raises(LogCorrupt, match=says):
        asyncio.run(count(log_path))


def test_a_torn_file_is_reported(log_path):
    """A database whose pages are overwritten is damaged, not a log that misses some events."""
    data = bytearray(log_path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    log_path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="is damaged"):
        asyncio.run(count(log_path))


# --- leadership --------------------------------------------------------------------------------------------------


def test_a_stale_record_does_not_depose_a_living_leader(log_path):
    """If a resumed old leader overwrites the current leader's record, a candidate continues to wait."""

    async def main():
        async with opened(log_path) as log, opened(log_path) as other:
            old = await log.campaign(ME)
            await old.resign()
            leadership = await log.campaign(ME)
            waiting = asyncio.create_task(other.campaign(ME))
            lock = LockFile(lock_path(log_path), write=True)
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                lock.write(LeaderRecord(old.term, Nanoseconds(1), True, "another"))
                await asyncio.sleep(0.02)
            lock.close()
            assert not waiting.done()
            await put(log, leadership.term, 6, 6)
            await leadership.resign()
            assert (await waiting).term == leadership.term + 1

    asyncio.run(main())


def test_a_leader_without_the_flock_leads_too(log_path):
    """A leader without the flock excludes others by its renewals, and acquires the flock once it is free."""

    async def main():
        async with opened(log_path) as log, opened(log_path) as other:
            lock = LockFile(lock_path(log_path), write=False)
            assert lock.try_lock()
            leadership = await log.campaign(ME)
            leader = await log.leader()
            assert leader is not None
            assert leader.alive
            lock.unlock()
            assert not lock.taken()
            waiting = asyncio.create_task(other.campaign(ME))
            record = lock.read()
            while record is None or not record.flocked:
                await asyncio.sleep(0.05)
                record = lock.read()
            assert lock.taken()
            assert not waiting.done()
            await put(log, leadership.term, 6, 6)
            await leadership.resign()
            await waiting
            lock.close()

    asyncio.run(main())


WRITER = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("writes", flush=True)
if sys.argv[2] == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
db.execute("ROLLBACK")
"""


@pytest.mark.parametrize("how", ["stops", "runs"])
def test_a_frozen_writer_is_killed(log_path, monkeypatch, how):
    """A candidate kills a stopped process that holds SQLite's write lock, but not a running one."""
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, log_path, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writes\n"
        if how == "stops":
            assert os.waitid(os.P_PID, writer.pid, os.WSTOPPED).si_status == signal.SIGSTOP

        async def main():
            async with opened(log_path) as log:
                if how == "stops":
                    term = (await log.campaign(ME)).term
                    await put(log, term, 6, 6)
                else:
                    with pytest.raises(LogUnavailable):
                        await log.campaign(ME)

        asyncio.run(main())
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait() == (-signal.SIGKILL if how == "stops" else 0)


def test_the_file_of_a_log_taken_by_a_newer_term_tells_its_leader(log_path):
    """A leader learns from the term in the file that it was deposed, and by whom."""

    async def main():
        async with opened(log_path) as log:
            leadership = await log.campaign(ME)
            file = LogFile(log_path)
            assert file.take_term(leadership.term, Candidate(host="other", pid=7, address="b")) == leadership.term + 1
            file.close()
            assert await leadership.lost() == f"other pid 7 leads with term {leadership.term + 1}"

    asyncio.run(main())


# --- waking ------------------------------------------------------------------------------------------------------


def test_followers_are_woken_under_long_paths(tmp_path):
    """Notifications work with paths longer than a socket path may be."""
    wake = Wake(tmp_path / ("x" * 200) / "w.wake")
    wake._directory.parent.mkdir()
    receiver = wake.listen()
    assert receiver is not None
    Wake(wake._directory).notify()
    assert receiver.recv(1) == b"\n"
    wake.close()
    assert [*wake._directory.parent.iterdir()] == []


def test_dead_followers_are_swept(tmp_path):
    """The next append removes the sockets of killed followers only."""
    directory = tmp_path / "w.wake"
    wake = Wake(directory)
    assert wake.listen() is not None
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as dead:
        dead.bind(str(directory / "dead"))
    assert len([*directory.iterdir()]) == 2
    wake.notify()
    assert [path.name for path in directory.iterdir()] == [wake._name]
    wake.close()
    assert not directory.exists()


def test_a_full_queue_does_not_hold_up_an_append(tmp_path):
    """An append does not wait for a follower that does not read."""
    wake = Wake(tmp_path / "w.wake")
    receiver = wake.listen()
    assert receiver is not None
    for _ in range(5_000):
        wake.notify()
    wake.drain()
    with pytest.raises(BlockingIOError):
        receiver.recv(1)
    wake.close()


def test_a_follower_whose_socket_vanished_still_sees_everything(log_path):
    """Without its socket a follower polls, and binds a new one."""

    async def main():
        async with opened(log_path) as log, opened(log_path) as other:
            term = (await log.campaign(ME)).term
            events = other.follow(Seq(5))
            follower = asyncio.create_task(anext(events))
            wake = log_path.with_name("x.db.wake")
            while not wake.exists() or not [*wake.iterdir()]:
                await asyncio.sleep(0.01)
            for path in wake.iterdir():
                path.unlink()
            await put(log, term, 6, 6)
            assert (await follower).seq == 6
            follower = asyncio.create_task(anext(events))
            while not [*wake.iterdir()]:
                await asyncio.sleep(0.01)
            await put(log, term, 7, 7)
            assert (await follower).seq == 7
            await events.aclose()

    asyncio.run(main())


def test_a_follower_of_a_log_that_was_restored_is_told(log_path):
    """The file's content goes back to an older copy under a follower."""
    copy = log_path.with_name("copy.db")

    async def main():
        async with opened(log_path) as log, opened(log_path) as other:
            with sqlite3.connect(log_path) as source, sqlite3.connect(copy) as target:
                source.backup(target)
            term = (await log.campaign(ME)).term
            await put(log, term, 6, 8)
            events = other.follow(Seq(7))
            assert (await anext(events)).seq == 8
            with sqlite3.connect(copy) as source, sqlite3.connect(log_path) as target:
                source.backup(target)
            with pytest.raises(StoreError, match="restored from an older copy"):
                await anext(events)

    asyncio.run(main())
