"""Reference implementation of the event log, in memory.

It stores encoded events, so that reads go through the codec as with a real store. Logs are found process-wide by the
names of store and job, and live until the process ends, also after the store is closed. Event loops in any threads may
use a log; one lock guards it, which is never held across an await.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence

from ftcore.errors import NotFound
from ftcore.events.codec import decode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.contents import LogContents
from ftcore.logs.rules import check_job_name, encode_group, one_by_one
from ftcore.ports import Candidate, Floor, Leader, Snapshot, Space


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
    """State shared by all handles of one job's log."""

    def __init__(self, job: JobName) -> None:
        self.lock = threading.Lock()
        self.contents = LogContents(job)
        self.holder: _MemoryLeadership | None = None
        self.queue: deque[_Bell] = deque()
        self.followers: set[_Bell] = set()

    def part(self, after: Seq, until: Seq | None) -> list[bytes]:
        """See ``LogContents.part``."""
        with self.lock:
            return self.contents.part(after, until)

    def vacate(self, holder: "_MemoryLeadership", reason: str) -> None:
        """End a leadership if it is current, and wake the first candidate. The caller holds the lock."""
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
        self._ended.ring()  # for the next caller
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
        """Name of the job."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        bodies = encode_group(events, expected_seq)
        with self._log.lock:
            self._log.contents.append(bodies, term, expected_seq)
            for bell in self._log.followers:
                bell.ring()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        with self._log.lock:
            return self._log.contents.last

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog.read_batches``."""
        for body in self._log.part(after, until):
            yield [decode(body)]

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        yield self._log.part(after, until)

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return self._log.contents.floor

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        with self._log.lock:
            return self._log.contents.digest_at(seq)

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``."""
        with self._log.lock:
            return self._log.contents.truncate(until, term, archive)

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        with self._log.lock:
            self._log.contents.save_snapshot(snapshot, term)

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        with self._log.lock:
            return self._log.contents.snapshot(until)

    async def reclaim(self) -> None:
        """Do nothing."""

    async def space(self) -> Space | None:
        """None: no limit."""
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
        """See ``ports.EventLog.campaign``; candidates win in the order of their calls."""
        log = self._log
        bell = _Bell()
        with log.lock:
            log.queue.append(bell)
        try:
            while True:
                with log.lock:
                    if log.holder is None and log.queue[0] is bell:
                        log.holder = _MemoryLeadership(log, log.contents.begin_term(candidate))
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
        contents = self._log.contents
        with self._log.lock:
            if contents.candidate is None:
                return None
            return Leader(term=contents.term, candidate=contents.candidate, alive=self._log.holder is not None)

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
                self._logs.setdefault(job, _Log(job))
            if job not in self._logs:
                raise NotFound(f"no job {job!r} in the memory of this process")
            log = MemoryLog(job, self._logs[job])
        self._opened.append(log)
        return log

    async def close(self) -> None:
        """Close the logs opened through this store; their events are kept."""
        for log in self._opened:
            await log.close()
