"""The sequencer: facts in, durable groups out. The one place in production that turns the wheel.

While one commit is under way facts queue up; when it returns, all that queued (up to a bound) becomes the next one. No
timer lingers. A store that is away or full stops nothing but this queue: the batch is tried again until it lands, its
facts stay unacknowledged with their agents, and nobody is told of its decisions.

A fact that cannot be folded (a bug, or a message nobody foresaw), or of which more follows than the log takes at once,
parks the job: the batch before it is appended, the state is folded again from the log, and ``job.parked`` keeps the
fact. Workers are left running.
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
from ftcore.ports import GROUP_BYTES_MAX, Clock, EventLog
from ftcore.states.fold import fold, is_duplicate
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall
from ftcore.version import __version__

BATCH_EVENTS_MAX = 1024
BATCH_BYTES_MAX = 256 << 10
"""A batch holds little more than this; more only makes the facts at its end wait longer for their acknowledgement. A
batch that one group makes larger than the log takes at once is appended in several parts, each of whole groups."""

RETRY_S = (0.05, 2.0)
"""First and longest pause before a batch is tried again."""

SLOW_S = 2.0
"""An append that takes longer was held up, whether its store says so or not: nobody was told of anything meanwhile."""

ERROR_CHARS_MAX = 500
FACT_CHARS_MAX = 16 << 10
"""What ``job.parked`` keeps of an error and of its fact: one that is too large for the log may not make this one so."""

T = TypeVar("T")

logger = structlog.get_logger()


@attrs.define
class _Entry:
    fact: Fact
    done: asyncio.Future[Seq]
    holds: Callable[[], bool]
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
    """What was taken off the queue at once; if there is a poison, it is the last entry's."""

    entries: list[_Entry] = attrs.field(factory=list)
    groups: list[_Group] = attrs.field(factory=list)
    poison: str = ""

    def cut(self, last: _Entry) -> list[_Entry]:
        """Cut off what came behind an entry."""
        place = next(at for at, entry in enumerate(self.entries) if entry is last) + 1
        rest, self.entries = self.entries[place:], self.entries[:place]
        last.seq = Seq(0)
        return rest


class Sequencer:
    """Sequences facts for one term.

    Args:
        log: the job's log.
        state: the folded state at the end of the log; owned by the sequencer from now on.
        term: the term won.
        clock: time for the events.
        committed: called with each durable batch, in order, the state being exactly that of the log then.

    ``stalled`` says that the log cannot be written now, ``resumed`` when it last could again, or an append came
    back that was held up (0: never).
    """

    def __init__(
        self,
        log: EventLog,
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

    def submit(self, fact: Fact, holds: Callable[[], bool] = lambda: True) -> asyncio.Future[Seq]:
        """Queue a fact.

        Args:
            fact: what was reported, or is stated by the master.
            holds: asked when its turn comes: whether it is still so. It may have stood in the queue for hours.

        Returns:
            A future that is done once the fact is durable (or was so before): its seq, 0 if it was in the log before or
            does not hold any more.
        """
        done: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
        self._queue.append(_Entry(fact, done, holds))
        self._wake.set()
        return done

    @property
    def ahead(self) -> bool:
        """A commit is under way: the state says what may never be in the log."""
        return self._committing

    async def run(self) -> None:
        """Sequence until the term is over.

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
        landed = Seq(self.state.seq)
        batch = self._next_batch()
        told: list[Event] = []
        parts = deque(_parts(batch.groups))
        while parts:
            part = parts.popleft()
            try:
                await self._append(part, landed)
            except ValueError as error:  # the store takes less than is agreed on
                if len(part) > 1:
                    parts.extendleft([group] for group in reversed(part))
                    continue
                self._queue.extendleft(reversed(batch.cut(part[0].entry)))
                batch.poison = f"the log refuses the {len(part[0].events)} events that follow from it: {error}"
                break
            told += [event for group in part for event in group.events]
            landed = told[-1].seq
        if batch.poison:
            await self._return_to(landed)
        self._committing = False
        if told:
            self._committed(told)
        if batch.poison:
            await self._park(batch.entries[-1].fact, batch.poison)
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
                    f"{entry.fact.type} and the {len(group.events) - 1} events that follow from it are {group.size} "
                    f"bytes; the log takes {GROUP_BYTES_MAX} at once"
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
        await self._patiently(lambda: self.log.append(events, term=self.term, expected_seq=expected))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the log until it answers."""
        pause_s, asked = RETRY_S[0], self.clock.mono()
        while True:
            try:
                answer = await ask()
                break
            except (LogUnavailable, LogFull) as error:
                if not self.stalled:
                    logger.warning("the log cannot be written; training goes on, facts wait", error=str(error))
                self.stalled = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
        if self.stalled or self.clock.mono() - asked > seconds(SLOW_S):
            self.resumed = self.clock.now()
        if self.stalled:
            logger.warning("the log can be written again")
            self.stalled = False
        return answer

    async def _return_to(self, seq: Seq) -> None:
        """Throw away a state that has run ahead for nothing: what comes next reads, tells and keeps the log's."""
        self.state = await self._patiently(lambda: refold(self.log, seq))

    async def _park(self, fact: Fact, why: str) -> None:
        parked = JobParked(
            error=why[:ERROR_CHARS_MAX], fact=encode_fact(fact).decode()[:FACT_CHARS_MAX], version=__version__
        )
        landed = Seq(self.state.seq)
        self._committing = True
        events = self._turn(own_fact(parked))
        await self._patiently(lambda: self.log.append(events, term=self.term, expected_seq=landed))
        self._committing = False
        self._committed(events)


def _parts(groups: list[_Group]) -> list[list[_Group]]:
    """The groups in portions that the log takes at once: a large world may come behind many small facts."""
    parts: list[list[_Group]] = []
    filled = 0
    for group in groups:
        if not parts or filled + group.size > GROUP_BYTES_MAX:
            parts.append([])
            filled = 0
        parts[-1].append(group)
        filled += group.size
    return parts


async def refold(log: EventLog, until: Seq | None = None) -> JobState:
    """The state of a log, folded from its newest snapshot; see ``take_in`` for events that cannot be folded."""
    state = (await recall(log, until)).state
    async for event in log.read(Seq(state.seq), until):
        take_in(state, event)
    return state


def take_in(state: JobState, event: Event) -> None:
    """Fold a recorded event under guard.

    A recorded event that this code cannot fold poisons the state: what follows is only counted, never interpreted, so
    that the log can be appended to (an operator's word, a newer master) and no master dies of the same event again.

    Raises:
        UnknownEvent: the event is newer than this code and may not be skipped; nothing may be decided here.
    """
    try:
        fold(state, event)
    except UnknownEvent:
        raise
    except Exception as error:
        logger.exception("a recorded event cannot be folded; the job is stuck", seq=event.seq, type=event.type)
        state.phase = JobPhase.STUCK
        state.poisoned = f"event {event.seq} ({event.type}): {type(error).__name__}: {error}"[:500]
        fold(state, event)
