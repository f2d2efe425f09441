"""A job's log in etcd.

Keys, under the URL's prefix and ``/ftcore/1/<job>/``:

| key | value | written by |
|---|---|---|
| ``head`` | where the log ends: next seq, digest of the last event, id of the last batch | each append |
| ``last`` | who was elected last; its ``mod_revision`` is the term | each election |
| ``leader`` | the same, on the leader's lease; its ``create_revision`` is the term | each election |
| ``log/<first seq, 16 hex digits>`` | a segment: events one behind another, digests before and after | each append |

Elections are ``etcd_lead``'s matter; what keeps it small (snapshots, truncation, compaction) is ``etcd_upkeep``'s.

House rules:

- An append is one transaction: *if* ``leader`` was created at revision ``term`` *and* ``head`` was not touched since it
  was read, write the segments and the head. The comparison is the fence; no clock is asked.
- An append whose answer is lost is looked up (``leader`` and ``head`` at one revision). If ``head`` has not moved, the
  *same* transaction is sent again: of two copies the second finds the head moved. So it lands once or never.
- Readers catch up by range reads at one revision, then watch from the next one. After any break they start over. What
  they read must be dense and its digests must fit: a server that loses a watch event causes one more range read.
- Every key here is written once, except ``head``, ``last`` and ``leader``; so another's compaction takes nothing away.
- A reader whose place is no longer in the live log is told so (``Truncated``): segments are gone only by truncation.

A cluster restored from a backup counts revisions from the past again: terms would repeat. Restore with a bumped
revision, or under a new prefix.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from ftcore.errors import (
    Conflict,
    Fenced,
    FtcoreError,
    LogCorrupt,
    LogFull,
    LogUnavailable,
    NotFound,
    Truncated,
)
from ftcore.etcd3 import (
    Client,
    Compacted,
    Compare,
    Config,
    KeyValue,
    Order,
    Put,
    Range,
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
from ftcore.logs.etcd_lead import EtcdLeadership, Seat, decode_candidate
from ftcore.logs.etcd_upkeep import Upkeep
from ftcore.logs.rules import check_job_name, encode_group, truncated
from ftcore.ports import Candidate, Floor, Leader, Snapshot, Space
from ftcore.timing import DEFAULT, Timing

T = TypeVar("T")

APPEND_S = 15.0
"""An append is tried, and its outcome looked up, for this long: a cluster elects a new leader in 1-2 s."""

QUIET_S = 5.0
"""A follower that heard nothing for this long asks where the log ends."""

PAGE_BYTES = 4 << 20
"""Aim for one answer of a range read."""

_PAUSE_S = 0.1
"""After a break, before the next try."""


class EtcdLog:
    """One job's log in etcd; see ``ports.EventLog``. Made by ``EtcdStore.open``."""

    def __init__(self, job: JobName, client: Client, keys: Keys, timing: Timing) -> None:
        self._job = job
        self._client = client
        self._keys = keys
        self._timing = timing
        self._appending = asyncio.Lock()
        self._known: State | None = None
        self._held: list[EtcdLeadership] = []
        self._seat = Seat(client, keys, timing)
        self._upkeep = Upkeep(job, client, keys)

    @property
    def job(self) -> JobName:
        """The job whose log it is."""
        return self._job

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog.append``."""
        bodies = encode_group(events, expected_seq)
        async with self._appending:
            await self._commit(bodies, term, expected_seq)

    async def _commit(self, bodies: list[bytes], term: Term, expected: Seq) -> None:
        batch = uuid.uuid4().hex
        deadline = time.monotonic() + APPEND_S
        state, self._known = self._known, None
        if state is None or (state.term, state.last) != (term, expected):
            state = await self._look()
        while not await self._landed(state, batch, bodies, term, expected):
            head, puts = next_segments(self._keys, state.head, batch, bodies, term)
            txn = Txn(
                compare=(
                    Compare(self._keys.leader, Target.CREATE, term),
                    Compare(self._keys.head, Target.MOD, state.head_revision),
                ),
                success=tuple(puts),
                failure=self._look_ops(),
            )
            try:
                answer = await self._client.txn(txn)
            except LogUnavailable:
                if time.monotonic() >= deadline:
                    raise
                state = await self._look()
            except LogFull:
                self._known = state
                raise
            else:
                if answer.succeeded:
                    revision = answer.revision
                    self._known = State(now=revision, term=term, head_revision=revision, head=head)
                    return
                state = parse_state(self._keys, answer.revision, answer.range(0), answer.range(1))

    async def _landed(self, state: State, batch: str, bodies: list[bytes], term: Term, expected: Seq) -> bool:
        """Whether the append is in the log; if not, it may be sent (again), or its error is raised."""
        if state.head.batch == batch:
            return True
        # A leader key that is not there has the create revision 0, so term 0 would pass the comparison.
        if term < 1 or state.term != term:
            who = f"term {state.term} leads" if state.term else "nobody leads"
            raise Fenced(f"job {self._job}: term {term} may not append: {who}")
        if state.last == expected:
            return False
        if await self._holds(state, bodies, expected):
            return True
        raise Conflict(f"job {self._job}: the log ends at {state.last}, not at {expected}", state.last)

    async def _holds(self, state: State, bodies: list[bytes], expected: Seq) -> bool:
        """Whether an earlier, equal call has landed."""
        if state.last < expected + len(bodies):
            return False
        try:
            found = [body async for part in self.stored(expected, Seq(expected + len(bodies))) for body in part]
        except Truncated:
            return False
        return found == bodies

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog.last_seq``."""
        return (await self._look()).last

    async def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog.read``."""
        state = await self._look()
        last = state.last if until is None else min(until, state.last)
        cursor = Cursor(self._keys, after)
        async with aclosing(self._catch_up(cursor, cursor.take, state, last)) as batches:
            async for events in batches:
                for event in events:
                    if event.seq <= last:
                        yield event

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog.stored``."""
        state = await self._look()
        last = min(until, state.last)
        cursor = Cursor(self._keys, after)
        async with aclosing(self._catch_up(cursor, cursor.take_stored, state, last)) as batches:
            async for bodies in batches:
                over = max(0, cursor.position - last)
                yield [bytes(body) for body in bodies[: len(bodies) - over]]

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog.follow``."""
        cursor = Cursor(self._keys, after)
        while True:
            with suppress(LogUnavailable):
                state = await self._look()
                if cursor.moved and state.last < cursor.position:
                    raise LogCorrupt(f"job {self._job}: the log ends at {state.last}, but {cursor.position} was read")
                catch_up = self._catch_up(cursor, cursor.take, state, state.last)
                for source in (catch_up, self._tail(cursor, state.now)):
                    async with aclosing(source) as batches:
                        async for events in batches:
                            for event in events:
                                yield event
            await asyncio.sleep(_PAUSE_S)

    async def _catch_up(
        self, cursor: Cursor, take: Callable[[KeyValue], list[T]], state: State, last: int
    ) -> AsyncGenerator[list[T], None]:
        """Range reads from the cursor to ``last``, which the state says is there; the last batch may go beyond it."""
        repaired = -1
        while cursor.position < last:
            try:
                async with aclosing(self._pages(cursor.position + 1, last, state.now)) as pages:
                    async for kv in pages:
                        yield take(kv)
                if cursor.position < last:
                    raise LogCorrupt(f"job {self._job}: the log ends at {cursor.position}, its head says {last}")
            except Compacted:
                state = await self._look()
            except LogCorrupt:
                await self._check_floor(cursor.position)
                # Once at each place: a second reading that says the same is the truth.
                if repaired == cursor.position:
                    raise
                repaired = cursor.position
                state = await self._look()

    async def _check_floor(self, position: int) -> None:
        """Raise ``Truncated`` if what comes behind this position was taken out."""
        if position + 1 < await self._upkeep.first_seq():
            raise truncated(self._job, position, await self._upkeep.floor())

    async def _pages(self, first: int, last: int, revision: int) -> AsyncGenerator[KeyValue, None]:
        """The segments that hold events ``first`` to ``last``."""
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
        """The key of the segment that holds ``seq``."""
        if seq == 1:
            return self._keys.segment(1)
        lowest = self._keys.segment(max(1, seq - SEGMENT_EVENTS + 1))
        # A descending range makes the server read it all, so it is kept short.
        request = Range(
            lowest, self._keys.segment(seq + 1), limit=1, revision=revision, order=Order.DESCENDING, keys_only=True
        )
        kv = (await self._client.range(request)).first
        if kv is None:
            raise LogCorrupt(f"job {self._job}: no segment holds seq {seq}")
        return kv.key

    async def _tail(self, cursor: Cursor, revision: int) -> AsyncGenerator[list[Event], None]:
        """Watch from behind ``revision``; ends when the watch breaks or may have missed something."""
        log = self._keys.log
        watch = await self._client.watch(
            WatchOpen(key=log, end=prefix_end(log), start_revision=revision + 1, deletes=False)
        )
        try:
            while True:
                batch = await watch.read(QUIET_S)
                if batch is None:
                    # A member that is frozen or cut off is silent too; asking moves the client away from it.
                    state = await self._look()
                    if state.last != cursor.position or watch.endpoint != self._client.endpoint:
                        return
                else:
                    for event in batch.events:
                        yield cursor.take(event.kv)
        except (Compacted, LogCorrupt):
            return  # the range reads that follow know better, or raise
        finally:
            watch.cancel()

    async def campaign(self, candidate: Candidate) -> EtcdLeadership:
        """See ``ports.EventLog.campaign``. While etcd is away or full, the candidate waits."""
        leadership = await self._seat.campaign(candidate)
        self._held.append(leadership)
        return leadership

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        return await self._upkeep.floor()

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        state = await self._look()
        if seq == state.last:
            return state.head.dig
        if seq == 0 or seq > state.last:
            return GENESIS.hex() if seq == 0 else ""
        floor = await self._upkeep.floor()
        if seq <= floor.seq:
            return floor.digest if seq == floor.seq else ""
        key = await self._segment_of(seq, state.now)
        found = (await self._client.range(Range(key, revision=state.now))).first
        return "" if found is None else digest_in(found, self._keys, seq)

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``; whole segments go."""
        state = await self._look()
        if term < 1 or state.term != term:
            raise Fenced(f"job {self._job}: term {term} may not write, the term is {state.term}")
        until = Seq(min(until, state.last - 1))
        first = await self._upkeep.first_seq()
        if until >= first:
            boundary = await self._segment_of(until + 1, state.now)
            if boundary > self._keys.segment(first):
                await self._upkeep.truncate(boundary, term, archive)
        return await self._upkeep.floor()

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        await self._upkeep.save_snapshot(snapshot, term)

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        return await self._upkeep.snapshot(until)

    async def reclaim(self) -> None:
        """See ``ports.EventLog.reclaim``: compacts the whole cluster."""
        await self._upkeep.reclaim((await self._look()).now)

    async def space(self) -> Space | None:
        """See ``ports.EventLog.space``."""
        return await self._upkeep.space()

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
        """See ``ports.EventLog.close``. The store's connections stay."""
        held, self._held = self._held, []
        for leadership in held:
            await leadership.abandon("the log was closed")

    def _look_ops(self) -> tuple[Range, Range]:
        return Range(self._keys.leader, keys_only=True), Range(self._keys.head)

    async def _look(self) -> State:
        answer = await self._client.txn(Txn(success=self._look_ops()))
        return parse_state(self._keys, answer.revision, answer.range(0), answer.range(1))


class EtcdStore:
    """The logs under one prefix of an etcd cluster; see ``ports.LogStore``.

    Args:
        config: where etcd is.
        timing: how long a leadership's lease is, and how often it is renewed.
    """

    def __init__(self, config: Config, timing: Timing = DEFAULT) -> None:
        self._client = Client(config)
        self._timing = timing
        self._base = f"{config.prefix}/ftcore/{LAYOUT}/".encode()
        self._opened: list[EtcdLog] = []
        self._asked_version = False

    @classmethod
    def from_url(cls, url: str, *, timing: Timing = DEFAULT) -> "EtcdStore":
        """The store at a URL (see ``etcd3.config``); nothing is connected to yet.

        Raises:
            UsageError: the URL is not usable.
        """
        return cls(Config.from_url(url), timing)

    async def jobs(self) -> list[JobName]:
        """See ``ports.LogStore.jobs``."""
        await self._warn_if_old()
        names: list[JobName] = []
        start, end = self._base, prefix_end(self._base)
        while True:
            # The head is the first of a job's keys, so one key per job is read, whatever the length of its log.
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
            # Whether this one or another's landed is the same.
            with suppress(LogUnavailable):
                await self._client.txn(txn)
            head = (await self._client.range(Range(keys.head))).first
            if head is None:
                raise LogUnavailable(f"etcd at {self._client.config} does not take the new log of job {job!r}")
        if head is None:
            raise NotFound(f"there is no job {job!r} in etcd at {self._client.config} under {name(self._base)}")
        parse_head(head)
        log = EtcdLog(job, self._client, keys, self._timing)
        self._opened.append(log)
        return log

    async def close(self) -> None:
        """Close the logs that were opened through this store, and its connections."""
        for log in self._opened:
            await log.close()
        await self._client.close()

    async def _warn_if_old(self) -> None:
        if not self._asked_version:
            self._asked_version = True
            # Some users may not ask for the version; what is really wrong shows in the call that follows.
            with suppress(FtcoreError):
                await self._client.warn_if_old()


def servers(url: str) -> list[tuple[str, int]]:
    """Hosts and ports of the members that a URL names.

    Raises:
        UsageError: the URL is not usable.
    """
    pairs = (endpoint.rpartition(":") for endpoint in Config.from_url(url).endpoints)
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]
