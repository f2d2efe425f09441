"""The sequencer: takes facts, appends durable groups. The only place in production that calls ``engine.decide.turn``.

While a commit is in progress, facts queue up; the queue (up to a limit) becomes the next batch. There is no batching
delay. An unreachable or full store blocks only this queue: the append is retried until it succeeds, the facts stay
unacknowledged at their agents, and none of the decisions is sent.

A fact that cannot be folded (a bug, or an unexpected message), or whose group is larger than the log accepts, parks the
job: the batch before it is appended, the state is folded again from the log, and ``job.parked`` keeps the fact. Workers
keep running.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
import structlog

from ftcore.engine.decide import turn
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import LogFull, LogUnavailable, UnknownEvent
from ftcore.events.codec import encode, encode_fact
from ftcore.events.envelope import Event, Fact
from ftcore.events.job import JobParked
from ftcore.ids import Nanoseconds, Seq, Term, seconds
from ftcore.ports import GROUP_BYTES_MAX, AppendOnlyLog, Clock
from ftcore.states.fold import fold, is_duplicate
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall
from ftcore.version import __version__

BATCH_EVENTS_MAX = 1024
BATCH_BYTES_MAX = 256 << 10
"""Limits of a batch; the last group may exceed them. A larger batch only delays acknowledgements. A batch larger than
one append accepts is appended in several parts of whole groups."""

RETRY_S = (0.05, 2.0)
"""First and longest pause before an append is retried."""

SLOW_S = 2.0
"""A longer append counts as an outage of the store: nothing was acknowledged or ordered meanwhile."""

ERROR_CHARS_MAX = 500
FACT_CHARS_MAX = 16 << 10
"""Limits of the error and the fact in ``job.parked``, which must fit into the log even if the fact does not."""

T = TypeVar("T")

logger = structlog.get_logger()


@attrs.define
class _Entry:
    fact: Fact
    done: asyncio.Future[Seq]
    holds: Callable[[], bool]
    since: int
    seq: Seq = Seq(0)


@attrs.define
class _Group:
    entry: _Entry
    events: list[Event]
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = sum(len(encode(event)) for event in self.events)


@attrs.define
class _Batch:
    """Entries that are committed together; ``poison`` is the error of the last entry, if any."""

    entries: list[_Entry] = attrs.field(factory=list)
    groups: list[_Group] = attrs.field(factory=list)
    poison: str = ""

    def cut(self, last: _Entry) -> list[_Entry]:
        """Remove and return the entries after ``last``."""
        place = next(at for at, entry in enumerate(self.entries) if entry is last) + 1
        rest, self.entries = self.entries[place:], self.entries[:place]
        last.seq = Seq(0)
        return rest


class Sequencer:
    """Sequences facts for one term.

    Args:
        log: the job's log.
        state: the folded state at the end of the log; the sequencer becomes its owner.
        term: the term won.
        clock: time for the events.
        committed: called with each durable batch, in order, while the state is exactly that of the log.

    Attributes:
        stalled: the log cannot be written now.
        resumed: time of the end of the last outage or slow append; 0: none.
    """

    def __init__(
        self,
        log: AppendOnlyLog,
        state: JobState,
        term: Term,
        clock: Clock,
        committed: Callable[[Sequence[Event]], None],
    ) -> None:
        self.log = log
        self.state = state
        self.term = term
        self.clock = clock
        self.stalled = False
        self.resumed = Nanoseconds(0)
        self._committed = committed
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._committing = False
        self._under_way: list[_Entry] = []

    def submit(self, fact: Fact, holds: Callable[[], bool] = lambda: True) -> asyncio.Future[Seq]:
        """Queue a fact.

        Args:
            fact: the fact of an agent or of the master.
            holds: called when the fact is sequenced: whether it still holds. It may have been queued for hours.

        Returns:
            A future with the fact's seq, done once it is durable; 0 if the fact is a duplicate or no longer holds.
        """
        done: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
        self._queue.append(_Entry(fact, done, holds, self.clock.mono()))
        self._wake.set()
        return done

    def lag(self) -> tuple[int, float]:
        """Number of submitted facts that are not durable, and the seconds for which the oldest has waited."""
        waiting = len(self._under_way) + len(self._queue)
        oldest = self._under_way[0] if self._under_way else self._queue[0] if self._queue else None
        return waiting, (self.clock.mono() - oldest.since) / 1e9 if oldest is not None else 0.0

    @property
    def ahead(self) -> bool:
        """Whether a commit is in progress: the state contains events that may never become durable."""
        return self._committing

    async def run(self) -> None:
        """Sequence until the term ends.

        Raises:
            Fenced, Conflict: another master leads; this one must stop.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._committing = True
                await self._commit_next()

    async def _commit_next(self) -> None:
        appended = Seq(self.state.seq)
        batch = self._next_batch()
        self._under_way = batch.entries
        durable: list[Event] = []
        parts = deque(_parts(batch.groups))
        while parts:
            part = parts.popleft()
            try:
                await self._append(part, appended)
            except ValueError as error:  # the store's limit is below GROUP_BYTES_MAX
                if len(part) > 1:
                    parts.extendleft([group] for group in reversed(part))
                    continue
                self._queue.extendleft(reversed(batch.cut(part[0].entry)))
                batch.poison = f"the log refuses the group of {len(part[0].events)} events: {error}"
                break
            durable += [event for group in part for event in group.events]
            appended = durable[-1].seq
        if batch.poison:
            await self._roll_back(appended)
        self._committing = False
        if durable:
            self._committed(durable)
        if batch.poison:
            await self._park(batch.entries[-1].fact, batch.poison)
        self._under_way = []
        for entry in batch.entries:
            if not entry.done.done():
                entry.done.set_result(entry.seq)

    def _next_batch(self) -> _Batch:
        batch, size = _Batch(), 0
        events = 0
        while self._queue and events < BATCH_EVENTS_MAX and size < BATCH_BYTES_MAX:
            entry = self._queue.popleft()
            entry.seq = Seq(0)
            batch.entries.append(entry)
            if is_duplicate(self.state, *entry.fact.id) or not entry.holds():
                continue
            try:
                group = _Group(entry, self._turn(entry.fact))
            except UnknownEvent:
                raise
            except Exception as error:
                logger.exception("a fact cannot be folded", fact=entry.fact.type, job=self.log.job)
                batch.poison = f"{type(error).__name__}: {error}"
                break
            if group.size > GROUP_BYTES_MAX:
                batch.poison = (
                    f"{entry.fact.type} and its {len(group.events) - 1} decisions are {group.size} bytes; the limit of "
                    f"one append is {GROUP_BYTES_MAX}"
                )
                logger.error("a group is too large for the log", why=batch.poison, job=self.log.job)
                break
            entry.seq = Seq(group.events[0].seq)
            batch.groups.append(group)
            events += len(group.events)
            size += group.size
        return batch

    def _turn(self, fact: Fact) -> list[Event]:
        return turn(self.state, sequence(self.state, fact, now=self.clock.now(), term=self.term))

    async def _append(self, part: list[_Group], expected: Seq) -> None:
        events = [event for group in part for event in group.events]
        await self._with_retries(lambda: self.log.append(events, term=self.term, expected_seq=expected))

    async def _with_retries(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Call the log until it succeeds."""
        pause_s, begun = RETRY_S[0], self.clock.mono()
        while True:
            try:
                answer = await operation()
                break
            except (LogUnavailable, LogFull) as error:
                if not self.stalled:
                    logger.warning("cannot write the log; retrying; training continues", error=str(error))
                self.stalled = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
        if self.stalled or self.clock.mono() - begun > seconds(SLOW_S):
            self.resumed = self.clock.now()
        if self.stalled:
            logger.warning("the log can be written again")
            self.stalled = False
        return answer

    async def _roll_back(self, seq: Seq) -> None:
        """Replace a state that is ahead of the log by that of the log."""
        self.state = await self._with_retries(lambda: refold(self.log, seq))

    async def _park(self, fact: Fact, why: str) -> None:
        parked = JobParked(
            error=why[:ERROR_CHARS_MAX], fact=encode_fact(fact).decode()[:FACT_CHARS_MAX], version=__version__
        )
        appended = Seq(self.state.seq)
        self._committing = True
        events = self._turn(own_fact(parked))
        await self._with_retries(lambda: self.log.append(events, term=self.term, expected_seq=appended))
        self._committing = False
        self._committed(events)


def _parts(groups: list[_Group]) -> list[list[_Group]]:
    """The groups in parts that each fit into one append: a batch of small facts may end with a large world."""
    parts: list[list[_Group]] = []
    filled = 0
    for group in groups:
        if not parts or filled + group.size > GROUP_BYTES_MAX:
            parts.append([])
            filled = 0
        parts[-1].append(group)
        filled += group.size
    return parts


async def refold(log: AppendOnlyLog, until: Seq | None = None) -> JobState:
    """The state of a log, folded from its newest snapshot; see ``fold_guarded`` for events that cannot be folded."""
    state = (await recall(log, until)).state
    async for event in log.read(Seq(state.seq), until):
        fold_guarded(state, event)
    return state


def fold_guarded(state: JobState, event: Event) -> None:
    """Fold a recorded event; an event that cannot be folded poisons the state instead of ending the master.

    Events after it are counted and not interpreted. So the log can still be appended to (by an operator's request or a
    newer master), and a restarted master does not fail at the same event again.

    Raises:
        UnknownEvent: the event is newer than this code and must not be skipped; this process must not decide.
    """
    try:
        fold(state, event)
    except UnknownEvent:
        raise
    except Exception as error:
        logger.exception("a recorded event cannot be folded; the job is stuck", seq=event.seq, type=event.type)
        state.phase = JobPhase.STUCK
        state.log.poisoned = f"event {event.seq} ({event.type}): {type(error).__name__}: {error}"[:500]
        fold(state, event)
