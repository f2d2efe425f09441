"""Leader election on a log file, on one machine.

The *term* in the log's head decides: the last candidate that raised it leads, and every append is checked against it. A
term taken too early costs a failover, never a wrong event. ``<file>.lock`` serves to detect a dead leader:

- The leader holds ``flock`` on it. When the leader's process dies, the kernel releases the lock. A candidate, which
  tries every ``POLL_S``, acquires it and takes the next term.
- Every ``master_renew_s``, the leader writes its term and the time to it (``CLOCK_BOOTTIME``: common to all processes
  of a boot, and runs during suspension). A separate thread does this, so a busy event loop does not lose the lease. A
  frozen leader keeps the flock but stops writing. When its record is older than ``master_lease_s``, a candidate takes
  the next term *without* the flock, notes that in its record, and acquires the flock once the old leader releases it. A
  leader frozen during a write also holds SQLite's write lock: the candidate kills it (``sqlite_frozen.py``).
- Before each renewal, the leader's thread reads the term in the head. If it has changed, the leadership is lost.
- If the lock file is removed, leader and candidates create it again: otherwise they would use different files.

| flock | record for the head's term | leader |
|---|---|---|
| free | held with the flock | is dead: take over |
| free | of another boot | is dead: take over |
| free or held | renewed longer than the lease ago, or resigned | is frozen or has ended: take over |
| free or held | renewed within the lease (free: held without the flock) | is alive: wait |
| free or held | none (not yet written, or of an earlier term) | counts as alive for one lease after it was last seen |
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
"""Poll interval of a candidate: a poll takes 50 us; on average half the interval is added to a failover."""

RECORD_BYTES = 128
"""Fixed length of a record: one write within one block, so readers never see a partial record."""

LEASE = seconds(DEFAULT.master_lease_s)


def _now() -> Nanoseconds:
    return Nanoseconds(time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@attrs.frozen
class LeaderRecord:
    """The leader's record in the lock file.

    Args:
        term: its term.
        renewed: boot time of the last renewal; 0 if it resigned.
        flocked: whether it holds the flock.
        boot: the kernel's boot ID.
    """

    term: Term
    renewed: Nanoseconds
    flocked: bool
    boot: str


class LockFile:
    """An open lock file.

    Args:
        path: the file.
        write: open it for writing, and create it if it is missing.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self._path = path
        self._fd = os.open(path, (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY) | os.O_CLOEXEC, 0o600)

    def restore(self) -> None:
        """Create the file again if it was removed or replaced; the new file has no flock and no record."""
        try:
            same = self._path.stat().st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            same = False
        if not same:
            new = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(self._fd)
            self._fd = new

    def try_lock(self, kind: int = fcntl.LOCK_EX) -> bool:
        """Acquire the flock if it is free; returns whether it is held."""
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Release the flock, also for forked children that inherited it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def taken(self) -> bool:
        """Whether another process holds the flock."""
        if not self.try_lock(fcntl.LOCK_SH):
            return True
        self.unlock()
        return False

    def read(self) -> LeaderRecord | None:
        """The record; None if it is missing or unreadable."""
        try:
            term, renewed, flocked, boot = os.pread(self._fd, RECORD_BYTES, 0).decode("ascii").split()
            return LeaderRecord(Term(int(term)), Nanoseconds(int(renewed)), flocked == "flocked", boot)
        except ValueError:
            return None

    def write(self, record: LeaderRecord) -> None:
        """Replace the record."""
        how = "flocked" if record.flocked else "unflocked"
        line = f"{record.term} {record.renewed} {how} {record.boot}"
        os.pwrite(self._fd, line.ljust(RECORD_BYTES - 1).encode("ascii") + b"\n", 0)

    def close(self) -> None:
        """Close the file; releases the flock."""
        os.close(self._fd)


def lock_path(log: Path) -> Path:
    """The path of a log's lock file."""
    return log.with_name(f"{log.name}.lock")


def leader_of(file: LogFile) -> Leader | None:
    """The current or last leader of a log; None if there never was a leader."""
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


class LeaseCampaign:
    """One candidate's attempts to lead; runs in the log's thread.

    Args:
        file: the log.
        candidate: the candidate.
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
        """Take the next term if there is no leader; this ends the campaign."""
        term, _ = self._file.leader()
        try:
            self._lock.restore()
        except OSError as error:
            raise LogUnavailable(f"cannot create {lock_path(self._file.path)} again: {error.strerror}") from error
        locked = self._lock.try_lock()
        won: Term | None = None
        try:
            if self._can_take_over(term, locked):
                end_frozen_writer(self._file.path)
                won = self._file.take_term(term, self._candidate)
            if won is None:
                return None
            self._lock.write(LeaderRecord(won, _now(), locked, self._boot))
        except OSError as error:
            kind = LogFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LogUnavailable
            raise kind(f"cannot write {lock_path(self._file.path)}: {error.strerror}") from error
        finally:
            if locked and won is None:
                self._lock.unlock()
        return SqliteLeadership(self._file.path, self._lock, won, flocked=locked, boot=self._boot)

    def close(self) -> None:
        """End the campaign without a win."""
        self._lock.close()

    def _can_take_over(self, term: Term, locked: bool) -> bool:
        """Whether to take over, by the table in the module's docstring."""
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
    """A won term; see ``ports.Leadership`` and the module's docstring."""

    def __init__(self, path: Path, lock: LockFile, term: Term, *, flocked: bool, boot: str) -> None:
        self._path = path
        self._lock = lock
        self._term = term
        self._flocked = flocked
        self._boot = boot
        self._verified = _now()
        self._lost: Future[str] = Future()
        self._check_now = threading.Event()
        self._end_reason = ""
        self._thread = threading.Thread(target=self._keep, name="ftcore-lease", daemon=True)
        self._thread.start()

    @property
    def term(self) -> Term:
        """The term won."""
        return self._term

    async def lost(self) -> str:
        """See ``ports.Leadership.lost``."""
        return await asyncio.shield(asyncio.wrap_future(self._lost))

    async def resign(self) -> None:
        """See ``ports.Leadership.resign``."""
        await asyncio.to_thread(self.end, "resigned")

    def end(self, reason: str) -> None:
        """Release the leadership; blocks until that is done."""
        self._end_reason = self._end_reason or reason
        self._check_now.set()
        self._thread.join()

    def check_now(self) -> None:
        """Check the term now, because an append was fenced."""
        self._check_now.set()

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
            self._lost.set_result(reason)

    def _renew(self, file: LogFile) -> str:
        while True:
            self._check_now.wait(DEFAULT.master_renew_s)
            self._check_now.clear()
            end_reason = self._end_reason
            try:
                term, holder = file.leader()
                if term != self._term:
                    assert holder is not None
                    return end_reason or f"{holder.host} pid {holder.pid} leads with term {term}"
                if end_reason:
                    self._write_record(Nanoseconds(0) if end_reason == "resigned" else self._verified)
                    return end_reason
                self._lock.restore()
                self._flocked = self._lock.try_lock()  # harmless if it is held
                self._verified = _now()
                self._write_record(self._verified)
            except (FtcoreError, OSError) as error:
                if end_reason:
                    return end_reason
                if _now() - self._verified > LEASE:
                    return f"the lease could not be renewed: {error}"

    def _write_record(self, renewed: Nanoseconds) -> None:
        self._lock.write(LeaderRecord(self._term, renewed, self._flocked, self._boot))
