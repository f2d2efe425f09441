"""The reference log: a list in this process.

House rules: it keeps encoded bodies, not objects, so that what is read back has been through the codec as it would be
in a real store. Logs are found process-wide by the store's name and the job's, and live until the process ends, so a
store that is closed and opened again holds what it held. Any number of event loops in any threads may use one log; one
lock guards it, and is never held across an await.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence

from ftcore.errors import Conflict, Fenced, NotFound
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.rules import check_job_name, encode_group, truncated
from ftcore.ports import SNAPSHOTS_KEPT, Candidate, Floor, Leader, Snapshot, Space


class _Bell:
    """Wakes one task of one event loop from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung.clear()


class _Log:
    """What all handles of one job's log share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bodies: list[bytes] = []
        self.floor = Floor(seq=Seq(0), digest=GENESIS.hex())
        self.snapshots: list[Snapshot] = []
        self.term = 0
        self.candidate: Candidate | None = None
        self.holder: _MemoryLeadership | None = None
        self.queue: deque[_Bell] = deque()
        self.followers: set[_Bell] = set()

    @property
    def last(self) -> Seq:
        """The seq of the last event."""
        return Seq(self.floor.seq + len(self.bodies))

    def part(self, after: Seq, until: Seq | None, job: JobName) -> list[bytes]:
        """The bodies with ``after < seq <= until``; raises ``Truncated``."""
        with self.lock:
            floor = self.floor.seq
            if after < floor and (until is None or until > after):
                raise truncated(job, after, self.floor)
            return self.bodies[after - floor : None if until is None else max(0, until - floor)]

    def check_term(self, term: Term, job: JobName) -> None:
        """Raise ``Fenced`` unless this is the term. Needs the lock."""
        if term < 1 or term != self.term:
            raise Fenced(f"job {job}: term {term} may not write, the term is {self.term}")

    def vacate(self, holder: "_MemoryLeadership", reason: str) -> None:
        """End a leadership, if it is the one held, and wake the candidate that waited longest. Needs the lock."""
        if self.holder is not holder:
            return
        self.holder = None
        holder.end(reason)
        if self.queue:
            self.queue[0].ring()


_registry: dict[str, dict[JobName, _Log]] = {}
_registry_lock = threading.Lock()


class _MemoryLeadership:
    def __init__(self, log: _Log, term: Term) -> None:
        self._log = log
        self._term = term
        self._ended = _Bell()
        self._reason = ""

    @property
    def term(self) -> Term:
        return self._term

    async def lost(self) -> str:
        while not self._reason:
            await self._ended.wait()
        self._ended.ring()  # for the next who asks
        return self._reason

    async def resign(self) -> None:
        with self._log.lock:
            self._log.vacate(self, "resigned")

    def end(self, reason: str) -> None:
        self._reason = reason
        self._ended.ring()


class MemoryLog:
    """One handle on a log in memory; see ``ports.EventLog``."""

    def __init__(self, job: JobName, log: _Log) -> None:
        self._job = job
        self._log = log
        self._held: list[_MemoryLeadership] = []

    @property
    def job(self) -> JobName:
        """The job whose log it is."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        bodies = encode_group(events, expected_seq)
        log = self._log
        with log.lock:
            log.check_term(term, self._job)
            at = expected_seq - log.floor.seq
            if log.last == expected_seq:
                log.bodies += bodies
            elif at < 0 or log.bodies[at : at + len(bodies)] != bodies:
                raise Conflict(f"job {self._job}: the log ends at {log.last}, not at {expected_seq}", log.last)
            for bell in log.followers:
                bell.ring()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        with self._log.lock:
            return self._log.last

    async def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        for body in self._log.part(after, until, self._job):
            yield decode(body)

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        yield self._log.part(after, until, self._job)

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return self._log.floor

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        log = self._log
        with log.lock:
            if not log.floor.seq <= seq <= log.last:
                return ""
            digest = bytes.fromhex(log.floor.digest)
            for body in log.bodies[: seq - log.floor.seq]:
                digest = chain(digest, body)
            return digest.hex()

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``."""
        log = self._log
        with log.lock:
            log.check_term(term, self._job)
            gone = min(until, log.last - 1) - log.floor.seq
            if gone > 0:
                digest = bytes.fromhex(log.floor.digest)
                for body in log.bodies[:gone]:
                    digest = chain(digest, body)
                del log.bodies[:gone]
                log.floor = Floor(seq=Seq(log.floor.seq + gone), digest=digest.hex(), archive=archive)
            return log.floor

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        log = self._log
        with log.lock:
            log.check_term(term, self._job)
            others = [kept for kept in log.snapshots if kept.seq != snapshot.seq]
            log.snapshots = sorted([*others, snapshot], key=lambda kept: kept.seq)[-SNAPSHOTS_KEPT:]

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        for kept in reversed(self._log.snapshots):
            if until is None or kept.seq <= until:
                return kept
        return None

    async def reclaim(self) -> None:
        """See ``ports.EventLog.reclaim``: there is nothing to do."""

    async def space(self) -> Space | None:
        """See ``ports.EventLog.space``: memory has no limit of its own."""
        return None

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``."""
        bell = _Bell()
        with self._log.lock:
            self._log.followers.add(bell)
        try:
            while True:
                async for event in self.read(after):
                    yield event
                    after = event.seq
                await bell.wait()
        finally:
            with self._log.lock:
                self._log.followers.discard(bell)

    async def campaign(self, candidate: Candidate) -> _MemoryLeadership:
        """See ``ports.EventLog.campaign``; candidates win in the order in which they came."""
        log = self._log
        bell = _Bell()
        with log.lock:
            log.queue.append(bell)
        try:
            while True:
                with log.lock:
                    if log.holder is None and log.queue[0] is bell:
                        log.term += 1
                        log.candidate = candidate
                        log.holder = _MemoryLeadership(log, Term(log.term))
                        self._held.append(log.holder)
                        return log.holder
                await bell.wait()
        finally:
            with log.lock:
                log.queue.remove(bell)
                if log.holder is None and log.queue:
                    log.queue[0].ring()

    async def leader(self) -> Leader | None:
        """See ``ports.EventLog.leader``."""
        log = self._log
        with log.lock:
            if log.candidate is None:
                return None
            return Leader(term=Term(log.term), candidate=log.candidate, alive=log.holder is not None)

    async def close(self) -> None:
        """See ``ports.EventLog.close``."""
        with self._log.lock:
            for leadership in self._held:
                self._log.vacate(leadership, "the log was closed")


class MemoryStore:
    """The logs in memory under one name; see ``ports.LogStore``."""

    def __init__(self, name: str = "") -> None:
        with _registry_lock:
            self._logs = _registry.setdefault(name, {})
        self._opened: list[MemoryLog] = []

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        with _registry_lock:
            return sorted(self._logs)

    async def open(self, job: JobName, *, create: bool = False) -> MemoryLog:
        """See ``ports.LogStore.open``."""
        job = check_job_name(job)
        with _registry_lock:
            if create:
                self._logs.setdefault(job, _Log())
            if job not in self._logs:
                raise NotFound(f"there is no job {job!r} in this process's memory")
            log = MemoryLog(job, self._logs[job])
        self._opened.append(log)
        return log

    async def close(self) -> None:
        """Close the logs that were opened through this store; what they hold stays."""
        for log in self._opened:
            await log.close()
