"""Archive file of a log: one portable text file.

    {"ftlog":1,"job":"demo","first":1,"previous":"00...00"}     header: format, job, first seq, digest before it
    5c0f...e1 {"seq":1,"id":["master","1",1],...}               one line per event: digest (hex), space, canonical JSON
    ...
    {"ftlog_end":1,"events":207,"digest":"9a77...02"}            footer: number of events, last digest

A long job's log is archived in several such files (``pieces``), each with its own first seq and the digest before it.

An export of a long log also has an overview of its events (``replay.overview``), in a line of its own before the
footer, which names its length. Readers that do not know it take that line for the footer:

    {"ftlog_end":1,"events":207,"digest":"9a77...02","content":"e3b0...55","overview":"eyJm..."}
    {"ftlog_end":1,"events":207,"digest":"9a77...02","overview_bytes":38211}

Digests are chained as in a live log (``events.codec.chain``), so changed, missing or reordered lines are detected; the
footer detects truncation. Files are written atomically (``outfile``); a pipe gets the lines as they are written. The
events are those that ``read`` returns: older schema versions are upgraded.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ftcore.errors import LogCorrupt, NotFound, StoreError
from ftcore.events.codec import GENESIS, chain, decode, encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName
from ftcore.logs.outfile import FileKind, OutFile

FORMAT = 1
"""The format written, and the newest that can be read."""

FOOTER_BYTES_MAX = 512

READ_BYTES = 1 << 20
"""Bytes read at once."""

NEAR_BYTES = 1 << 16
"""Bytes within which an event is searched line by line."""


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line.

    Args:
        ftlog: the format.
        job: the job.
        first: seq of the first event.
        previous: hex digest of the log before it.
        note: remark on the whole log for its readers; left out if empty.
    """

    ftlog: int
    job: str
    first: int
    previous: str
    note: str = ""


class Footer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last line.

    Args:
        ftlog_end: the format.
        events: number of events.
        digest: hex digest of the last event, or the header's ``previous`` if there is none.
        overview_bytes: length of the line before it, which has an overview; 0: there is none.
    """

    ftlog_end: int
    events: int
    digest: str
    overview_bytes: int = 0


class OverviewLine(msgspec.Struct, frozen=True, kw_only=True):
    """The line before the footer.

    Args:
        ftlog_end, events, digest: as in the footer.
        content: hex digest of all bytes before this line: SHA-256, which most processors compute.
        overview: the overview.
    """

    ftlog_end: int
    events: int
    digest: str
    content: str
    overview: bytes


class ArchiveContent(NamedTuple):
    """What an archive holds.

    Args:
        seq: its last event.
        digest: hex digest of the log up to it, by the footer.
        content: hex digest of all bytes of the header and the events.
        overview: the overview in it; None if there is none, or it was made of other bytes.
    """

    seq: int
    digest: str
    content: str
    overview: bytes | None


KIND = FileKind(name="an archive", begins=b'{"ftlog":', mode=0o600)


class ArchiveWriter:
    """Writes an archive atomically; a context manager.

    Args:
        path: the file; an existing archive is overwritten, see ``outfile``. None: standard output.
        job: the job.
        after: the seq before the first event.
        previous: the log's digest up to ``after``.
        note: see ``ArchiveHeader``.

    Raises:
        UsageError: the file cannot be written, or exists and is not an archive.
        LogFull: no space.
    """

    def __init__(
        self, path: Path | None, job: JobName, *, after: int = 0, previous: bytes = GENESIS, note: str = ""
    ) -> None:
        self._out = OutFile(path, KIND)
        self._after = after
        self._digest = previous
        self._content = hashlib.sha256()
        self._overview: bytes | None = None
        self.events = 0
        header = ArchiveHeader(ftlog=FORMAT, job=job, first=after + 1, previous=previous.hex(), note=note)
        self._line(msgspec.json.encode(header))

    @property
    def replaced(self) -> bool:
        """Whether an existing archive is overwritten."""
        return self._out.replaced

    @property
    def digest(self) -> str:
        """Hex digest of the log up to the last event that was written."""
        return self._digest.hex()

    def attach(self, overview: bytes) -> None:
        """Add an overview of all events."""
        self._overview = overview

    def add(self, event: Event) -> None:
        """Write the next event."""
        assert event.seq == self._after + self.events + 1
        self.add_stored(encode(event))

    def add_stored(self, body: bytes) -> None:
        """Write the next event, given as stored bytes."""
        self._digest = chain(self._digest, body)
        self._line(self._digest.hex().encode() + b" " + body)
        self.events += 1

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._out.close()

    def _finish(self) -> None:
        fields: dict[str, Any] = {"ftlog_end": FORMAT, "events": self.events, "digest": self.digest}
        if self._overview is not None:
            content = self._content.hexdigest()
            line = msgspec.json.encode(OverviewLine(content=content, overview=self._overview, **fields))
            self._line(line)
            fields["overview_bytes"] = len(line) + 1
        self._line(msgspec.json.encode(Footer(**fields)))
        self._out.finish()

    def _line(self, line: bytes) -> None:
        line += b"\n"
        self._content.update(line)
        self._out.write(line)


def read_header(path: Path) -> ArchiveHeader:
    """The first line of an archive.

    Raises:
        StoreError: the file is not an archive, or has a newer format.
    """
    with _opened(path) as file:
        return _header(path, file)


def read_footer(path: Path) -> Footer:
    """The last line of an archive.

    Raises:
        LogCorrupt: the last line is not a footer: the file is truncated.
    """
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - FOOTER_BYTES_MAX))
        tail = file.read()
        with contextlib.suppress(msgspec.MsgspecError):
            if tail.endswith(b"\n"):
                return msgspec.json.decode(tail.rstrip(b"\n").rpartition(b"\n")[2], type=Footer)
        file.seek(0)
        lines = sum(1 for _ in file)
    raise LogCorrupt(f"{path}, line {lines}: the file is truncated: it ends without a footer; export it again")


def read_content(path: Path) -> ArchiveContent | None:
    """What an archive holds, from all its bytes but without looking at its lines; None if it is not intact.

    With ``content`` known from an earlier reading that verified every line, the lines need not be verified again.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        header, footer = read_header(path), read_footer(path)
    except LogCorrupt:
        return None
    with _opened(path) as file:
        end = _events_end(file, footer)
        content = hashlib.sha256()
        file.seek(0)
        left = end
        while left > 0 and (part := file.read(min(left, READ_BYTES))):
            content.update(part)
            left -= len(part)
        found = _overview_line(file.read(footer.overview_bytes)) if footer.overview_bytes else None
    seq, summed = header.first - 1 + footer.events, content.hexdigest()
    if left:
        return None
    if footer.overview_bytes:
        if found is None or (found.events, found.digest) != (footer.events, footer.digest):
            return None
        if found.content == summed:
            return ArchiveContent(seq, footer.digest, summed, found.overview)
    return ArchiveContent(seq, footer.digest, summed, None)


def _events_end(file: BinaryIO, footer: Footer) -> int:
    """Where the lines of events end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - FOOTER_BYTES_MAX))
    last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    return max(0, size - len(last) - 1 - footer.overview_bytes)


def _overview_line(line: bytes) -> OverviewLine | None:
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=OverviewLine)
    return None


class Line(NamedTuple):
    """A verified event of an archive: its file, its seq, its body, and the log's digest up to it."""

    path: Path
    seq: int
    body: bytes
    digest: bytes


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of an archive, in order, each verified.

    Raises:
        LogCorrupt: a line was changed, with its number, or the file is truncated.
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
                raise LogCorrupt(f"{path}, line {number}: event {seq} does not match its digest: the line was changed")
            yield Line(path, seq, body, digest)
    raise LogCorrupt(f"{path}, line {number}: the file is truncated: it ends without a footer")


class _SeqAlone(msgspec.Struct, frozen=True):
    seq: int


def read_range(path: Path, after: int, until: int) -> Iterator[Line]:
    """The lines with ``after < seq <= until`` of an archive that is known to be intact, found by bisection.

    Raises:
        LogCorrupt: one of these lines was changed.
    """
    with _opened(path) as file:
        header = _header(path, file)
        digest, seq = bytes.fromhex(header.previous), header.first - 1
        start = file.tell()
        low = _line_before(file, start, after)
        file.seek(low)
        for line in file:
            if line.startswith(b"{") or seq >= until:
                return
            stored, _, body = line.removesuffix(b"\n").partition(b" ")
            if low > start:  # that line is before the wanted ones, and has the digest that they continue
                seq, digest, low = _seq_in(line), bytes.fromhex(stored.decode()), start
                continue
            seq, digest = seq + 1, chain(digest, body)
            if stored != digest.hex().encode():
                raise LogCorrupt(f"{path}: event {seq} does not match its digest: the line was changed")
            if after < seq <= until:
                yield Line(path, seq, body, digest)


def _line_before(file: BinaryIO, start: int, after: int) -> int:
    """Where a line begins that is at most ``NEAR_BYTES`` before that of event ``after + 1``."""
    low, high = start, file.seek(0, os.SEEK_END)
    while high - low > NEAR_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        at = file.tell()
        line = file.readline()
        if at >= high or not line or line.startswith(b"{") or _seq_in(line) > after:
            high = middle
        else:
            low = at
    return low


def _seq_in(line: bytes) -> int:
    try:
        return msgspec.json.decode(line.partition(b" ")[2], type=_SeqAlone).seq
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"not an event: {error}: {line[:120]!r}") from error


def read_events(path: Path, after: int = 0) -> Iterator[Event]:
    """The events of an archive with ``seq > after``, in order; raises as ``read_lines`` does."""
    for line in read_lines(path):
        if line.seq > after:
            yield decoded(line)


def decoded(line: Line) -> Event:
    """The event of a line; raises ``LogCorrupt``."""
    path, seq, body, _ = line
    event = decode(body)
    if event.seq != seq:
        raise LogCorrupt(f"{path}: event {seq} has seq {event.seq} in its body")
    return event


def _check_footer(path: Path, number: int, line: bytes, events: int, digest: bytes) -> None:
    try:
        footer = msgspec.json.decode(line, type=Footer)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"{path}, line {number}: neither an event nor a footer: {error}") from error
    if footer.events != events or footer.digest != digest.hex():
        raise LogCorrupt(f"{path}, line {number}: the footer says {footer.events} events, the file has {events}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _header(path: Path, file: BinaryIO) -> ArchiveHeader:
    try:
        header = msgspec.json.decode(file.readline(4096), type=ArchiveHeader)
        if len(bytes.fromhex(header.previous)) != len(GENESIS):
            raise ValueError("digest")
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"{path} is not an ftcore archive: its first line is not a header") from error
    if header.ftlog > FORMAT:
        raise StoreError(f"{path} has format {header.ftlog}, this ftcore reads up to {FORMAT}: use a newer ftcore")
    return header
