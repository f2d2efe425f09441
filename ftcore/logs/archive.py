"""A log taken away: one text file that can be read anywhere.

    {"ftlog":1,"job":"demo","first":1,"previous":"00...00"}     header: format, job, first seq, digest before it
    5c0f...e1 {"seq":1,"id":["master","1",1],...}               one line per event: digest (hex), space, canonical JSON
    ...
    {"ftlog_end":1,"events":207,"digest":"9a77...02"}            footer: how many, and the last digest

House rules: digests are chained as in a live log (``events.codec.chain``), so a line that was changed, lost or swapped
is found, and the footer tells a whole file from one that was cut. An archive is there whole or not at all
(``outfile``); only a pipe gets it line by line, and its reader knows a whole one by the footer. It holds what ``read``
gives: events of an older schema version are written as this ftcore understands them.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from ftcore.errors import LogCorrupt, NotFound, StoreError, UsageError
from ftcore.events.codec import GENESIS, chain, decode, encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.outfile import FileKind, OutFile
from ftcore.logs.rules import check_job_name
from ftcore.ports import Candidate, EventLog, Leader, Leadership

FORMAT = 1
"""The format that this ftcore writes and the newest it reads."""

CHUNK = 500
"""Events read at once, in another thread."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Args:
        ftlog: the format.
        job: the job.
        first: seq of the first event.
        previous: hex digest of the log before it.
    """

    ftlog: int
    job: str
    first: int
    previous: str


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line.

    Args:
        ftlog_end: the format.
        events: number of events.
        digest: hex digest of the last event, or the header's ``previous`` if there is none.
    """

    ftlog_end: int
    events: int
    digest: str


KIND = FileKind(name="an archive", begins=b'{"ftlog":', mode=0o600)


class ArchiveWriter:
    """Writes an archive: a context manager that leaves a whole file, or, after an error, what was there before.

    Args:
        path: where; an archive that is there is replaced, see ``outfile``. None: standard output.
        job: the job.

    Raises:
        UsageError: the file cannot be written, or another one is there.
        LogFull: no space.
    """

    def __init__(self, path: Path | None, job: JobName) -> None:
        self._out = OutFile(path, KIND)
        self._digest = GENESIS
        self.events = 0
        self._line(msgspec.json.encode(Header(ftlog=FORMAT, job=job, first=1, previous=GENESIS.hex())))

    @property
    def replaced(self) -> bool:
        """An archive was there."""
        return self._out.replaced

    def add(self, event: Event) -> None:
        """Write the next event."""
        assert event.seq == self.events + 1
        body = encode(event)
        self._digest = chain(self._digest, body)
        self._line(self._digest.hex().encode() + b" " + body)
        self.events += 1

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                footer = Footer(ftlog_end=FORMAT, events=self.events, digest=self._digest.hex())
                self._line(msgspec.json.encode(footer))
                self._out.finish()
        finally:
            self._out.close()

    def _line(self, line: bytes) -> None:
        self._out.write(line + b"\n")


async def export(log: EventLog, path: Path) -> int:
    """Write a whole log to an archive; returns the number of events.

    Args:
        log: the log; events that are appended meanwhile are left out.
        path: the archive; one that is there is replaced once the new one is whole.

    Raises:
        UsageError: the file cannot be written, or another one is there.
        LogFull: no space.
    """
    with ArchiveWriter(path, log.job) as writer:
        await copy(log, writer)
    return writer.events


async def copy(log: EventLog, writer: ArchiveWriter) -> None:
    """Write what a log holds by now."""
    async for event in log.read():
        writer.add(event)


def read_header(path: Path) -> Header:
    """The first line of an archive.

    Raises:
        StoreError: it is no archive, or one of a newer format.
    """
    with _opened(path) as file:
        return _header(path, file)


def read_footer(path: Path) -> Footer:
    """The last line of an archive.

    Raises:
        LogCorrupt: the last line is no footer: the file was cut.
    """
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 512))
        tail = file.read()
        with contextlib.suppress(msgspec.MsgspecError):
            if tail.endswith(b"\n"):
                return msgspec.json.decode(tail.rstrip(b"\n").rpartition(b"\n")[2], type=Footer)
        file.seek(0)
        lines = sum(1 for _ in file)
    raise LogCorrupt(f"{path}, line {lines}: the file ends here without a footer: it was cut; export it again")


def read_events(path: Path, after: int = 0) -> Iterator[Event]:
    """The events of an archive with ``seq > after``, in order; all lines up to the end are checked.

    Raises:
        LogCorrupt: names the first line that is not as it was written.
    """
    with _opened(path) as file:
        header = _header(path, file)
        number = 1
        seq = header.first - 1
        digest = bytes.fromhex(header.previous)
        for number, line in enumerate(file, 2):
            if line.startswith(b"{"):
                _check_footer(path, number, line, seq - header.first + 1, digest)
                return
            stored, space, body = line.removesuffix(b"\n").partition(b" ")
            seq += 1
            digest = chain(digest, body)
            if not space or stored != digest.hex().encode():
                raise LogCorrupt(f"{path}, line {number}: event {seq} does not fit its digest: it was changed")
            if seq > after:
                event = decode(body)
                if event.seq != seq:
                    raise LogCorrupt(f"{path}, line {number}: event {seq} calls itself {event.seq}")
                yield event
    raise LogCorrupt(f"{path}, line {number}: the file ends here without a footer: it was cut")


def _check_footer(path: Path, number: int, line: bytes, events: int, digest: bytes) -> None:
    try:
        footer = msgspec.json.decode(line, type=Footer)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"{path}, line {number}: neither an event nor a footer: {error}") from error
    if footer.events != events or footer.digest != digest.hex():
        raise LogCorrupt(f"{path}, line {number}: the footer tells of {footer.events} events, {events} are here")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _header(path: Path, file: BinaryIO) -> Header:
    try:
        header = msgspec.json.decode(file.readline(4096), type=Header)
        if len(bytes.fromhex(header.previous)) != len(GENESIS):
            raise ValueError("digest")
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"{path} is not an archive of ftcore: its first line is no header") from error
    if header.ftlog > FORMAT:
        raise StoreError(f"{path} has format {header.ftlog}, this ftcore reads up to {FORMAT}: use a newer one")
    return header


class ArchiveLog:
    """The log in an archive; see ``ports.EventLog``. What would write raises ``UsageError``."""

    def __init__(self, path: Path, job: JobName, last: Seq) -> None:
        self._path = path
        self._job = job
        self._last = last

    @property
    def job(self) -> JobName:
        """The job whose log it is."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """Refused: raises ``UsageError``."""
        self._refuse()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        return self._last

    async def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        events = read_events(self._path, after)
        if until is not None:
            events = itertools.takewhile(lambda event: event.seq <= until, events)
        while chunk := await asyncio.to_thread(lambda: list(itertools.islice(events, CHUNK))):
            for event in chunk:
                yield event

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``: nothing new ever comes, and it waits for it."""
        async for event in self.read(after):
            yield event
        await asyncio.get_running_loop().create_future()

    async def campaign(self, candidate: Candidate) -> Leadership:
        """Refused: raises ``UsageError``."""
        self._refuse()

    async def leader(self) -> Leader | None:
        """None: nobody leads an archive; who led is told by its ``master.elected`` events."""
        return None

    async def close(self) -> None:
        """Nothing is held open."""

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{self._path}: an archive is read-only; name the live store")


class ArchiveStore:
    """An archive as a store of one job; see ``ports.LogStore``.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        return [JobName(read_header(self._path).job)]

    async def open(self, job: JobName, *, create: bool = False) -> ArchiveLog:
        """See ``ports.LogStore.open``.

        Raises:
            LogCorrupt: the file was cut.
        """
        job = check_job_name(job)
        header = read_header(self._path)
        if header.job != job:
            raise NotFound(f"{self._path} holds the log of job {header.job!r}, not of {job!r}")
        if create:
            raise UsageError(f"{self._path}: an archive is read-only; name the live store")
        footer = read_footer(self._path)
        return ArchiveLog(self._path, job, Seq(header.first - 1 + footer.events))

    async def close(self) -> None:
        """Nothing is held open."""
