"""Event logs on one machine: one SQLite file per job.

All SQLite calls of a log run in order in one thread, so the event loop never waits for the disk. A cancelled call is
still executed. ``sqlite_file`` defines the file, ``sqlite_lease`` leadership, ``wake`` the notification of followers.

Files beside ``x.db``: ``x.db-wal`` and ``x.db-shm`` while it is open, ``x.db.lock`` after the first election, and
``x.db.wake/`` while there are followers. To copy a log in use, run ``ftctl export`` or ``sqlite3 x.db .backup``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ftcore.errors import Fenced, LogCorrupt, LogUnavailable, NotFound, StoreError, UsageError
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs import sqlite_file
from ftcore.logs.rules import check_job_name, continued, encode_group, one_by_one
from ftcore.logs.sqlite_file import LogFile
from ftcore.logs.sqlite_lease import POLL_S, LeaseCampaign, SqliteLeadership, leader_of
from ftcore.logs.wake import Wake
from ftcore.ports import Candidate, Floor, Leader, Snapshot, Space

T = TypeVar("T")

SUFFIXES = (".db", ".sqlite")
"""Suffixes of a log file; any other path is a directory of log files."""

SAFETY_POLL_S = 1.0
"""Poll interval of a follower that receives notifications: a writer may die between its commit and its notification."""

BLIND_POLL_S = 0.1
"""Poll interval of a follower without notifications, because it cannot write to the log's directory."""

BETWEEN_SLICES_S = 0.01
"""Pause between two slices of a truncation, in which other writers get the file's lock."""


class SqliteLog:
    """One handle on a log; see ``ports.EventLog``.

    Args:
        file: the open file, used by no other thread.
        thread: the only thread that uses the file from now on.
    """

    def __init__(self, file: LogFile, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._thread = thread
        self._wake = Wake(file.path.with_name(f"{file.path.name}.wake"))
        self._followers: set[asyncio.Event] = set()
        self._watching: asyncio.AbstractEventLoop | None = None
        self._leaderships: list[SqliteLeadership] = []
        self._closed = False

    @property
    def job(self) -> JobName:
        """Name of the job."""
        return self._file.job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        bodies = encode_group(events, expected_seq)
        try:
            await self._call(lambda: self._append(bodies, term, expected_seq))
        except Fenced:
            for leadership in self._leaderships:
                leadership.check_now()
            raise
        self._notify()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        return await self._call(self._file.last_seq)

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog.read_batches``."""
        end = await self.last_seq()
        end = end if until is None else min(until, end)
        while after < end:
            events = await self._chunk(after, end)
            if not events:
                raise LogCorrupt(f"{self._file.path}: event {after + 1} is missing, the log ends at {end}")
            yield events
            after = events[-1].seq

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``."""
        notified = asyncio.Event()
        seen = Seq(0)
        self._followers.add(notified)
        try:
            while True:
                poll_s = self._watch()
                notified.clear()
                try:
                    seen = continued(self.job, seen, await self.last_seq())
                    events = await self._chunk(after, None)
                except LogUnavailable:
                    await asyncio.sleep(BLIND_POLL_S)
                    continue
                for event in events:
                    yield event
                    after = seen = event.seq
                if not events:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(poll_s):
                            await notified.wait()
        finally:
            self._followers.discard(notified)
            if not self._followers:
                self._unwatch()

    async def campaign(self, candidate: Candidate) -> SqliteLeadership:
        """See ``ports.EventLog.campaign``."""
        campaign = await self._call(lambda: LeaseCampaign(self._file, candidate))
        won: SqliteLeadership | None = None
        try:
            while True:
                attempt = asyncio.ensure_future(self._call(campaign.attempt))
                try:
                    won = await asyncio.shield(attempt)
                except asyncio.CancelledError:
                    won = await attempt  # the thread completes the attempt anyway
                    if won is not None:
                        await won.resign()
                    raise
                if won is not None:
                    self._leaderships.append(won)
                    return won
                await asyncio.sleep(POLL_S)
        finally:
            if won is None:
                campaign.close()

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        until = min(until, await self.last_seq())
        while after < until:
            bodies = await self._call(partial(self._file.stored, after, until))
            if not bodies:
                raise LogCorrupt(f"{self._file.path}: event {after + 1} is missing")
            yield bodies
            after = Seq(after + len(bodies))

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return await self._call(self._file.floor)

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        return await self._call(lambda: self._file.digest_at(seq))

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``."""
        more = True
        while more:
            more = await self._call(lambda: self._file.truncate(until, term, archive))
            await asyncio.sleep(BETWEEN_SLICES_S if more else 0)
        return await self.floor()

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        await self._call(lambda: self._file.save_snapshot(snapshot, term))

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        return await self._call(lambda: self._file.snapshot(until))

    async def reclaim(self) -> None:
        """Do nothing: SQLite reuses the space of deleted rows."""

    async def space(self) -> Space | None:
        """None: only the disk limits the file."""
        return None

    async def leader(self) -> Leader | None:
        """See ``ports.EventLog.leader``."""
        return await self._call(lambda: leader_of(self._file))

    async def close(self) -> None:
        """See ``ports.EventLog.close``."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        await self._call(self._close)
        self._thread.shutdown(wait=False)

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _chunk(self, after: Seq, until: Seq | None) -> list[Event]:
        return await self._call(lambda: self._file.read(after, until))

    def _append(self, bodies: list[bytes], term: Term, expected_seq: Seq) -> None:
        self._file.append(bodies, term, expected_seq)
        self._wake.notify()

    def _close(self) -> None:
        for leadership in self._leaderships:
            leadership.end("the log was closed")
        self._file.close()

    def _watch(self) -> float:
        """Start to receive notifications if possible; returns the poll interval in seconds."""
        loop = asyncio.get_running_loop()
        if self._watching is not None and not self._wake.still_listed():
            self._unwatch()
        if self._watching is None:
            receiver = self._wake.listen()
            if receiver is None:
                return BLIND_POLL_S
            loop.add_reader(receiver, self._woken)
            self._watching = loop
        return SAFETY_POLL_S

    def _unwatch(self) -> None:
        if self._watching is None:
            return
        receiver = self._wake.listen()
        if receiver is not None and not self._watching.is_closed():
            self._watching.remove_reader(receiver)
        self._watching = None
        self._wake.close()

    def _woken(self) -> None:
        self._wake.drain()
        self._notify()

    def _notify(self) -> None:
        for notified in self._followers:
            notified.set()


class SqliteStore:
    """A directory of log files, or a single log file; see ``ports.LogStore``.

    Args:
        path: absolute; a single file if it ends in one of ``SUFFIXES``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._single = path.suffix in SUFFIXES
        self._opened: list[SqliteLog] = []

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        return await asyncio.to_thread(self._jobs)

    async def open(self, job: JobName, *, create: bool = False) -> SqliteLog:
        """See ``ports.LogStore.open``."""
        job = check_job_name(job)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ftcore-log")
        try:
            file = await asyncio.get_running_loop().run_in_executor(thread, self._open, job, create)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        log = SqliteLog(file, thread)
        self._opened.append(log)
        return log

    async def close(self) -> None:
        """Close the logs opened through this store."""
        for log in self._opened:
            await log.close()

    def _jobs(self) -> list[JobName]:
        if self._single:
            return [sqlite_file.job_of(self._path)] if self._path.exists() else []
        self._check_directory()
        try:
            files = sorted(self._path.glob("*.db"))
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        return sorted(JobName(file.stem) for file in files if file.is_file() and sqlite_file.is_ours(file))

    def _open(self, job: JobName, create: bool) -> LogFile:
        if not self._single:
            self._check_directory()
        path = file_of(self._path, job)
        if create:
            sqlite_file.create(path, job)
        try:
            found = path.exists()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        if not found:
            raise NotFound(f"no log of job {job!r} in {self._path}")
        sqlite_file.require_local(path.parent)
        file = LogFile(path)
        if file.job == job:
            if create and not file.writable:
                file.close()
                raise UsageError(f"{path} is not writable by this user")
            return file
        file.close()
        message = f"{path} contains the log of job {file.job!r}, not of {job!r}"
        if create:
            raise UsageError(f"{message}: use that job name, or another store")
        raise NotFound(message)

    def _check_directory(self) -> None:
        try:
            found = self._path.exists()
        except OSError as error:  # for example a directory of another user
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        if found and not self._path.is_dir():
            raise UsageError(f"{self._path} is a file: the name of a log file must end in {' or '.join(SUFFIXES)}")


def file_of(path: Path, job: str) -> Path:
    """The file with a job's log.

    Args:
        path: path of the store: a directory, or a log file.
        job: the job.
    """
    return path if path.suffix in SUFFIXES else path / f"{job}.db"
