"""A candidate's view of the log: restored from a snapshot, and folded as events arrive.

House rule: a candidate campaigns only after it has replayed the log. So the winner can lead at once, and the length of
the log does not delay a failover.
"""

import asyncio

from ftcore.errors import Truncated
from ftcore.events.envelope import Event
from ftcore.ids import Seq, Term
from ftcore.ports import AppendOnlyLog, Host
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.master.alerts import Unsent
from ftcore.runtime.master.sequencer import fold_guarded
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended, has_left
from ftcore.states.snapshot import recall


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
        self.caught_up = asyncio.Event()
        self._ahead: int | None = None
        self._from_facts: tuple[Term, int] | None = None
        self._log = log
        self._saw_run = saw_run
        self._host = host

    @property
    def ahead(self) -> int | None:
        """Nanoseconds by which the log's clock is ahead of this boot's monotonic clock; None: unknown.

        The best estimate is from events that were received live. The fallback is from facts of the current run that
        were stamped on this boot, by the agent on the same host.
        """
        if self._ahead is None and self._from_facts is not None and not has_ended(self.state):
            return self._from_facts[1]
        return self._ahead

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
                        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)
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
        return True

    def _fold(self, event: Event) -> None:
        fold_guarded(self.state, event)
        self.unsent.feed(event)
        if event.at is not None and event.at.boot == self._host.boot != "":
            ahead = event.time - event.at.mono  # an upper bound: includes the fact's transmission time
            known = self._from_facts is not None and self._from_facts[0] == event.term
            best = min(ahead, self._from_facts[1]) if known and self._from_facts is not None else ahead
            self._from_facts = (event.term, best)
