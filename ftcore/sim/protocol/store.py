"""Simulated store of the event log: the contents of the in-memory log, behind a network, with leases.

It has the faults of real stores: no answer, a late answer, a lost answer to an applied write, a write that is applied
after its sender has timed out, no space.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

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


@attrs.define
class _Request:
    """A request to the store.

    Args:
        asker: the requesting process.
        work: the work.
        answer: called with the answer.
        gives_up_at: when the asker gives up, in nanoseconds.
        answered: whether the store answers if it is reachable.
    """

    asker: Process
    work: Callable[[], Any]
    answer: Callable[[Any], None]
    gives_up_at: int
    answered: bool = True
    _given_up: bool = False

    def give_up_in_time(self, clock: Scheduler) -> None:
        """No answer arrives in time: the asker gives up, once."""
        if not self._given_up:
            self._given_up = True
            delay = max(0, self.gives_up_at - clock.now)
            self.asker.after(delay, lambda: self.answer(LogUnavailable("the store does not answer")))


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
        self._followers: list[tuple[Process, asyncio.Event]] = []
        self._candidates: list[tuple[Process, asyncio.Event]] = []

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
        request = _Request(asker, work, answer, gives_up_at=self.clock.now + PATIENCE_NS)
        delay = ns(0.002 * self.slow) + self.net.delay()
        request.answered = reads or self.chance.random() >= self.ambiguous
        if not request.answered and self.chance.random() < 0.3:
            delay += ns(self.chance.uniform(0.5, 3.0))
        if delay >= PATIENCE_NS:
            request.give_up_in_time(self.clock)
        self.clock.after(delay, partial(self._serve, request))

    def _serve(self, request: "_Request") -> None:
        name = request.asker.host.name
        if self.clock.now < self.down_until or self.net.blocks(name, HOST):
            request.give_up_in_time(self.clock)
            return
        try:
            result = request.work()
        except FtcoreError as error:
            result = error
        delay = self.net.delay()
        if not request.answered or self.net.blocks(HOST, name) or self.clock.now + delay >= request.gives_up_at:
            request.give_up_in_time(self.clock)
        else:
            request.asker.after(delay, partial(request.answer, result))

    def wake_at_append(self, process: Process, event: asyncio.Event) -> None:
        """Set an event of a process when events are appended."""
        self._followers.append((process, event))

    def wake_when_free(self, process: Process, event: asyncio.Event) -> None:
        """Set an event of a process when the leadership becomes free."""
        self._candidates.append((process, event))

    def _wake(self, waiting: list[tuple[Process, asyncio.Event]]) -> None:
        for process, event in waiting:
            if not self.net.blocks(HOST, process.host.name):
                process.after(self.net.delay(), event.set)
        waiting.clear()

    # -- operations

    def append(self, bodies: Sequence[bytes], term: Term, expected: Seq) -> None:
        """See ``EventLog.append``."""
        if self.full and term == self.contents.term:
            raise LogFull("no space")
        if self.contents.append(bodies, term, expected):
            self.bodies += bodies
            self.events += map(decode, bodies)
            self._wake(self._followers)

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
            self._wake(self._candidates)

    def leader(self) -> Leader | None:
        """See ``EventLog.leader``."""
        if self.contents.candidate is None:
            return None
        alive = self._holder is not None and self.clock.now < self._until
        return Leader(term=self.contents.term, candidate=self.contents.candidate, alive=alive)
