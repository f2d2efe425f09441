"""Simulated store of the event log: the contents of the in-memory log, behind a network, with leases.

It has the faults of real stores: no answer, a late answer, a lost answer to an applied write, a write that is applied
after its sender has timed out, no space.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ftcore.errors import FtcoreError, LogFull, LogUnavailable
from ftcore.events.codec import decode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.contents import LogContents
from ftcore.ports import Candidate, Leader, Snapshot, Space
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.network import Network

HOST = "@store"
"""The store's name in the network."""

JOB = JobName("job")

PATIENCE_NS = ns(1.5)
"""Timeout of a request for its sender."""


class Store:
    """One job's log.

    Args:
        clock: virtual time.
        net: the network.
        chance: random generator of faults.
        lease_s: lease of a leadership in seconds.
        ambiguous: share of requests that are applied late or whose answer is lost.

    Attributes:
        events, bodies: all events ever appended, decoded and encoded; unaffected by truncation.
    """

    def __init__(self, clock: Scheduler, net: Network, chance: random.Random, lease_s: float, ambiguous: float) -> None:
        self.clock, self.net, self.chance = clock, net, chance
        self.ambiguous = ambiguous
        self.slow = 1.0
        self.full = False
        self.used = 0
        self.down_until = 0
        self.contents = LogContents(JOB)
        self.events: list[Event] = []
        self.bodies: list[bytes] = []
        self._lease = ns(lease_s)
        self._holder: object = None
        self._until = 0
        self._waiting: list[tuple[Process, asyncio.Event]] = []

    # -- requests of processes

    def ask(
        self, asker: Process, work: Callable[[], Any], answer: Callable[[Any], None], *, reads: bool = False
    ) -> None:
        """Execute work at the store; the answer is its result, or the error that it raised.

        Args:
            asker: the requesting process.
            work: the work.
            answer: called with the answer.
            reads: the work is read-only, so the client retries after a lost answer.
        """
        settled = False

        def settle(result: Any) -> None:
            nonlocal settled
            if not settled:
                settled = True
                answer(result)

        def give_up() -> None:
            if not settled:
                settle(LogUnavailable("the store does not answer"))

        asker.after(PATIENCE_NS, give_up)
        delay = ns(0.002 * self.slow) + self.net.delay()
        strange = not reads and self.chance.random() < self.ambiguous
        if strange and self.chance.random() < 0.3:
            delay += ns(self.chance.uniform(0.5, 3.0))
        self.clock.after(delay, partial(self._serve, asker, work, settle, not strange))

    def _serve(self, asker: Process, work: Callable[[], Any], settle: Callable[[Any], None], answered: bool) -> None:
        name = asker.host.name
        if self.clock.now < self.down_until or self.net.blocks(name, HOST):
            return
        try:
            result = work()
        except FtcoreError as error:
            result = error
        if answered and not self.net.blocks(HOST, name):
            asker.after(self.net.delay(), partial(settle, result))

    def wake_for(self, process: Process, event: asyncio.Event) -> None:
        """Set an event of a process when events are appended or the leadership becomes free."""
        self._waiting.append((process, event))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for process, event in waiting:
            if not self.net.blocks(HOST, process.host.name):
                process.after(self.net.delay(), event.set)

    # -- operations

    def append(self, bodies: Sequence[bytes], term: Term, expected: Seq) -> None:
        """See ``EventLog.append``."""
        if self.full and term == self.contents.term:
            raise LogFull("no space")
        if self.contents.append(bodies, term, expected):
            self.bodies += bodies
            self.events += map(decode, bodies)
            self._wake()

    def read(self, after: Seq, until: Seq | None = None) -> list[Event]:
        """See ``EventLog.read``."""
        self.contents.part(after, until)  # raises if they were truncated
        return self.events[after:until]

    def save_snapshot(self, snapshot: Snapshot, term: Term) -> None:
        """See ``EventLog.save_snapshot``."""
        if self.full and term == self.contents.term:
            raise LogFull("no space")
        self.contents.save_snapshot(snapshot, term)

    def space(self) -> Space:
        """See ``EventLog.space``."""
        return Space(used=100 if self.full else self.used, limit=100, full=self.full)

    def acquire(self, holder: object, candidate: Candidate) -> int:
        """The won term; if another process leads, the remaining nanoseconds of its lease as a negative number."""
        if self._holder is not holder:
            if self._holder is not None and self.clock.now < self._until:
                return self.clock.now - self._until
            self._holder = holder
            self.contents.begin_term(candidate)
        self._until = self.clock.now + self._lease
        return self.contents.term

    def renew(self, holder: object) -> bool:
        """Renew the lease; returns whether the leadership is still held."""
        if self._holder is not holder:
            return False
        self._until = self.clock.now + self._lease
        return True

    def resign(self, holder: object) -> None:
        """Release the leadership."""
        if self._holder is holder:
            self._holder = None
            self._wake()

    def leader(self) -> Leader | None:
        """See ``EventLog.leader``."""
        if self.contents.candidate is None:
            return None
        alive = self._holder is not None and self.clock.now < self._until
        return Leader(term=self.contents.term, candidate=self.contents.candidate, alive=alive)
