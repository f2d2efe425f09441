"""Salvage of a damaged SQLite log: a new log with the events that can still be read.

These are the events from the first one up to the first that does not match its digest. A ``log.salvaged`` event follows
them, and the new log has a new identity. The damaged file is only read and renamed.

Only whole groups are kept: decisions that belong to the last fact may be lost, so that fact is dropped too. Functions
block; for a tool, not for a master.
"""

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from ftcore.errors import FtcoreError, LogCorrupt, Refused
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.ids import JobName, Seq, Term
from ftcore.logs import sqlite_file
from ftcore.logs.sqlite_lease import LockFile, lock_path
from ftcore.ports import Floor


@attrs.frozen(kw_only=True)
class Readable:
    """The readable part of a damaged log.

    Args:
        path: the file.
        job: the job.
        floor: the start of the live log.
        events: the events after the floor, in whole groups.
        bodies: the same events, as stored.
        term: the last known term.
        end: the last seq of the log according to its head; None: unreadable.
        why: the error after the last event; empty: all events were read.
    """

    path: Path
    job: JobName
    floor: Floor
    events: tuple[Event, ...]
    bodies: tuple[bytes, ...]
    term: Term
    end: Seq | None
    why: str

    @property
    def last(self) -> Seq:
        """The last event that is kept."""
        return Seq(self.floor.seq + len(self.events))

    @property
    def lost(self) -> int | None:
        """The number of lost events; None: unknown."""
        return None if self.end is None else max(0, self.end - self.last)


def readable(path: Path, job: JobName) -> Readable:
    """Read the readable part of a log.

    Args:
        path: the file.
        job: the job's name if the log's head is unreadable.

    Raises:
        LogCorrupt: no event can be read.
    """
    uri = f"file:{quote(str(path))}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        head = _row(db, "SELECT job, next - 1, term FROM head")
        found = _row(db, "SELECT seq, digest, archive FROM floor") or (0, GENESIS, "")
        floor = Floor(seq=Seq(found[0]), digest=bytes(found[1]).hex(), archive=str(found[2]))
        bodies, events, why = _chained(db, floor)
    end = Seq(head[1]) if head is not None else None
    if not why and end is not None and end > floor.seq + len(events):
        why = f"event {floor.seq + len(events) + 1} is missing"
    if why or end is None:
        kept = max((at for at, event in enumerate(events) if event.kind is Kind.FACT), default=0)
        events, bodies = events[:kept], bodies[:kept]
    if not events:
        raise LogCorrupt(
            f"{path}: no event can be read ({why or 'the log is empty'}): move the file away and start the job again"
        )
    terms = [*(event.term for event in events), *([head[2]] if head is not None else [])]
    return Readable(
        path=path,
        job=JobName(head[0]) if head is not None else job,
        floor=floor,
        events=tuple(events),
        bodies=tuple(bodies),
        term=Term(max(terms)),
        end=end,
        why=why,
    )


def _row(db: sqlite3.Connection, query: str) -> tuple[Any, ...] | None:
    try:
        found: tuple[Any, ...] | None = db.execute(query).fetchone()
    except sqlite3.Error:
        return None
    return found


def _chained(db: sqlite3.Connection, floor: Floor) -> tuple[list[bytes], list[Event], str]:
    """Bodies and events after the floor up to the first error, and that error; empty if there is none."""
    bodies: list[bytes] = []
    events: list[Event] = []
    digest, seq = bytes.fromhex(floor.digest), floor.seq
    while True:
        seq = Seq(seq + 1)
        try:
            row = db.execute("SELECT body, digest FROM events WHERE seq = ?", (seq,)).fetchone()
            if row is None:
                return bodies, events, ""
            digest = chain(digest, row[0])
            if digest != row[1]:
                return bodies, events, f"event {seq} does not match its digest"
            events.append(decode(row[0]))
            bodies.append(row[0])
        except (sqlite3.Error, FtcoreError, TypeError) as error:
            return bodies, events, f"event {seq} cannot be read: {error}"


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Context manager: hold a log's lock, so that no master can lead.

    Raises:
        Refused: a master leads.
    """
    lock = LockFile(lock_path(path), write=True)
    try:
        if not lock.try_lock():
            raise Refused(f"{path} is in use by a master: end every ftrun of the job first")
        yield
    finally:
        lock.close()


def replace(found: Readable, following: Callable[[Path], tuple[bytes, ...]]) -> Path:
    """Replace a damaged log by a new one; returns the new path of the damaged file.

    Args:
        found: its readable part.
        following: returns the events to append, given the new path of the damaged file.

    Raises:
        LogFull, UsageError, StoreError: as for ``sqlite_file.create``; the damaged file is unchanged.
    """
    path = found.path
    damaged = path.with_name(f"{path.stem}.damaged-{secrets.token_hex(4)}")
    draft = path.with_name(f"{path.stem}.salvaged-{secrets.token_hex(4)}.db")
    try:
        sqlite_file.create(draft, found.job)
        _fill(draft, found, following(damaged))
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{damaged}{suffix}")
        draft.rename(path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)
    return damaged


def _fill(draft: Path, found: Readable, following: tuple[bytes, ...]) -> None:
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN")
        digest, rows = bytes.fromhex(found.floor.digest), []
        for seq, body in enumerate((*found.bodies, *following), found.floor.seq + 1):
            digest = chain(digest, body)
            rows.append((seq, body, digest))
        db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        floor = (found.floor.seq, bytes.fromhex(found.floor.digest), found.floor.archive)
        db.execute("UPDATE floor SET seq = ?, digest = ?, archive = ?", floor)
        db.execute("UPDATE head SET next = ?, digest = ?, term = ?", (rows[-1][0] + 1, digest, found.term))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
