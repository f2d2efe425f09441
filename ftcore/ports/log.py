"""Storage of a job's events: the event log, leadership, snapshots, the archive."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term

GROUP_BYTES_MAX = 1 << 20
"""Most bytes in one append, which is never split: etcd limits a request to 1.5 MiB."""

SNAPSHOTS_KEPT = 2
"""If the newest snapshot is unusable, the previous one saves reading the whole log."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate for leadership, as recorded in the log.

    Args:
        host: host name.
        pid: process ID.
        address: gRPC target at which the candidate serves once it is master.
    """

    host: str
    pid: int
    address: str


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The current or last leader.

    Args:
        term: its term.
        candidate: how it registered.
        alive: whether its lease is held.
    """

    term: Term
    candidate: Candidate
    alive: bool


class Leadership(Protocol):
    """A won term of leadership. The adapter renews its lease, independently of the load of the caller's event loop."""

    @property
    def term(self) -> Term:
        """The term; larger than every earlier term."""

    async def lost(self) -> str:
        """Wait until the leadership is lost or can no longer be proven; return the reason."""

    async def resign(self) -> None:
        """Release the leadership, so that another candidate can win at once. Idempotent."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The start of the live log.

    Args:
        seq: the last event that was truncated; 0 if none was.
        digest: hex digest of the log up to that event, chained as in ``events.codec.chain``.
        archive: where the truncated events are archived; empty if none were truncated.
    """

    seq: Seq
    digest: str
    archive: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The folded state of a log up to a seq, stored so that earlier events need not be read again.

    Args:
        seq: the last event included.
        body: opaque bytes.
    """

    seq: Seq
    body: bytes


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """How full a log's store is.

    Args:
        used: bytes that count against its limit.
        limit: the limit in bytes; 0 if the store does not report it.
        full: the store refuses appends until space is freed.
    """

    used: int
    limit: int
    full: bool


class AppendOnlyLog(Protocol):
    """One job's append-only, totally ordered event log. All methods are called from one event loop.

    Raised by all methods: ``LogUnavailable`` when the store does not answer; ``StoreError`` when it is not usable.
    """

    @property
    def job(self) -> JobName:
        """Name of the job."""

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """Append events, all or none; durable on return.

        Idempotent: the same call may be repeated after ``LogUnavailable``.

        Args:
            events: whole groups, numbered from ``expected_seq + 1`` without a gap.
            term: the caller's term.
            expected_seq: the log's last seq, as the caller knows it.

        Raises:
            Fenced: a newer term exists, or this term was never won.
            Conflict: the log's last seq is not ``expected_seq``.
            LogFull: no space; nothing was written.
            ValueError: the numbering has a gap, or the events exceed ``GROUP_BYTES_MAX``.
        """

    async def last_seq(self) -> Seq:
        """The seq of the last durable event; 0 if there is none."""

    async def digest_at(self, seq: Seq) -> str:
        """Hex digest of the log up to an event, chained as in ``events.codec.chain``.

        Args:
            seq: the event; 0: before the first.

        Returns:
            The digest; empty if the event is not in the live log.
        """

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """The durable events with ``after < seq <= until`` (None: up to the current end), in order.

        Raises:
            LogCorrupt: a gap, a wrong digest, or an entry that is not an event.
            Truncated: events after ``after`` were truncated.
        """

    def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """The events that ``read`` gives, as the store reads them: some at a time, never none.

        Raises as ``read`` does, after the events before the one in question.
        """

    def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """The durable events after ``after``, then each new event soon after it is durable; never ends by itself.

        Without gap or repeat. While the store is unreachable, the iterator waits.

        Raises:
            Truncated: events after the last one returned (or ``after``) were truncated.
            StoreError: the log was deleted, or restored from an older copy.
        """

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """The newest snapshot (with ``seq <= until``), complete; None if there is none."""

    async def close(self) -> None:
        """Release all resources. A leadership that was not resigned expires."""


class RetainedLog(AppendOnlyLog, Protocol):
    """An event log with retention: archiving, truncation, snapshots, compaction."""

    async def floor(self) -> Floor:
        """The start of the live log."""

    def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """The events with ``after < seq <= until`` as stored bytes, in batches, for the archive.

        Their digests are checked; they are not decoded.

        Raises:
            LogCorrupt, Truncated: as for ``read``.
        """

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """Remove the events up to ``until`` from the live log. A store may keep some of them, but removes no others.

        Idempotent. Readers behind the new floor get ``Truncated``. The last event of the log stays.

        Args:
            until: the last event to remove.
            term: the caller's term.
            archive: where these events are archived.

        Returns:
            The new start of the live log.

        Raises:
            Fenced: a newer term exists, or this term was never won.
        """

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """Store a snapshot beside the log. The newest ``SNAPSHOTS_KEPT`` are kept.

        Raises:
            Fenced: a newer term exists, or this term was never won.
            LogFull: no space; earlier snapshots are unchanged.
        """

    async def reclaim(self) -> None:
        """Compact the store: free the space of truncated events and superseded values. May do nothing."""

    async def space(self) -> Space | None:
        """Space usage of the store; None if the store has no limit of its own."""


class OverviewMaker(Protocol):
    """Collects from all events of a log what its readers show, for its snapshots. All methods block; any may raise."""

    def begin(self, stored: bytes, digest: str) -> Seq:
        """Continue from a stored overview.

        Args:
            stored: the overview; empty: none.
            digest: digest of the log up to its last event, as in ``AppendOnlyLog.digest_at``.

        Returns:
            Its last event; 0: it does not fit, and the events are needed from the first.
        """

    def feed(self, bodies: Sequence[bytes]) -> None:
        """Process the next events, as stored."""

    def make(self, digest: str) -> bytes:
        """The overview of the events so far, of which the log has this digest; empty: it cannot be stored."""


class LeaderElection(Protocol):
    """The leader election of one job. Raised by all methods: as for ``AppendOnlyLog``."""

    async def campaign(self, candidate: Candidate) -> Leadership:
        """Wait until the leadership is won. Cancel to stop campaigning."""

    async def leader(self) -> Leader | None:
        """The current leader, or the last one (``alive`` false); None if there never was a leader."""


class EventLog(RetainedLog, LeaderElection, Protocol):
    """One job's event log with retention and leader election: what a store provides and a master needs."""


class LogStore(Protocol):
    """A store with the event logs of several jobs."""

    async def jobs(self) -> list[JobName]:
        """Names of the jobs with a log in this store, sorted."""

    async def open(self, job: JobName, *, create: bool = False) -> EventLog:
        """The log of a job.

        Args:
            job: its name.
            create: create an empty log if there is none.

        Raises:
            NotFound: there is none, and ``create`` is false.
            StoreError: the data is not an ftcore log, or has a newer layout.
            UsageError: the store is not writable (``create``), with the reason.
        """

    async def close(self) -> None:
        """Release all resources."""


class Archive(Protocol):
    """Files with the older events of one job's log, written a piece at a time. All methods block.

    Raised by all methods: ``StoreError`` and ``UsageError`` when the location is not usable, ``LogFull`` for lack of
    space. Pieces are written atomically and are immutable.
    """

    @property
    def where(self) -> str:
        """Its location, as recorded in the log and shown to users."""

    def prepare(self, make: bool) -> None:
        """Check that the location is writable.

        Args:
            make: create the location if it does not exist.
        """

    def reaches(self, seq: Seq) -> Seq | None:
        """The last event of the piece that contains ``seq``; None if no piece does."""

    def digest_at(self, last: Seq) -> str:
        """The hex digest of the log up to the last event of a piece, as recorded in the piece."""

    def add(self, after: Seq, previous: bytes, bodies: Sequence[bytes]) -> None:
        """Write a piece; durable on return.

        Args:
            after: the seq before its first event.
            previous: the log's digest up to ``after``.
            bodies: its events, as stored.
        """
