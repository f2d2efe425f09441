"""Where a job's events are kept: the log, who leads, snapshots, the archive."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import attrs

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term

GROUP_BYTES_MAX = 1 << 20
"""An unsplittable group must fit here: the smallest store (etcd) takes 1.5 MiB a request."""

SNAPSHOTS_KEPT = 2
"""If the newest snapshot turns out to be of no use, the one before it saves reading the whole log."""


@attrs.frozen(kw_only=True)
class Candidate:
    """Who wants to lead, as others will read it.

    Args:
        host: its host's name.
        pid: its process id.
        address: gRPC target at which it will serve as master.
    """

    host: str
    pid: int
    address: str


@attrs.frozen(kw_only=True)
class Leader:
    """Who leads now.

    Args:
        term: its term.
        candidate: what it said of itself.
        alive: its lease is held or was renewed lately.
    """

    term: Term
    candidate: Candidate
    alive: bool


class Leadership(Protocol):
    """A term of leadership that was won; kept alive by the adapter, independently of the caller's event loop work."""

    @property
    def term(self) -> Term:
        """The term won; larger than any before it."""

    async def lost(self) -> str:
        """Return, with the reason, once the leadership is lost or can no longer be shown to be held."""

    async def resign(self) -> None:
        """Give it up, so that another candidate may win at once. Harmless if it is lost already."""


@attrs.frozen(kw_only=True)
class Floor:
    """Where the live log begins.

    Args:
        seq: the last event that was taken out of it; 0 if none was.
        digest: hex digest of the log up to there, chained as in ``events.codec.chain``.
        archive: where the events up to there were kept, as told when they were taken out; empty if none were.
    """

    seq: Seq
    digest: str
    archive: str = ""


@attrs.frozen(kw_only=True)
class Snapshot:
    """What was made of a log's events up to a seq, kept so that they need not be read again.

    Args:
        seq: the last event in it.
        body: bytes that the store does not look into.
    """

    seq: Seq
    body: bytes


@attrs.frozen(kw_only=True)
class Space:
    """How full a log's store is.

    Args:
        used: bytes that count against its limit.
        limit: the limit in bytes; 0 if the store does not tell.
        full: it takes no more events until somebody makes room.
    """

    used: int
    limit: int
    full: bool


class EventLog(Protocol):
    """One job's append-only, totally ordered log. All methods may be called from one event loop.

    Raised by all methods: ``LogUnavailable`` when the store does not answer; ``StoreError`` when it is not usable.
    """

    @property
    def job(self) -> JobName:
        """The job whose log it is."""

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """Append events, all or none; durable when it returns.

        The same call may be repeated after ``LogUnavailable``: it lands once.

        Args:
            events: whole groups, numbered from ``expected_seq + 1`` without a gap.
            term: the caller's term.
            expected_seq: the seq at which the caller thinks the log ends.

        Raises:
            Fenced: a newer term exists, or this term never was.
            Conflict: the log ends elsewhere.
            LogFull: no space; nothing was written.
            ValueError: the numbering has a gap, or the events exceed what one append may hold.
        """

    async def last_seq(self) -> Seq:
        """The seq of the last durable event; 0 if there is none."""

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """The durable events with ``after < seq <= until`` (to the end as of now if None), in order.

        Raises:
            LogCorrupt: a gap, a digest that does not fit, or bytes that are no event.
            Truncated: the events behind ``after`` were taken out of the live log.
        """

    def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """The durable events after ``after``, then each new one soon after it is durable; never ends by itself.

        No gap and no repeat, whatever the store goes through meanwhile; while it is away the iterator waits.

        Raises:
            Truncated: the events behind the last one given (or ``after``) were taken out of the live log.
        """

    def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """The events with ``after < seq <= until`` as they are stored, in parts: what an archive keeps.

        Their digests were checked; that they can be decoded was not.

        Raises:
            LogCorrupt, Truncated: as for ``read``.
        """

    async def floor(self) -> Floor:
        """Where the live log begins."""

    async def digest_at(self, seq: Seq) -> str:
        """Hex digest of the log up to an event, chained as in ``events.codec.chain``.

        Args:
            seq: the event; 0: before the first.

        Returns:
            The digest; empty if the live log does not hold the event.
        """

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """Take the events up to ``until`` out of the live log; a store may leave some of them, and never takes more.

        Harmless if it was done before. Readers that have not come so far get ``Truncated``. The last event stays.

        Args:
            until: the last event that may go.
            term: the caller's term.
            archive: where these events are kept.

        Returns:
            Where the live log begins now.

        Raises:
            Fenced: a newer term exists, or this term never was.
        """

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """Keep a snapshot beside the log; of all that are there the newest ``SNAPSHOTS_KEPT`` stay.

        Raises:
            Fenced: a newer term exists, or this term never was.
            LogFull: no space; those that were there still are.
        """

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """The newest snapshot (with ``seq <= until``), whole as it was saved; None if there is none."""

    async def reclaim(self) -> None:
        """Give the store back the room of what was taken out or superseded a while ago. May do nothing."""

    async def space(self) -> Space | None:
        """How full the store is; None if it has no limit of its own."""

    async def campaign(self, candidate: Candidate) -> Leadership:
        """Wait until the leadership is won. Cancel to give up."""

    async def leader(self) -> Leader | None:
        """Who leads, or who led last (``alive`` false); None if nobody ever did."""

    async def close(self) -> None:
        """Release what it holds; a leadership that was not resigned lapses."""


class LogStore(Protocol):
    """A place that holds the logs of several jobs."""

    async def jobs(self) -> list[JobName]:
        """Names of the jobs that have a log here, sorted."""

    async def open(self, job: JobName, *, create: bool = False) -> EventLog:
        """The log of a job.

        Args:
            job: its name.
            create: make an empty one if there is none.

        Raises:
            NotFound: there is none, and ``create`` is false.
            StoreError: what is there is not a log of ours, or of a newer layout.
            UsageError: the place cannot be written (``create``), with the reason.
        """

    async def close(self) -> None:
        """Release what it holds."""


class Archive(Protocol):
    """Where the older events of one job's log are moved to, a piece at a time. All methods block.

    Raised by all methods: ``StoreError`` and ``UsageError`` when the place cannot be used, ``LogFull`` for want of
    space. A piece is there whole or not at all, and is never changed.
    """

    @property
    def where(self) -> str:
        """Its place, for people and for who reads it later."""

    def prepare(self, make: bool) -> None:
        """Find out whether the place can be written.

        Args:
            make: make it, if it is not there.
        """

    def reaches(self, seq: Seq) -> Seq | None:
        """The last event of the piece that holds ``seq``; None if none does."""

    def digest_at(self, last: Seq) -> str:
        """The hex digest of the log up to the last event of a piece, as the piece has it."""

    def add(self, after: Seq, previous: bytes, bodies: Sequence[bytes]) -> None:
        """Write a piece; durable when it returns.

        Args:
            after: the seq before its first event.
            previous: the log's digest up to there.
            bodies: its events, as they are stored.
        """
