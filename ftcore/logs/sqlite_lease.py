"""Leadership over a log file: who may append, on one machine.

What counts is the *term* in the log's head: whoever raised it last leads, and every append names its term. A term that
was taken too early costs a change of masters, never a wrong event. Beside it stands ``<file>.lock``:

- The leader holds ``flock`` on it. When the leader's process dies, the kernel frees the lock; a candidate, who tries
  every ``POLL_S``, gets it and takes the next term at once.
- The leader writes into it, every ``master_renew_s``, its term and the time (``CLOCK_BOOTTIME``, the same for all
  processes of a boot, counting suspension). A daemon thread of its own does that, so that a busy event loop does not
  cost the leadership. A leader that is frozen keeps its flock but stops writing: when its time is older than
  ``master_lease_s``, a candidate takes the next term *without* the flock. It says so in its record, and gets the flock
  later, when the old leader ends or wakes. One that froze in the middle of a write would keep SQLite's own lock, too,
  and everybody from writing: the candidate kills it (``sqlite_frozen.py``).
- The leader's thread reads the term in the head before each renewal. Finding another, it reports the loss and lets go.
- The lock file may be removed: agents would find nobody who leads, and a candidate would take its lock on a file that
  no one sees. So leader and candidates look whether theirs lies at the path, and make it anew.

| the flock is | the record for the head's term says | so the leader |
|---|---|---|
| free | held with the flock | is dead: take over |
| free | another boot | is dead: take over |
| free or taken | renewed longer than the lease ago, or resigned | is frozen or gone: take over |
| free or taken | renewed lately (free: held without the flock) | lives: wait |
| free or taken | nothing (not yet written, or an old leader's) | lives, until a lease after it was last seen |
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import attrs

from ftcore.errors import FtcoreError, LogFull, LogUnavailable, StoreError
from ftcore.ids import Nanoseconds, Term, seconds
from ftcore.logs.sqlite_file import LogFile
from ftcore.logs.sqlite_frozen import end_frozen_writer
from ftcore.ports import Candidate, Leader
from ftcore.timing import DEFAULT

POLL_S = 0.1
"""How often a candidate looks: it costs 50 us, and adds half of itself to every takeover."""

RECORD_BYTES = 128
"""One write of fixed length into one block of the file: never seen half done."""

LEASE = seconds(DEFAULT.master_lease_s)


def _now() -> Nanoseconds:
    return Nanoseconds(time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@attrs.frozen
class Record:
    """What a leader says of itself in the lock file.

    Args:
        term: its term.
        renewed: when it said so, boot time; 0 if it resigned.
        flocked: whether it holds the flock.
        boot: the kernel's boot id.
    """

    term: Term
    renewed: Nanoseconds
    flocked: bool
    boot: str


class LockFile:
    """The file beside the log, open.

    Args:
        path: the file.
        write: open it for writing, and make it if there is none.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self._path = path
        self._fd = os.open(path, (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY) | os.O_CLOEXEC, 0o600)

    def restore(self) -> None:
        """Make the file anew if it was removed, without flock or record: others look at what lies at the path."""
        try:
            there = self._path.stat().st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            there = False
        if not there:
            made = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(self._fd)
            self._fd = made

    def try_lock(self, kind: int = fcntl.LOCK_EX) -> bool:
        """Take the flock if it is free."""
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let go of the flock, also for a forked child that inherited it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def taken(self) -> bool:
        """Whether anybody else holds the flock."""
        if not self.try_lock(fcntl.LOCK_SH):
            return True
        self.unlock()
        return False

    def read(self) -> Record | None:
        """The record, or None if there is none that can be read."""
        try:
            term, renewed, flocked, boot = os.pread(self._fd, RECORD_BYTES, 0).decode("ascii").split()
            return Record(Term(int(term)), Nanoseconds(int(renewed)), flocked == "flocked", boot)
        except ValueError:
            return None

    def write(self, record: Record) -> None:
        """Replace the record."""
        how = "flocked" if record.flocked else "unflocked"
        line = f"{record.term} {record.renewed} {how} {record.boot}"
        os.pwrite(self._fd, line.ljust(RECORD_BYTES - 1).encode("ascii") + b"\n", 0)

    def close(self) -> None:
        """Close it, and with it the flock."""
        os.close(self._fd)


def lock_path(log: Path) -> Path:
    """Where the lock file of a log lies."""
    return log.with_name(f"{log.name}.lock")


def leader_of(file: LogFile) -> Leader | None:
    """Who leads a log, or led it last; None if nobody ever did."""
    term, candidate = file.leader()
    if candidate is None:
        return None
    try:
        lock = LockFile(lock_path(file.path), write=False)
    except OSError:
        return Leader(term=term, candidate=candidate, alive=False)
    try:
        record = lock.read()
        if record is None or record.term != term:
            alive = lock.taken()
        else:
            fresh = record.boot == _boot() and _now() - record.renewed <= LEASE
            alive = fresh and (not record.flocked or lock.taken())
    finally:
        lock.close()
    return Leader(term=term, candidate=candidate, alive=alive)


class Campaign:
    """One candidate's attempts to lead; used in the log's thread.

    Args:
        file: the log.
        candidate: what it says of itself.
    """

    def __init__(self, file: LogFile, candidate: Candidate) -> None:
        self._file = file
        self._candidate = candidate
        self._boot = _boot()
        self._term = Term(-1)
        self._alive_at = Nanoseconds(0)
        try:
            self._lock = LockFile(lock_path(file.path), write=True)
        except OSError as error:
            raise StoreError(f"cannot lead {file.path}: {lock_path(file.path)}: {error.strerror}") from error

    def attempt(self) -> "SqliteLeadership | None":
        """Take the next term if nobody leads; the campaign is over then."""
        term, _ = self._file.leader()
        try:
            self._lock.restore()
        except OSError as error:
            raise LogUnavailable(f"cannot make {lock_path(self._file.path)} anew: {error.strerror}") from error
        locked = self._lock.try_lock()
        won: Term | None = None
        try:
            if self._vacant(term, locked):
                end_frozen_writer(self._file.path)
                won = self._file.take_term(term, self._candidate)
            if won is None:
                return None
            self._lock.write(Record(won, _now(), locked, self._boot))
        except OSError as error:
            kind = LogFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LogUnavailable
            raise kind(f"cannot write {lock_path(self._file.path)}: {error.strerror}") from error
        finally:
            if locked and won is None:
                self._lock.unlock()
        return SqliteLeadership(self._file.path, self._lock, won, flocked=locked, boot=self._boot)

    def give_up(self) -> None:
        """End a campaign that was not won."""
        self._lock.close()

    def _vacant(self, term: Term, locked: bool) -> bool:
        """The table of the module's docstring."""
        now = _now()
        if term != self._term:
            self._term, self._alive_at = term, now
        if term == 0:
            return locked
        record = self._lock.read()
        if record is not None and record.term == term:
            if locked and (record.flocked or record.boot != self._boot):
                return True
            self._alive_at = record.renewed
        return now - self._alive_at > LEASE


class SqliteLeadership:
    """A term that was won; see ``ports.Leadership`` and the module's docstring."""

    def __init__(self, path: Path, lock: LockFile, term: Term, *, flocked: bool, boot: str) -> None:
        self._path = path
        self._lock = lock
        self._term = term
        self._flocked = flocked
        self._boot = boot
        self._verified = _now()
        self._over: Future[str] = Future()
        self._look = threading.Event()
        self._leave = ""
        self._thread = threading.Thread(target=self._keep, name="ftcore-lease", daemon=True)
        self._thread.start()

    @property
    def term(self) -> Term:
        """The term won."""
        return self._term

    async def lost(self) -> str:
        """See ``ports.Leadership.lost``."""
        return await asyncio.shield(asyncio.wrap_future(self._over))

    async def resign(self) -> None:
        """See ``ports.Leadership.resign``."""
        await asyncio.to_thread(self.end, "resigned")

    def end(self, reason: str) -> None:
        """Let go, and wait until that is done; blocks."""
        self._leave = self._leave or reason
        self._look.set()
        self._thread.join()

    def look(self) -> None:
        """Have the term checked now: an append was fenced."""
        self._look.set()

    def _keep(self) -> None:
        reason = "the lease thread ended"
        try:
            with contextlib.closing(LogFile(self._path)) as file:
                reason = self._renew(file)
        except FtcoreError as error:
            reason = str(error)
        finally:
            self._lock.unlock()
            self._lock.close()
            self._over.set_result(reason)

    def _renew(self, file: LogFile) -> str:
        while True:
            self._look.wait(DEFAULT.master_renew_s)
            self._look.clear()
            leave = self._leave
            try:
                term, holder = file.leader()
                if term != self._term:
                    assert holder is not None
                    return leave or f"{holder.host} pid {holder.pid} leads since term {term}"
                if leave:
                    self._say(Nanoseconds(0) if leave == "resigned" else self._verified)
                    return leave
                self._lock.restore()
                self._flocked = self._lock.try_lock()  # harmless if it is held
                self._verified = _now()
                self._say(self._verified)
            except (FtcoreError, OSError) as error:
                if leave:
                    return leave
                if _now() - self._verified > LEASE:
                    return f"could not be renewed: {error}"

    def _say(self, renewed: Nanoseconds) -> None:
        self._lock.write(Record(self._term, renewed, self._flocked, self._boot))
