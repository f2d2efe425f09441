"""A candidate's view of the log: restored from a snapshot, folded along, ready to lead from.

House rule: who has not folded what was there when it came does not campaign. So the role goes to who can lead at once,
and how long the log is matters to nobody who waits for a master.
"""

import asyncio

from ftcore.errors import Truncated
from ftcore.events.envelope import Event
from ftcore.ids import Seq, Term
from ftcore.ports import EventLog, Host
from ftcore.runtime.host import HERE
from ftcore.runtime.master.alerts import Unsent
from ftcore.runtime.master.sequencer import take_in
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended, has_left
from ftcore.states.snapshot import recall


class Follower:
    """Folds a log while another master leads, and up to its end once the role is won.

    Args:
        log: the job's log.
        saw_run: the run that is under way is known to have begun; see ``follow``.
        host: the machine that it is on.

    Attributes:
        state: what was folded by now.
        unsent: messages to people that nobody has sent by now.
        caught_up: what was there when ``follow`` began is folded.
    """

    def __init__(self, log: EventLog, *, saw_run: bool, host: Host = HERE) -> None:
        self.state = JobState()
        self.unsent = Unsent()
        self.caught_up = asyncio.Event()
        self._ahead: int | None = None
        self._told: tuple[Term, int] | None = None
        self._log = log
        self._saw_run = saw_run
        self._host = host

    @property
    def ahead(self) -> int | None:
        """Nanoseconds by which the log's clock is ahead of this boot's monotonic one; None: nothing has shown it.

        Events that were seen as they came show it best. Else facts of the run under way show it that tell of their time
        by this boot's clock: those of the agent beside it, which has put it up.
        """
        if self._ahead is None and self._told is not None and not has_ended(self.state):
            return self._told[1]
        return self._ahead

    async def follow(self) -> None:
        """Fold along; returns when the job has ended and its nodes have left, so nothing is left to lead.

        A log that had ended before this process came is no reason to go, but for a standby: a new run may be about to
        begin.

        Raises:
            Truncated: the log begins behind this place, and neither a snapshot nor an archive is of use here.
        """
        begun = await self._log.last_seq()
        await self._restore()
        while True:
            if self._is_over(begun):
                return
            try:
                async for event in self._log.follow(Seq(self.state.seq)):
                    self._take_in(event)
                    if self.caught_up.is_set():
                        ahead = event.time - self._host.mono()  # at least: the event is a little older
                        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)
                    if self._is_over(begun):
                        return
            except Truncated:
                if not await self._restore():
                    raise

    async def finish(self) -> None:
        """Fold what is there now; raises as ``follow`` does."""
        while True:
            try:
                async for event in self._log.read(Seq(self.state.seq)):
                    self._take_in(event)
                return
            except Truncated:
                if not await self._restore():
                    raise

    def run_has_ended(self) -> bool:
        """Whether the run that was seen living is over, and its nodes have left."""
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
        """Go on from the newest snapshot; returns whether that leads anywhere."""
        restored = await recall(self._log)
        if restored.state.seq <= self.state.seq:
            return False
        self.state = restored.state
        for event in restored.tail:
            self.unsent.feed(event)
        return True

    def _take_in(self, event: Event) -> None:
        take_in(self.state, event)
        self.unsent.feed(event)
        if event.at is not None and event.at.boot == self._host.boot != "":
            ahead = event.time - event.at.mono  # at most: the fact was under way a little
            again = self._told is not None and self._told[0] == event.term
            self._told = (event.term, min(ahead, self._told[1]) if again and self._told is not None else ahead)
