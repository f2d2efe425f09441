"""A candidate's view of the log: restored from a snapshot, and folded as events arrive.

House rule: a candidate campaigns only after it has replayed the log. So the winner can lead at once, and the length of
the log does not delay a failover.
"""

import asyncio
from collections.abc import Sequence

import structlog

from ftcore.errors import Truncated
from ftcore.events.envelope import Event
from ftcore.faults.failure_notes import FailureNotes, FirstFailure
from ftcore.ids import Seq
from ftcore.ports import AppendOnlyLog, Host
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.master.alerts import Unsent
from ftcore.runtime.master.sequencer import fold_guarded
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended, has_left
from ftcore.states.snapshot import recall

logger = structlog.get_logger()


class Follower:
    """Folds a log while another master leads, and up to its end once the role is won.

    Args:
        log: the job's log.
        saw_run: the current run is known to have begun; see ``follow``.
        host: the machine of this process.

    Attributes:
        state: the state folded so far.
        unsent: alerts that no master has sent yet.
        caught_up: set once all events from before ``follow`` are folded.
    """

    def __init__(self, log: AppendOnlyLog, *, saw_run: bool, host: Host = THIS_HOST) -> None:
        self.state = JobState()
        self.unsent = Unsent()
        self._failures = FailureNotes()
        self.caught_up = asyncio.Event()
        self._live: tuple[int, int] | None = None
        self._from_facts: tuple[int, int] | None = None
        self._log = log
        self._saw_run = saw_run
        self._host = host

    @property
    def ahead(self) -> int | None:
        """Nanoseconds by which the log's clock is ahead of this boot's monotonic clock; None: unknown.

        Each term has a clock of its own, so only its own events prove it. Events that were received live do
        (``knows_clock``). Otherwise the clock of the last term that was followed, or the wall clock, is used if it is
        possible: not before the newest event, and not after the time of any fact that was stamped on this boot, by the
        agent on the same host. If it is impossible, it is wrong, and the bound from the facts is used. A fact may have
        waited in the agent's outbox until there was a master, so this bound may be too late by minutes: ``Deadlines``
        extends the deadlines of earlier terms accordingly.
        """
        live = self._live[1] if self._live is not None else None
        if self.knows_clock:
            return live
        latest = self._of_newest_term(self._from_facts)
        if latest is None or has_ended(self.state):
            return live
        mono = self._host.mono()
        likely = live if live is not None else self._host.wall() - mono
        return likely if self.state.time - mono <= likely <= latest else latest

    @property
    def knows_clock(self) -> bool:
        """Whether ``ahead`` was measured with an event of the newest term, when it was appended."""
        return self._of_newest_term(self._live) is not None

    def _of_newest_term(self, found: tuple[int, int] | None) -> int | None:
        return found[1] if found is not None and found[0] == self.state.term else None

    async def follow(self) -> None:
        """Fold events as they arrive; returns when the job has ended and all its nodes have left.

        If the run had ended before this process started, only a standby returns: others may begin a new run.

        Raises:
            Truncated: the next event was truncated, and neither a snapshot nor an archive covers it.
        """
        begun = await self._log.last_seq()
        await self._restore()
        while True:
            if self._is_over(begun):
                return
            try:
                async for event in self._log.follow(Seq(self.state.seq)):
                    self._fold(event)
                    if self.caught_up.is_set():
                        ahead = event.time - self._host.mono()  # a lower bound: the event is slightly older
                        known = self._of_newest_term(self._live)
                        self._live = (event.term, ahead if known is None else max(known, ahead))
                    if self._is_over(begun):
                        return
            except Truncated:
                if not await self._restore():
                    raise

    async def finish(self) -> None:
        """Fold up to the current end of the log; raises as ``follow`` does."""
        while True:
            try:
                async for event in self._log.read(Seq(self.state.seq)):
                    self._fold(event)
                return
            except Truncated:
                if not await self._restore():
                    raise

    def run_has_ended(self) -> bool:
        """Whether a run that was seen alive has ended and its nodes have left."""
        return self._saw_run and has_left(self.state)

    def note_failures(self, events: Sequence[Event], state: JobState) -> None:
        """Keep the failures in durable events for the alerts about them; no error in this may end the master.

        Args:
            events: in order.
            state: the state after the last of them.
        """
        try:
            self._failures.feed(events, state)
        except Exception as error:
            logger.exception("cannot note a failure for alerts", error=str(error))

    def first_failure(self, incident: str | None) -> FirstFailure | None:
        """What failed first in an incident, if it is known; see ``FailureNotes.of``."""
        try:
            return self._failures.of(incident, self._log.job)
        except Exception as error:
            logger.exception("cannot describe a failure in an alert", error=str(error))
            return None

    def _is_over(self, begun: int) -> bool:
        if self.state.seq < begun:
            return False
        self.caught_up.set()
        if self.state.seq == 0:
            return False
        if self.run_has_ended():
            return True
        self._saw_run = self._saw_run or not has_left(self.state)
        return False

    async def _restore(self) -> bool:
        """Continue from the newest snapshot; returns whether it is newer than the state."""
        restored = await recall(self._log)
        if restored.state.seq <= self.state.seq:
            return False
        self.state = restored.state
        for event in restored.tail:
            self.unsent.feed(event)
        self.note_failures(restored.tail, self.state)
        return True

    def _fold(self, event: Event) -> None:
        fold_guarded(self.state, event)
        self.unsent.feed(event)
        self.note_failures((event,), self.state)
        if event.at is not None and event.at.boot == self._host.boot != "":
            ahead = event.time - event.at.mono  # an upper bound: includes the time from the fact to its sequencing
            known = self._of_newest_term(self._from_facts)
            self._from_facts = (event.term, ahead if known is None else min(known, ahead))
