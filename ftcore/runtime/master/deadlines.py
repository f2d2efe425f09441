"""Turns deadlines of the folded state into facts when they have passed.

A deadline that passes while the log cannot be written, or this process does not run, has been missed by nobody: what
was decided is not ordered yet, what was answered is not read yet. So what passed is looked at once more when its turn
in the queue comes, and behind such a time everybody has grace; see ``engine/master.py``, ``due``.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ftcore.engine.master import due
from ftcore.engine.turn import own_fact
from ftcore.events.deadline import DeadlineExpired
from ftcore.ids import Nanoseconds, seconds
from ftcore.ports import Clock
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.states.fold import next_deadline

FROZEN_S = 1.0
"""A wait that lasts so much longer than asked for: this process did not run, and what was answered lies unread."""


class Deadlines:
    """The deadlines of one term.

    Args:
        sequencer: whose state has them, and who takes what has passed.
        clock: the master's.
        lease_s: the lease of nodes, as it is now.
    """

    def __init__(self, sequencer: Sequencer, clock: Clock, lease_s: Callable[[], float]) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._lease_s = lease_s
        self._since = clock.now()
        self._expiring: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Look at the deadlines when the first one passes, and whenever they changed; never ends by itself."""
        while True:
            self._changed.clear()
            left_s, now = self.expire(), self._clock.mono()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            if left_s is not None and self._clock.mono() - now > seconds(left_s + FROZEN_S):
                self._since = self._clock.now()

    def changed(self) -> None:
        """Something was committed, so there may be others."""
        self.expire()
        self._changed.set()

    def expire(self) -> float | None:
        """Turn the deadline that comes first into a fact if it has passed, where the state is the log's.

        Returns:
            Seconds until it passes; None: there is nothing to do before the next commit.
        """
        state = self._sequencer.state
        coming = next_deadline(state)
        if coming is None or coming in self._expiring or self._sequencer.ahead or state.poisoned:
            return None
        left = self._left(coming[1])
        if left > 0:
            return left / 1e9 + 0.001
        self._expiring.add(coming)
        expired = own_fact(DeadlineExpired(key=coming[0], due=coming[1]))
        told = self._sequencer.submit(expired, lambda: self._left(coming[1]) <= 0)
        told.add_done_callback(lambda _: self._looked_at(coming))
        return None

    def _looked_at(self, deadline: tuple[str, int]) -> None:
        self._expiring.discard(deadline)
        self._changed.set()  # it may have been dropped, and nothing been committed

    def _left(self, deadline: int) -> int:
        since = Nanoseconds(max(self._since, self._sequencer.resumed))
        return due(deadline, since, self._lease_s()) - self._clock.now()
