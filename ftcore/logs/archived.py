"""Logs read from archives: from one file, from a directory of pieces, or a live log joined with its archive.

Files are read in another thread, ``CHUNK`` events at a time. A joined log has no gap: if the live log is truncated
during a read, the missing events are read from the archive.
"""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from ftcore.errors import FtcoreError, LogCorrupt, NotFound, Truncated, UsageError
from ftcore.events.codec import encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.archive import Line, decoded, read_footer, read_header, read_lines, read_range
from ftcore.logs.in_thread import in_thread
from ftcore.logs.pieces import FileArchive
from ftcore.logs.rules import check_job_name, one_by_one, truncated
from ftcore.ports import Candidate, EventLog, Floor, Leader, Leadership, Snapshot, Space

CHUNK = 500
"""Events read per call of the thread."""

Lines = Callable[[int, int | None], Iterator[Line]]


async def _chunks(lines: Iterator[Line]) -> AsyncIterator[tuple[list[Event], bytes]]:
    """Decode in a thread; the events before a damaged one come before its error.

    Yields:
        Events, and the digest of the log up to the last of them.
    """
    failed: FtcoreError | None = None

    def some() -> tuple[list[Event], bytes]:
        nonlocal failed
        chunk: list[Event] = []
        digest = b""
        try:
            for line in itertools.islice(lines, CHUNK):
                chunk.append(decoded(line))
                digest = line.digest
        except FtcoreError as error:
            failed = error
        return chunk, digest

    while (found := await in_thread(some))[0]:
        yield found
        if failed is not None:
            break
    if failed is not None:
        raise failed


class ArchiveLog:
    """The log in an archive; see ``ports.EventLog``. Methods that write raise ``UsageError``.

    Args:
        where: the file or directory, for messages.
        job: the job.
        floor: the start of the archive.
        last: the last event.
        lines: reads the lines in a range of seqs.
    """

    def __init__(self, where: Path, job: JobName, floor: Floor, last: Seq, lines: Lines) -> None:
        self._where = where
        self._job = job
        self._floor = floor
        self._last = last
        self._lines = lines

    @property
    def job(self) -> JobName:
        """Name of the job."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """Raise ``UsageError``: archives are read-only."""
        self._refuse()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        return self._last

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog.read_batches``."""
        if after < self._floor.seq and (until is None or until > after):
            raise truncated(self._job, after, self._floor)
        end = self._last if until is None else min(until, self._last)
        if after < end:
            async for events, _ in _chunks(self._lines(after, end)):
                yield events

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``: after the archived events, waits forever."""
        async for event in self.read(after):
            yield event
        import asyncio  # commands that only read need none

        await asyncio.get_running_loop().create_future()

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        async for events in self.read_batches(after, until):
            yield [encode(event) for event in events]

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return self._floor

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        if not self._floor.seq <= seq <= await self.last_seq():
            return ""
        if seq == self._floor.seq:
            return self._floor.digest
        async for _, digest in _chunks(self._lines(seq - 1, seq)):
            return digest.hex()
        return ""

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """Raise ``UsageError``: archives are read-only."""
        self._refuse()

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """Raise ``UsageError``: archives are read-only."""
        self._refuse()

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """None: an archive has no snapshots."""
        return None

    async def reclaim(self) -> None:
        """Do nothing."""

    async def space(self) -> Space | None:
        """None: archives are read-only."""
        return None

    async def campaign(self, candidate: Candidate) -> Leadership:
        """Raise ``UsageError``: archives are read-only."""
        self._refuse()

    async def leader(self) -> Leader | None:
        """None: past leaders are in the ``master.elected`` events."""
        return None

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{self._where}: an archive is read-only; name the live store")


def _whole_file(path: Path, floor: Seq, last: Seq) -> Lines:
    def lines(after: int, until: int | None) -> Iterator[Line]:
        found, end = read_lines(path), last if until is None else until
        if after <= floor and end >= last:
            return found
        return (line for line in found if after < line.seq <= end)

    return lines


def intact_file(path: Path) -> ArchiveLog:
    """The log in an archive file whose lines were verified before; a range of its events is found without the others.

    Raises:
        LogCorrupt: the file is truncated.
    """
    header = read_header(path)
    first, last = Seq(header.first - 1), Seq(header.first - 1 + read_footer(path).events)

    def lines(after: int, until: int | None) -> Iterator[Line]:
        return read_range(path, after, last if until is None else until)

    return ArchiveLog(path, JobName(header.job), Floor(seq=first, digest=header.previous), last, lines)


def readable_part(path: Path) -> ArchiveLog:
    """The log in an archive file that was cut off or changed: its events before the first line that does not verify.

    Raises:
        StoreError: the file is not an archive, or has a newer format.
    """
    header = read_header(path)
    first = Seq(header.first - 1)
    last = first
    with contextlib.suppress(LogCorrupt):
        for line in read_lines(path):
            last = Seq(line.seq)

    def lines(after: int, until: int | None) -> Iterator[Line]:
        end = last if until is None else min(last, until)
        if after < end:
            for line in read_lines(path):
                if line.seq > after:
                    yield line
                if line.seq >= end:
                    return

    return ArchiveLog(path, JobName(header.job), Floor(seq=first, digest=header.previous), last, lines)


class ArchiveStore:
    """An archive as a store; see ``ports.LogStore``.

    Args:
        path: a file with one job's log, or a directory of archived jobs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        if not self._path.is_dir():
            return [JobName(read_header(self._path).job)]
        names = [JobName(path.name) for path in self._path.iterdir() if path.is_dir()]
        return sorted(name for name in names if FileArchive(self._path, name).pieces())

    async def open(self, job: JobName, *, create: bool = False) -> ArchiveLog:
        """See ``ports.LogStore.open``.

        Raises:
            LogCorrupt: the file is truncated.
        """
        job = check_job_name(job)
        if self._path.is_dir():
            return self._open_pieces(job, create)
        header = read_header(self._path)
        if header.job != job:
            raise NotFound(f"{self._path} contains the log of job {header.job!r}, not of {job!r}")
        self._check_reading(create)
        last = Seq(header.first - 1 + read_footer(self._path).events)
        floor = Floor(seq=Seq(header.first - 1), digest=header.previous)
        return ArchiveLog(self._path, job, floor, last, _whole_file(self._path, floor.seq, last))

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    def _open_pieces(self, job: JobName, create: bool) -> ArchiveLog:
        archive = FileArchive(self._path, job)
        pieces = archive.pieces()
        if not pieces:
            raise NotFound(f"there is no archive of job {job!r} in {self._path}")
        self._check_reading(create)
        previous = read_header(pieces[0].path).previous
        floor = Floor(seq=Seq(pieces[0].first - 1), digest=previous)
        last = Seq(max(piece.last for piece in pieces))
        return ArchiveLog(archive.path, job, floor, last, archive.lines)

    def _check_reading(self, create: bool) -> None:
        if create:
            raise UsageError(f"{self._path}: an archive is read-only; name the live store")


class JoinedLog:
    """A live log joined with its archive for reading; all other methods are those of the live log.

    Args:
        live: the log.
        archive: the root directory of archives; None: the location recorded in the live log.
    """

    def __init__(self, live: EventLog, archive: Path | None) -> None:
        self._live = live
        self._root = archive
        self.job = live.job
        self.append, self.last_seq = live.append, live.last_seq
        self.floor, self.stored, self.truncate = live.floor, live.stored, live.truncate
        self.snapshot, self.save_snapshot = live.snapshot, live.save_snapshot
        self.space, self.reclaim = live.space, live.reclaim
        self.campaign, self.leader = live.campaign, live.leader
        self.close = live.close

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``; of an archived event, the digest in the archive."""
        found = await self._live.digest_at(seq)
        if found or seq < 1:
            return found
        floor = await self._live.floor()
        archive = self._archive(floor)
        if archive is None or seq > floor.seq:
            return ""
        try:
            async for _, digest in _chunks(archive.lines(seq - 1, seq)):
                return digest.hex()
        except FtcoreError:  # who reads these events says why
            return ""
        return ""

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``.

        Raises:
            Truncated: events are in neither the live log nor the archive. All events after its ``floor`` exist.
        """
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog.read_batches``; raises as ``read`` does."""
        while until is None or after < until:
            try:
                async for events in self._live.read_batches(after, until):
                    yield events
                    after = events[-1].seq
                return
            except Truncated as error:
                async for events in self._archived(after, until, error):
                    yield events
                    after = events[-1].seq

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``; raises as ``read`` does."""
        while True:
            try:
                async for event in self._live.follow(after):
                    yield event
                    after = event.seq
                return
            except Truncated as error:
                async for event in one_by_one(self._archived(after, None, error)):
                    yield event
                    after = event.seq

    async def _archived(self, after: Seq, until: Seq | None, cause: Truncated) -> AsyncIterator[list[Event]]:
        floor = await self._live.floor()
        archive = self._archive(floor)
        if archive is None:
            raise Truncated(f"{cause}; name the archive with --archive or FTCORE_ARCHIVE", cause.floor) from cause
        end = floor.seq if until is None else min(until, floor.seq)
        try:
            async for events, digest in _chunks(archive.lines(after, end)):
                if events[-1].seq == floor.seq and digest.hex() != floor.digest:
                    raise LogCorrupt(f"{archive.path} is the archive of another log of a job named {self.job}")
                yield events
        except NotFound as error:
            start = await in_thread(archive.begins, floor.seq)
            state = f"has {archive.event_ranges()}" if archive.path.is_dir() else "does not exist"
            raise Truncated(
                f"job {self.job}: events {after + 1} to {start} were moved to the archive {archive.path}, which "
                f"{state}; name the directory that contains {self.job}/ with --archive or FTCORE_ARCHIVE, or read from "
                f"event {start + 1} on: ftctl events --since {start + 1}",
                start,
            ) from error

    def _archive(self, floor: Floor) -> FileArchive | None:
        if self._root is not None:
            return FileArchive(self._root, self.job)
        return FileArchive.at(Path(floor.archive), self.job) if floor.archive else None
