"""The sequencer: facts in, durable groups out. The one place in production that turns the wheel.

While one commit is under way facts queue up; when it returns, all that queued (up to a bound) becomes the next one. No
timer lingers. A store that is away or full stops nothing but this queue: the batch is tried again until it lands, its
facts stay unacknowledged with their agents, and nobody is told of its decisions.

A fact that cannot be folded (a bug, or a message nobody foresaw) parks the job: the batch before it is committed, the
state is folded again from the log, and ``job.parked`` keeps the fact. Workers are left running.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import structlog

from ftcore import __version__
from ftcore.engine.decide import turn
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import LogFull, LogUnavailable, UnknownEvent
from ftcore.events.codec import encode, encode_fact
from ftcore.events.envelope import Event, Fact
from ftcore.events.job import JobParked
from ftcore.ids import Seq, Term
from ftcore.ports import GROUP_BYTES_MAX, Clock, EventLog
from ftcore.states.fold import fold, is_duplicate
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall

BATCH_EVENTS_MAX = 1024
BATCH_BYTES_MAX = 256 << 10
"""A batch holds little more than this; more only makes the facts at its end wait longer for their acknowledgement. A
batch that one group makes larger than the log takes at once is appended in several parts, each of whole groups."""

RETRY_S = (0.05, 2.0)
"""First and longest pause before a batch is tried again."""

logger = structlog.get_logger()


@attrs.define
class _Entry:
    fact: Fact
    done: asyncio.Future[Seq]
    seq: Seq = Seq(0)


class Sequencer:
    """Sequences facts for one term.

    Args:
        log: the job's log.
        state: the folded state at the end of the log; owned by the sequencer from now on.
        term: the term won.
        clock: time for the events.
        committed: called with each durable batch, in order, the state being exactly that of the log then.
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
        self._committed = committed
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._committing = False

    def submit(self, fact: Fact) -> asyncio.Future[Seq]:
        """Queue a fact.

        Returns:
            A future that is done once the fact is durable (or was so before): its seq, 0 if it was in the log before.
        """
        done: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
        self._queue.append(_Entry(fact, done))
        self._wake.set()
        return done

    @property
    def busy(self) -> bool:
        """Facts wait, or the state runs ahead of the log because a commit is under way."""
        return self._committing or bool(self._queue)

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
        batch: list[Event] = []
        parts: list[list[Event]] = [[]]
        entries: list[_Entry] = []
        expected = Seq(self.state.seq)
        size = filled = 0
        poison: tuple[Fact, Exception] | None = None
        while self._queue and len(batch) < BATCH_EVENTS_MAX and size < BATCH_BYTES_MAX:
            entry = self._queue.popleft()
            entries.append(entry)
            if is_duplicate(self.state, *entry.fact.id):
                continue
            try:
                group = self._turn(entry.fact)
            except UnknownEvent:
                raise
            except Exception as error:
                logger.exception("a fact cannot be folded", fact=entry.fact.type, job=self.log.job)
                poison = (entry.fact, error)
                break
            entry.seq = Seq(group[0].seq)
            batch += group
            weight = sum(len(encode(event)) for event in group)
            size += weight
            if filled and filled + weight > GROUP_BYTES_MAX:  # a large world behind many small facts
                parts.append([])
                filled = 0
            parts[-1] += group
            filled += weight
        if batch:
            await self._append(parts, expected)
        self._committing = False
        if poison is not None:
            await self._park(*poison)
        for entry in entries:
            if not entry.done.done():
                entry.done.set_result(entry.seq)

    def _turn(self, fact: Fact) -> list[Event]:
        return turn(self.state, sequence(self.state, fact, now=self.clock.now(), term=self.term))

    async def _append(self, parts: list[list[Event]], expected: Seq) -> None:
        for part in parts:
            await self._append_part(part, expected)
            expected = part[-1].seq
        self._committing = False
        self._committed([event for part in parts for event in part])

    async def _append_part(self, part: list[Event], expected: Seq) -> None:
        pause_s = RETRY_S[0]
        while True:
            try:
                await self.log.append(part, term=self.term, expected_seq=expected)
                break
            except (LogUnavailable, LogFull) as error:
                if not self.stalled:
                    logger.warning("the log cannot be written; training goes on, facts wait", error=str(error))
                self.stalled = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
        if self.stalled:
            logger.warning("the log can be written again", seq=part[-1].seq)
            self.stalled = False

    async def _park(self, fact: Fact, error: Exception) -> None:
        self.state = await refold(self.log)
        parked = JobParked(
            error=f"{type(error).__name__}: {error}"[:500],
            fact=encode_fact(fact).decode(),
            version=__version__,
        )
        expected = Seq(self.state.seq)
        await self._append([self._turn(own_fact(parked))], expected)


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
