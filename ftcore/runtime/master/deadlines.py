"""Turns expired deadlines of the folded state into facts.

A deadline that expires while the log cannot be written, or while this process does not run, is not a missed deadline:
orders were not sent and answers were not read. So each expiry is checked again when its fact is sequenced, and all
deadlines are extended after such a period; see ``due`` in ``engine/master.py``.

A new master may not know how much time has passed since the newest event (``Follower.knows_clock``). It then grants
the deadlines of earlier terms the time that they had left at that event: they may expire late, never early.
"""

import asyncio
from collections.abc import Callable

from ftcore.engine.master import due
from ftcore.engine.turn import own_fact
from ftcore.events.deadline import DeadlineExpired
from ftcore.ids import Nanoseconds, seconds
from ftcore.ports import Clock
from ftcore.runtime import tasks
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.states import timers

FROZEN_S = 1.0
"""A wait that overruns by this much means that the process was frozen and answers are still unread."""


class Deadlines:
    """The deadlines of one term.

    Args:
        sequencer: has the state, and accepts the facts.
        clock: the master's clock.
        lease_s: returns the current lease of nodes, in seconds.
        trusted: the clock is known to agree with the clock of the deadlines that run.
    """

    def __init__(self, sequencer: Sequencer, clock: Clock, lease_s: Callable[[], float], *, trusted: bool) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._lease_s = lease_s
        self._grace_from = clock.now()
        self._inherited = {} if trusted else timers.all_due(sequencer.state)
        self._unknown_ns = self._grace_from - sequencer.state.time
        self._expiring: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Check the deadlines when the first one expires, and after every change; never returns."""
        while True:
            self._changed.clear()
            left_s, now = self.expire(), self._clock.mono()
            await tasks.wait_or_set(self._changed, left_s)
            if left_s is not None and self._clock.mono() - now > seconds(left_s + FROZEN_S):
                self._grace_from = self._clock.now()

    def changed(self) -> None:
        """Check the deadlines after a commit."""
        self.expire()
        self._changed.set()

    def expire(self) -> float | None:
        """Submit a fact if the next deadline has expired; only while the state is exactly that of the log.

        Returns:
            Seconds until the next deadline; None: nothing to do before the next commit.
        """
        state = self._sequencer.state
        running = timers.all_due(state)
        if not running or self._sequencer.ahead or state.log.poisoned:
            return None
        coming = min(running.items(), key=lambda timer: (self._extended(*timer), timer))
        if coming in self._expiring:
            return None
        left = self._remaining(*coming)
        if left > 0:
            return left / 1e9 + 0.001
        self._expiring.add(coming)
        expired = own_fact(DeadlineExpired(key=coming[0], due=coming[1]))
        submitted = self._sequencer.submit(expired, lambda: self._remaining(*coming) <= 0)
        submitted.add_done_callback(lambda _: self._expiry_handled(coming))
        return None

    def _expiry_handled(self, deadline: tuple[str, int]) -> None:
        self._expiring.discard(deadline)
        self._changed.set()  # a dropped fact causes no commit that would wake `run`

    def _extended(self, key: str, deadline: int) -> int:
        return deadline + self._unknown_ns if self._inherited.get(key) == deadline else deadline

    def _remaining(self, key: str, deadline: int) -> int:
        since = Nanoseconds(max(self._grace_from, self._sequencer.resumed))
        return due(self._extended(key, deadline), since, self._lease_s()) - self._clock.now()
