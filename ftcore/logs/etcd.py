"""A job's log in etcd.

Keys, under the URL's prefix and ``/ftcore/1/<job>/``:

| key | value | written by |
|---|---|---|
| ``head`` | end of the log: next seq, digest of the last event, ID of the last batch | each append |
| ``last`` | the candidate elected last; its ``mod_revision`` is the term | each election |
| ``leader`` | the same, on the leader's lease; its ``create_revision`` is the term | each election |
| ``log/<first seq, 16 hex digits>`` | a segment: consecutive events, digests before and after | each append |

``etcd_lead`` holds elections; ``etcd_retention`` snapshots, truncation and compaction.

- An append is one transaction: *if* ``leader`` was created at revision ``term`` *and* ``head`` is unchanged since it
  was read, write the segments and the head. This comparison is the fence; no clock is involved.
- After an append without an answer, ``leader`` and ``head`` are read at one revision. If ``head`` is unchanged, the
  *same* transaction is sent again. If both copies arrive, the second fails the comparison: appends are idempotent.
- Readers catch up by range reads at one revision, then watch from the next one. After an interruption they start over.
  They check seqs and digests, so a watch event that the server lost causes one more range read.
- Keys other than ``head``, ``last`` and ``leader`` are written once, so compactions by other clients remove nothing.
- Segments are removed only by truncation; a reader of removed events gets ``Truncated``.

A cluster restored from a backup reuses revisions, so terms would repeat. Restore with a bumped revision, or use a new
prefix.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from ftcore.errors import Conflict, Fenced, FtcoreError, LogCorrupt, LogFull, LogUnavailable, NotFound, Truncated
from ftcore.etcd3 import (
    Client,
    Compacted,
    Compare,
    Config,
    KeyValue,
    Put,
    Range,
    SortOrder,
    Target,
    Txn,
    WatchOpen,
    prefix_end,
)
from ftcore.events.codec import GENESIS
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.etcd_layout import (
    LAYOUT,
    SEGMENT_EVENTS,
    Cursor,
    Keys,
    State,
    digest_in,
    empty_head,
    name,
    next_segments,
    parse_head,
    parse_state,
)
from ftcore.logs.etcd_lead import Election, EtcdLeadership, decode_candidate
from ftcore.logs.etcd_retention import EtcdRetention
from ftcore.logs.rules import check_job_name, continued, encode_group, one_by_one, truncated
from ftcore.ports import Candidate, Floor, Leader, Snapshot, Space
from ftcore.timing import DEFAULT, Timing

T = TypeVar("T")

APPEND_S = 15.0
"""Seconds for which an append is retried: an etcd cluster elects a new leader in 1-2 s."""

QUIET_S = 5.0
"""Seconds without a watch event after which a follower reads the end of the log."""

PAGE_BYTES = 4 << 20
"""Target size of one range answer."""

_PAUSE_S = 0.1
"""Seconds before a retry."""


class EtcdLog:
    """One job's log in etcd; see ``ports.EventLog``. Created by ``EtcdStore.open``."""

    def __init__(self, job: JobName, client: Client, keys: Keys, timing: Timing) -> None:
        self._job = job
        self._client = client
        self._keys = keys
        self._timing = timing
        self._appending = asyncio.Lock()
        self._cached: State | None = None
        self._leaderships: list[EtcdLeadership] = []
        self._election = Election(client, keys, timing)
        self._retention = EtcdRetention(job, client, keys)

    @property
    def job(self) -> JobName:
        """Name of the job."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        bodies = encode_group(events, expected_seq)
        async with self._appending:
            await self._commit(bodies, term, expected_seq)

    async def _commit(self, bodies: list[bytes], term: Term, expected: Seq) -> None:
        batch = uuid.uuid4().hex
        deadline = time.monotonic() + APPEND_S
        state, self._cached = self._cached, None
        if state is None or (state.term, state.last) != (term, expected):
            state = await self._read_state()
        while not await self._committed(state, batch, bodies, term, expected):
            head, puts = next_segments(self._keys, state.head, batch, bodies, term)
            txn = Txn(
                compare=(
                    Compare(self._keys.leader, Target.CREATE, term),
                    Compare(self._keys.head, Target.MOD, state.head_revision),
                ),
                success=tuple(puts),
                failure=self._state_reads(),
            )
            try:
                answer = await self._client.txn(txn)
            except LogUnavailable:
                if time.monotonic() >= deadline:
                    raise
                state = await self._read_state()
            except LogFull:
                self._cached = state
                raise
            else:
                if answer.succeeded:
                    revision = answer.revision
                    self._cached = State(now=revision, term=term, head_revision=revision, head=head)
                    return
                state = parse_state(self._keys, answer.revision, answer.range(0), answer.range(1))

    async def _committed(self, state: State, batch: str, bodies: list[bytes], term: Term, expected: Seq) -> bool:
        """Whether the append is in the log. Returns False if it should be (re)sent; raises if it cannot succeed."""
        if state.head.batch == batch:
            return True
        # A missing leader key has create revision 0, so term 0 would pass the comparison.
        if term < 1 or state.term != term:
            now = f"the current term is {state.term}" if state.term else "no leader holds the lease"
            raise Fenced(f"job {self._job}: append of term {term} refused: {now}")
        if state.last == expected:
            return False
        if await self._contains(state, bodies, expected):
            return True
        raise Conflict(f"job {self._job}: the log ends with event {state.last}, not {expected}", state.last)

    async def _contains(self, state: State, bodies: list[bytes], expected: Seq) -> bool:
        """Whether an earlier, equal append is in the log."""
        if state.last < expected + len(bodies):
            return False
        try:
            found = [body async for part in self.stored(expected, Seq(expected + len(bodies))) for body in part]
        except Truncated:
            return False
        return found == bodies

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        return (await self._read_state()).last

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog.read_batches``."""
        state = await self._read_state()
        last = state.last if until is None else min(until, state.last)
        cursor = Cursor(self._keys, after)
        async with aclosing(self._catch_up(cursor, cursor.take, state, last)) as batches:
            async for events in batches:
                wanted = [event for event in events if event.seq <= last]
                if wanted:
                    yield wanted

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        state = await self._read_state()
        last = min(until, state.last)
        cursor = Cursor(self._keys, after)
        async with aclosing(self._catch_up(cursor, cursor.take_stored, state, last)) as batches:
            async for bodies in batches:
                over = max(0, cursor.position - last)
                yield [bytes(body) for body in bodies[: len(bodies) - over]]

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``."""
        cursor = Cursor(self._keys, after)
        seen = Seq(0)
        while True:
            with suppress(LogUnavailable):
                state = await self._read_state()
                seen = continued(self._job, seen, state.last)
                catch_up = self._catch_up(cursor, cursor.take, state, state.last)
                for source in (catch_up, self._tail(cursor, state.now)):
                    async with aclosing(source) as batches:
                        async for events in batches:
                            for event in events:
                                yield event
                                seen = event.seq
            await asyncio.sleep(_PAUSE_S)

    async def _catch_up(
        self, cursor: Cursor, take: Callable[[KeyValue], list[T]], state: State, last: int
    ) -> AsyncGenerator[list[T], None]:
        """Range reads from the cursor to ``last``, which exists by ``state``; the last batch may go beyond it."""
        repaired = -1
        while cursor.position < last:
            try:
                async with aclosing(self._pages(cursor.position + 1, last, state.now)) as pages:
                    async for kv in pages:
                        yield take(kv)
                if cursor.position < last:
                    raise LogCorrupt(
                        f"job {self._job}: the last event found is {cursor.position}, the log's head says {last}"
                    )
            except Compacted:
                state = await self._read_state()
            except LogCorrupt:
                await self._check_floor(cursor.position)
                # Retry once per position: if the second read fails too, the log is damaged.
                if repaired == cursor.position:
                    raise
                repaired = cursor.position
                state = await self._read_state()

    async def _check_floor(self, position: int) -> None:
        """Raise ``Truncated`` if the events after this position were truncated."""
        if position + 1 < await self._retention.first_seq():
            raise truncated(self._job, position, await self._retention.floor())

    async def _pages(self, first: int, last: int, revision: int) -> AsyncGenerator[KeyValue, None]:
        """The segments with the events ``first`` to ``last``."""
        start = await self._segment_of(first, revision)
        end = self._keys.segment(last + 1)
        limit = 16
        while True:
            page = await self._client.range(Range(start, end, limit=limit, revision=revision))
            for kv in page.kvs:
                yield kv
            if not page.more or not page.kvs:
                return
            start = page.kvs[-1].key + b"\0"
            size = sum(len(kv.value) for kv in page.kvs) // len(page.kvs) + 1
            limit = max(1, min(4096, PAGE_BYTES // size))

    async def _segment_of(self, seq: int, revision: int) -> bytes:
        """The key of the segment that contains ``seq``."""
        if seq == 1:
            return self._keys.segment(1)
        lowest = self._keys.segment(max(1, seq - SEGMENT_EVENTS + 1))
        # For a descending order the server reads the whole range, so it must be short.
        request = Range(
            lowest, self._keys.segment(seq + 1), limit=1, revision=revision, order=SortOrder.DESCENDING, keys_only=True
        )
        kv = (await self._client.range(request)).first
        if kv is None:
            raise LogCorrupt(f"job {self._job}: no segment contains event {seq}")
        return kv.key

    async def _tail(self, cursor: Cursor, revision: int) -> AsyncGenerator[list[Event], None]:
        """Watch after ``revision``; ends when the watch breaks or may have missed an event."""
        log = self._keys.log
        watch = await self._client.watch(
            WatchOpen(key=log, end=prefix_end(log), start_revision=revision + 1, deletes=False)
        )
        try:
            while True:
                batch = await watch.read(QUIET_S)
                if batch is None:
                    # A frozen or partitioned member is silent too; a request makes the client leave it.
                    state = await self._read_state()
                    if state.last != cursor.position or watch.endpoint != self._client.endpoint:
                        return
                else:
                    for event in batch.events:
                        events = cursor.take(event.kv)
                        if not events:
                            return  # an event that was read is written anew: the log was deleted or restored
                        yield events
        except (Compacted, LogCorrupt):
            return  # the range reads that follow repair it or raise
        finally:
            watch.cancel()

    async def campaign(self, candidate: Candidate) -> EtcdLeadership:
        """See ``ports.EventLog.campaign``. While etcd is unreachable or full, the candidate waits."""
        leadership = await self._election.campaign(candidate)
        self._leaderships.append(leadership)
        return leadership

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return await self._retention.floor()

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        state = await self._read_state()
        if seq == state.last:
            return state.head.dig
        if seq == 0 or seq > state.last:
            return GENESIS.hex() if seq == 0 else ""
        floor = await self._retention.floor()
        if seq <= floor.seq:
            return floor.digest if seq == floor.seq else ""
        key = await self._segment_of(seq, state.now)
        found = (await self._client.range(Range(key, revision=state.now))).first
        return "" if found is None else digest_in(found, self._keys, seq)

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``; removes whole segments."""
        state = await self._read_state()
        if term < 1 or state.term != term:
            raise Fenced(f"job {self._job}: truncation of term {term} refused: the current term is {state.term}")
        until = Seq(min(until, state.last - 1))
        first = await self._retention.first_seq()
        if until >= first:
            boundary = await self._segment_of(until + 1, state.now)
            if boundary > self._keys.segment(first):
                await self._retention.truncate(boundary, term, archive)
        return await self._retention.floor()

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        await self._retention.save_snapshot(snapshot, term)

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        return await self._retention.snapshot(until)

    async def reclaim(self) -> None:
        """See ``ports.EventLog.reclaim``: compacts the whole cluster."""
        await self._retention.reclaim((await self._read_state()).now)

    async def space(self) -> Space | None:
        """See ``ports.EventLog.space``."""
        return await self._retention.space()

    async def leader(self) -> Leader | None:
        """See ``ports.EventLog.leader``."""
        answer = await self._client.txn(Txn(success=(Range(self._keys.leader), Range(self._keys.last))))
        holder, last = answer.range(0).first, answer.range(1).first
        if last is None:
            return None
        candidate = decode_candidate(last)
        alive = holder is not None and holder.create_revision == last.mod_revision
        return Leader(term=Term(last.mod_revision), candidate=candidate, alive=alive)

    async def close(self) -> None:
        """See ``ports.EventLog.close``. The store's connections stay open."""
        held, self._leaderships = self._leaderships, []
        for leadership in held:
            await leadership.abandon("the log was closed")

    def _state_reads(self) -> tuple[Range, Range]:
        return Range(self._keys.leader, keys_only=True), Range(self._keys.head)

    async def _read_state(self) -> State:
        answer = await self._client.txn(Txn(success=self._state_reads()))
        return parse_state(self._keys, answer.revision, answer.range(0), answer.range(1))


class EtcdStore:
    """The logs under one prefix of an etcd cluster; see ``ports.LogStore``.

    Args:
        config: the cluster.
        timing: lease and renewal of leaderships.
    """

    def __init__(self, config: Config, timing: Timing = DEFAULT) -> None:
        self._client = Client(config)
        self._timing = timing
        self._base = f"{config.prefix}/ftcore/{LAYOUT}/".encode()
        self._opened: list[EtcdLog] = []
        self._version_checked = False

    @classmethod
    def from_url(cls, url: str, *, timing: Timing = DEFAULT) -> "EtcdStore":
        """The store at a URL (see ``etcd3.config``); does not connect.

        Raises:
            UsageError: the URL is invalid.
        """
        return cls(Config.from_url(url), timing)

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        await self._warn_if_old()
        names: list[JobName] = []
        start, end = self._base, prefix_end(self._base)
        while True:
            # The head is the first of a job's keys, so only one key per job is read.
            kv = (await self._client.range(Range(start, end, limit=1, keys_only=True))).first
            if kv is None:
                return sorted(names)
            job, _, rest = kv.key[len(self._base) :].partition(b"/")
            if rest == b"head":
                names.append(JobName(job.decode()))
            start = prefix_end(self._base + job + b"/")

    async def open(self, job: JobName, *, create: bool = False) -> EtcdLog:
        """See ``ports.LogStore.open``."""
        job = check_job_name(job)
        await self._warn_if_old()
        keys = Keys(self._base + job.encode() + b"/")
        head = (await self._client.range(Range(keys.head))).first
        if head is None and create:
            txn = Txn(compare=(Compare(keys.head, Target.CREATE, 0),), success=(Put(keys.head, empty_head()),))
            # It does not matter whether this transaction or that of another process succeeds.
            with suppress(LogUnavailable):
                await self._client.txn(txn)
            head = (await self._client.range(Range(keys.head))).first
            if head is None:
                raise LogUnavailable(f"etcd at {self._client.config} did not create the log of job {job!r}")
        if head is None:
            raise NotFound(f"no job {job!r} in etcd at {self._client.config} under {name(self._base)}")
        parse_head(head)
        log = EtcdLog(job, self._client, keys, self._timing)
        self._opened.append(log)
        return log

    async def close(self) -> None:
        """Close the logs opened through this store, and its connections."""
        for log in self._opened:
            await log.close()
        await self._client.close()

    async def _warn_if_old(self) -> None:
        if not self._version_checked:
            self._version_checked = True
            # Some etcd users may not read the version; real errors show in the next call.
            with suppress(FtcoreError):
                await self._client.warn_if_old()


def servers(url: str) -> list[tuple[str, int]]:
    """Hosts and ports of the members in a URL.

    Raises:
        UsageError: the URL is invalid.
    """
    pairs = (endpoint.rpartition(":") for endpoint in Config.from_url(url).endpoints)
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]
