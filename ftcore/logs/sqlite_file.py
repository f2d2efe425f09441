"""SQLite file of a log: all SQL. Functions block; a file is used from one thread at a time.

    events(seq INTEGER PRIMARY KEY, body BLOB, digest BLOB)   body: canonical JSON; digest: chained
    head(one row: job, reader, next, digest, term, leader)     end of the log, current leader
    floor(one row: seq, digest, archive)                       start of the log: the last truncated event
    snapshots(seq INTEGER PRIMARY KEY, body BLOB)              the newest ``SNAPSHOTS_KEPT``

- ``application_id`` identifies ftcore's files; ``user_version`` is the layout. Both are read through an immutable,
  read-only connection, so files of other programs are refused unchanged. (Never with ``open``: closing any descriptor
  of the file would drop SQLite's POSIX locks in this process.)
- Files are created atomically: under another name, then linked into place.
- ``synchronous=FULL``: acknowledged appends survive a power failure. One transaction checks the term and the end of the
  log, adds the events and moves the end.
- WAL mode shares memory between processes through the file system, so the file must be on a local disk.
"""

import contextlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ftcore.errors import Conflict, Fenced, FtcoreError, LogCorrupt, LogFull, LogUnavailable, StoreError, UsageError
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.outfile import sync_directory
from ftcore.logs.rules import truncated
from ftcore.ports import SNAPSHOTS_KEPT, Candidate, Floor, Snapshot

APPLICATION_ID = 0x6674636C
"""``ftcl`` in ASCII."""

LAYOUT = 1
"""The layout written, and the newest that can be read."""

READER = "0.1.0"
"""The oldest ftcore that reads ``LAYOUT``; ``head.reader`` keeps this meaning in every layout."""

BUSY_S = 5.0
"""Seconds for which a statement waits for a lock before it raises ``LogUnavailable``."""

SALVAGE = "end every ftrun of the job, then create a new log from the readable events with `ftctl salvage`"
"""Advice for a damaged log."""

SLICE = 2000
"""Events deleted in one transaction: appends wait for it a few milliseconds."""

CHUNK = 500
"""Events read per call: a few milliseconds of the thread."""

NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "afs", "panfs", "orangefs", "pvfs2")
)
NETWORK_FUSE = frozenset(("sshfs", "glusterfs", "ceph", "s3fs", "gcsfuse", "juicefs"))

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
CREATE TABLE head (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    job TEXT NOT NULL, reader TEXT NOT NULL,
    next INTEGER NOT NULL, digest BLOB NOT NULL,
    term INTEGER NOT NULL, leader TEXT NOT NULL
);
CREATE TABLE floor (
    only INTEGER PRIMARY KEY CHECK (only = 1), seq INTEGER NOT NULL, digest BLOB NOT NULL, archive TEXT NOT NULL
);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL);
"""


def network_file_system(mountinfo: str, device: int) -> str | None:
    """The type of the file system with a device number, if it is a network file system.

    Args:
        mountinfo: text of ``/proc/self/mountinfo`` (proc(5)).
        device: ``st_dev`` of a file on it.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            kind = after.split()[0]
            shared = kind in NETWORK_FILE_SYSTEMS or kind.removeprefix("fuse.") in NETWORK_FUSE
            return kind if shared else None
    return None


def require_local(directory: Path) -> None:
    """Raise ``UsageError`` if the directory is on a known network file system."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        kind = network_file_system(mountinfo, directory.stat().st_dev)
    except OSError:
        return
    if kind is not None:
        raise UsageError(
            f"{directory} is on a network file system ({kind}): an SQLite log needs a local disk; "
            "name another directory with --store, or use an etcd:// store for a job on several machines"
        )


def is_ours(path: Path) -> bool:
    """Whether the path is an SQLite file of any version of ftcore."""
    try:
        return _identity(path)[0] == APPLICATION_ID
    except StoreError:
        return False


def job_of(path: Path) -> JobName:
    """The job of a log file. Raises as ``LogFile`` does."""
    file = LogFile(path)
    try:
        return file.job
    finally:
        file.close()


def create(path: Path, job: JobName) -> None:
    """Create an empty log unless the file exists, and its directory with mode 0700.

    Raises:
        UsageError: the directory is not writable, or not on a local disk.
        StoreError: there is a write-ahead log without its database.
        LogFull: no space.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_local(path.parent)
        orphan = path.with_name(f"{path.name}-wal")
        # In this order, because another process creates the database before its write-ahead log.
        if orphan.exists() and not path.exists():
            raise StoreError(f"{path} is missing, but {orphan.name} exists: restore {path.name}, or remove {orphan}")
        if path.exists():
            return
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            _draft(draft, job)
            with contextlib.suppress(FileExistsError):  # another process has created it
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(path.parent)
    except sqlite3.Error as error:
        raise _translate(error, path) from error
    except OSError as error:
        raise UsageError(f"cannot create the log {path}: {error.strerror}") from error


def _draft(path: Path, job: JobName) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # SQLite copies the mode to -wal and -shm
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.executescript(f"PRAGMA synchronous = FULL; BEGIN; {_SCHEMA}")
        db.execute("INSERT INTO head VALUES (1, ?, ?, 1, ?, 0, '')", (job, READER, GENESIS))
        db.execute("INSERT INTO floor VALUES (1, 0, ?, '')", (GENESIS,))
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
    finally:
        db.close()


class LogFile:
    """An open log file; used from one thread at a time.

    Args:
        path: the file, which must exist.

    Raises (all methods):
        LogUnavailable: another process holds a lock for longer than ``BUSY_S``, or the disk failed.
        LogFull: no space.
        LogCorrupt: the file is damaged.
        StoreError: the file is not an ftcore log, has a newer layout, was removed, or is not writable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_identity(path)
        try:
            self.inode = path.stat().st_ino
            self._db, self.writable = _connect(path)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise _translate(error, path) from error
        try:
            self.job = self._check_end()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; the last process to close it merges the write-ahead log."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def last_seq(self) -> Seq:
        """The last durable event."""
        with self._translated_errors():
            return Seq(self._db.execute("SELECT next - 1 FROM head").fetchone()[0])

    def append(self, bodies: Sequence[bytes], term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        self._check_writable()
        with self._transaction():
            last, digest = self._check_term(term)
            if last != expected_seq:
                if self._contains(bodies, expected_seq):
                    return
                raise Conflict(f"job {self.job}: the log ends with event {last}, not {expected_seq}", last)
            rows = []
            for seq, body in enumerate(bodies, expected_seq + 1):
                digest = chain(digest, body)
                rows.append((seq, body, digest))
            moved = self._db.execute(
                "UPDATE head SET next = ?, digest = ? WHERE term = ? AND next = ?",
                (expected_seq + len(rows) + 1, digest, term, expected_seq + 1),
            )
            assert moved.rowcount == 1
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)

    def read(self, after: Seq, until: Seq | None) -> list[Event]:
        """The next durable events after ``after``, at most ``CHUNK``; raises ``Truncated``."""
        events = []
        for seq, body in enumerate(self.stored(after, until), after + 1):
            event = decode(body)
            if event.seq != seq:
                raise LogCorrupt(f"{self.path}: event {seq} has seq {event.seq} in its body: {SALVAGE}")
            events.append(event)
        return events

    def stored(self, after: Seq, until: Seq | None) -> list[bytes]:
        """The bodies of the same events, with digests verified."""
        end = (1 << 62) if until is None else until
        with self._translated_errors():  # one statement, so that it is consistent with a concurrent truncation
            rows = self._db.execute(
                "SELECT -seq, archive, digest FROM floor WHERE seq >= ? UNION ALL SELECT * FROM"
                " (SELECT seq, body, digest FROM events WHERE seq >= ? AND seq <= ? ORDER BY seq LIMIT ?)",
                (after, after, end, CHUNK + 1),
            ).fetchall()
        return self._checked(after, end, sorted(rows, key=itemgetter(0)))

    def _checked(self, after: Seq, end: int, rows: list[tuple[int, bytes, bytes]]) -> list[bytes]:
        digest = b""
        if rows and rows[0][0] <= 0:
            floor = self._floor(rows.pop(0))
            if floor.seq > after and end > after:
                raise truncated(self.job, after, floor)
            digest = bytes.fromhex(floor.digest)
        elif rows and rows[0][0] == after:
            digest = rows.pop(0)[2]
        elif rows:
            raise LogCorrupt(f"{self.path}: expected event {after}, found {rows[0][0]}: {SALVAGE}")
        bodies = []
        for seq, (stored, body, stored_digest) in enumerate(rows[:CHUNK], after + 1):
            if stored != seq:
                raise LogCorrupt(f"{self.path}: expected event {seq}, found {stored}: {SALVAGE}")
            digest = chain(digest, body) if type(body) is bytes else b""
            if digest != stored_digest:
                raise LogCorrupt(f"{self.path}: event {seq} does not match its digest: {SALVAGE}")
            bodies.append(body)
        return bodies

    def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        with self._translated_errors():
            return self._floor(self._db.execute("SELECT seq, archive, digest FROM floor").fetchone())

    def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        with self._translated_errors():
            found = self._db.execute(
                "SELECT digest FROM events WHERE seq = ? UNION ALL SELECT digest FROM floor WHERE seq = ?", (seq, seq)
            ).fetchone()
        return "" if found is None else bytes(found[0]).hex()

    def truncate(self, until: Seq, term: Term, archive: str) -> bool:
        """Truncate one slice (see ``EventLog.truncate``); appends can interleave. Returns whether more is left."""
        self._check_writable()
        with self._transaction():
            last, _ = self._check_term(term)
            floor = self._db.execute("SELECT seq FROM floor").fetchone()[0]
            until = Seq(min(until, last - 1))
            end = min(until, floor + SLICE)
            if end <= floor:
                return False
            digest = self._db.execute("SELECT digest FROM events WHERE seq = ?", (end,)).fetchone()[0]
            self._db.execute("DELETE FROM events WHERE seq <= ?", (end,))
            self._db.execute("UPDATE floor SET seq = ?, digest = ?, archive = ?", (end, digest, archive))
            return bool(end < until)

    def save_snapshot(self, snapshot: Snapshot, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        self._check_writable()
        with self._transaction():
            self._check_term(term)
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (snapshot.seq, snapshot.body))
            self._db.execute(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                (SNAPSHOTS_KEPT,),
            )

    def snapshot(self, until: Seq | None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        with self._translated_errors():
            row = self._db.execute(
                "SELECT seq, body FROM snapshots WHERE seq <= ? ORDER BY seq DESC LIMIT 1",
                ((1 << 62) if until is None else until,),
            ).fetchone()
        return None if row is None else Snapshot(seq=Seq(row[0]), body=row[1])

    def _floor(self, row: tuple[int, Any, bytes]) -> Floor:
        return Floor(seq=Seq(abs(row[0])), archive=str(row[1]), digest=row[2].hex())

    def _check_term(self, term: Term) -> tuple[Seq, bytes]:
        """The last seq and its digest; raises ``Fenced`` unless ``term`` leads."""
        last, now, digest = self._db.execute("SELECT next - 1, term, digest FROM head").fetchone()
        if term < 1 or now != term:
            raise Fenced(f"job {self.job}: write of term {term} refused: the current term is {now}")
        return Seq(last), digest

    def leader(self) -> tuple[Term, Candidate | None]:
        """The current term and its winner. Raises ``StoreError`` if the file was removed: such a log has no leader."""
        self._check_inode()
        with self._translated_errors():
            term, leader = self._db.execute("SELECT term, leader FROM head").fetchone()
        return Term(term), Candidate(**json.loads(leader)) if leader else None

    def take_term(self, term: Term, candidate: Candidate) -> Term | None:
        """Begin the term after ``term`` and return it; None if ``term`` is no longer the current one."""
        self._check_writable()
        leader = json.dumps({"host": candidate.host, "pid": candidate.pid, "address": candidate.address})
        with self._transaction():
            taken = self._db.execute(
                "UPDATE head SET term = term + 1, leader = ? WHERE term = ?", (leader, term)
            ).rowcount
        return Term(term + 1) if taken else None

    def _contains(self, bodies: Sequence[bytes], after: Seq) -> bool:
        stored = self._db.execute(
            "SELECT body FROM events WHERE seq > ? AND seq <= ? ORDER BY seq", (after, after + len(bodies))
        ).fetchall()
        return [body for (body,) in stored] == list(bodies)

    def _check_end(self) -> JobName:
        with self._translated_errors():  # one statement, so that a concurrent append is not mistaken for damage
            row = self._db.execute(
                "SELECT job, next - 1, head.digest, seq, events.digest FROM head LEFT JOIN events"
                " ON seq = (SELECT max(seq) FROM events)"
            ).fetchone()
        if row is None or row[1:3] != ((0, GENESIS) if row[3] is None else row[3:5]):
            raise LogCorrupt(f"{self.path}: the last event does not match the log's head: {SALVAGE}")
        return JobName(row[0])

    def _check_writable(self) -> None:
        """Raise unless the file is writable and in place: SQLite would acknowledge writes to a removed file."""
        if not self.writable:
            raise StoreError(f"{self.path} is not writable by this user")
        self._check_inode()

    def _check_inode(self) -> None:
        try:
            same = self.path.stat().st_ino == self.inode
        except OSError:
            same = False
        if not same:
            raise StoreError(
                f"{self.path} was removed or replaced while in use: move it back, and ftcore continues by itself; if "
                "it is lost, end the job and start it again"
            )

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _uri(path: Path, options: str) -> str:
    return f"file:{quote(str(path))}?{options}"


def _identity(path: Path) -> tuple[int, int]:
    """Application ID and layout of an SQLite file."""
    try:
        with contextlib.closing(sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True)) as db:
            # Skips SQLite's check of the file size, which fails while another process merges the write-ahead log. The
            # two numbers read here never change.
            db.execute("PRAGMA writable_schema = ON")
            application = db.execute("PRAGMA application_id").fetchone()[0]
            return application, db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise _translate(error, path) from error


def _check_identity(path: Path) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a directory: the name of a directory of logs must not end in .db or .sqlite")
    application, layout = _identity(path)
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not an ftcore log; it was not changed. Name another file")
    if layout <= LAYOUT:
        return
    try:
        with contextlib.closing(sqlite3.connect(_uri(path, "mode=ro"), uri=True)) as db:
            reader = str(db.execute("SELECT reader FROM head").fetchone()[0])
    except (sqlite3.Error, TypeError):
        reader = "unknown"
    raise StoreError(f"{path} has layout {layout}, this ftcore reads up to {LAYOUT}: it needs ftcore {reader} or newer")


def _connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether it can write."""

    def connect(options: str) -> sqlite3.Connection:
        db = sqlite3.connect(
            _uri(path, options), uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("SELECT 1 FROM head")
        except BaseException:
            db.close()
            raise
        return db

    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return connect("mode=rw"), True
    try:
        return connect("mode=ro"), False
    except sqlite3.OperationalError:
        # No permission to create the index of a write-ahead log. Without a write-ahead log the file is complete.
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return connect("mode=ro&immutable=1"), False


def _translate(error: sqlite3.Error, path: Path) -> FtcoreError:
    """The ftcore error for an SQLite error (https://www.sqlite.org/rescode.html)."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LogUnavailable(f"{path} has been locked by another process for {BUSY_S:g} s: find it with fuser {path}")
    if name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
        return LogFull(f"cannot write {path}: the disk is full, over quota or failing ({error}); free some space")
    if name.startswith("SQLITE_NOTADB"):
        return StoreError(f"{path} is not an SQLite file; it was not changed. Name another file")
    if name.startswith("SQLITE_CORRUPT"):
        return LogCorrupt(f"{path} is damaged ({error}): {SALVAGE}")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreError(f"cannot open {path} ({error}): check that it exists and its permissions")
    if name.startswith(("SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_PROTOCOL")):
        return LogUnavailable(f"cannot read or write {path} at present ({error})")
    return StoreError(f"{path} is not a log that this ftcore can read ({error})")
