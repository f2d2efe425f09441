"""The log store: the port ``EventLog`` as processes meet it, over a network, and its leadership by lease.

The rules are those of the conformance suite: an append lands whole or not at all, only under the newest term, only at
the end, and the same one twice is once. What may go wrong is what went wrong with real stores: it does not answer, it
answers late, the answer is lost although the write landed, or the write lands after its sender has given it up.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from ftcore.errors import Conflict, Fenced, FtcoreError, LogFull, LogUnavailable
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.rules import truncated
from ftcore.ports import SNAPSHOTS_KEPT, Candidate, Floor, Leader, Snapshot, Space
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.network import Network

HOST = "@store"
"""The store's name in the network."""

JOB = JobName("job")

PATIENCE_S = 1.5
"""A request that was not answered by then has failed, as far as its sender knows."""


class Store:
    """One job's log.

    Args:
        clock: virtual time.
        net: how processes reach it.
        chance: where its troubles come from.
        lease_s: a leadership that was not renewed for this long is free.
        ambiguous: the share of requests whose answer is lost although they were carried out, or that land late.
    """

    def __init__(self, clock: Scheduler, net: Network, chance: random.Random, lease_s: float, ambiguous: float) -> None:
        self.clock, self.net, self.chance = clock, net, chance
        self.ambiguous = ambiguous
        self.slow = 1.0
        self.full = False
        self.used = 0
        self.down_until = 0
        self.bodies: list[bytes] = []
        self.events: list[Event] = []
        self.term = 0
        self.candidate: Candidate | None = None
        self.floor = Floor(seq=Seq(0), digest=GENESIS.hex())
        self.snapshots: list[Snapshot] = []
        self._digests = [GENESIS]
        self._lease = ns(lease_s)
        self._holder: object = None
        self._until = 0
        self._waiting: list[tuple[Process, asyncio.Event]] = []

    # -- as processes meet it

    def ask(
        self, asker: Process, work: Callable[[], Any], answer: Callable[[Any], None], *, reads: bool = False
    ) -> None:
        """Have some work done at the store; the answer is the result, or the error that was raised.

        Args:
            asker: who asks.
            work: what to do there.
            answer: told of what came of it.
            reads: it changes nothing, so that the store's client asks again by itself where an answer is lost.
        """
        settled = [False]

        def settle(result: Any) -> None:
            if not settled[0]:
                settled[0] = True
                answer(result)

        asker.after(ns(PATIENCE_S), lambda: settle(LogUnavailable("the store does not answer")))
        delay = ns(0.002 * self.slow) + self.net.delay()
        strange = not reads and self.chance.random() < self.ambiguous
        if strange and self.chance.random() < 0.3:
            delay += ns(self.chance.uniform(0.5, 3.0))
        self.clock.after(delay, lambda: self._serve(asker, work, settle, answered=not strange))

    def _serve(self, asker: Process, work: Callable[[], Any], settle: Callable[[Any], None], *, answered: bool) -> None:
        name = asker.host.name
        if self.clock.now < self.down_until or self.net.blocks(name, HOST):
            return
        try:
            result = work()
        except FtcoreError as error:
            result = error
        if answered and not self.net.blocks(HOST, name):
            asker.after(self.net.delay(), lambda: settle(result))

    def wake_for(self, process: Process, event: asyncio.Event) -> None:
        """Have an event of a process set when events were appended, or the leadership is free."""
        self._waiting.append((process, event))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for process, event in waiting:
            if not self.net.blocks(HOST, process.host.name):
                process.after(self.net.delay(), event.set)

    # -- the work itself

    def append(self, bodies: Sequence[bytes], term: int, expected: int) -> None:
        """See ``EventLog.append``."""
        self._check(term)
        last = len(self.bodies)
        if self.full:
            raise LogFull("no space")
        if last == expected:
            self.bodies += bodies
            self.events += map(decode, bodies)
            for body in bodies:
                self._digests.append(chain(self._digests[-1], body))
            self._wake()
        elif self.bodies[expected : expected + len(bodies)] != list(bodies):
            raise Conflict(f"the log ends at {last}, not at {expected}", last)

    def _check(self, term: int) -> None:
        if term < 1 or term != self.term:
            raise Fenced(f"term {term} may not write, the term is {self.term}")

    def read(self, after: int, until: int | None = None) -> list[Event]:
        """The events behind a seq."""
        return self.events[self._behind(after) : until]

    def stored(self, after: int, until: int) -> list[bytes]:
        """The same as they are stored."""
        return self.bodies[self._behind(after) : until]

    def _behind(self, after: int) -> int:
        if after < self.floor.seq:
            raise truncated(JOB, Seq(after), self.floor)
        return after

    def digest_at(self, seq: int) -> str:
        """See ``EventLog.digest_at``."""
        return self._digests[seq].hex() if self.floor.seq <= seq <= len(self.bodies) else ""

    def truncate(self, until: int, term: int, archive: str) -> Floor:
        """See ``EventLog.truncate``; checkers still see everything."""
        self._check(term)
        until = min(until, len(self.bodies) - 1)
        if until > self.floor.seq:
            self.floor = Floor(seq=Seq(until), digest=self._digests[until].hex(), archive=archive)
        return self.floor

    def save_snapshot(self, snapshot: Snapshot, term: int) -> None:
        """See ``EventLog.save_snapshot``."""
        self._check(term)
        if self.full:
            raise LogFull("no space")
        others = [kept for kept in self.snapshots if kept.seq != snapshot.seq]
        self.snapshots = sorted([*others, snapshot], key=lambda kept: kept.seq)[-SNAPSHOTS_KEPT:]

    def snapshot(self, until: int | None) -> Snapshot | None:
        """See ``EventLog.snapshot``."""
        return next((kept for kept in reversed(self.snapshots) if until is None or kept.seq <= until), None)

    def space(self) -> Space:
        """See ``EventLog.space``."""
        return Space(used=100 if self.full else self.used, limit=100, full=self.full)

    def acquire(self, holder: object, candidate: Candidate) -> int:
        """The term won; if somebody else leads, how many nanoseconds that lasts at least, as a negative number."""
        if self._holder is not holder:
            if self._holder is not None and self.clock.now < self._until:
                return self.clock.now - self._until
            self._holder = holder
            self.term += 1
            self.candidate = candidate
        self._until = self.clock.now + self._lease
        return self.term

    def renew(self, holder: object) -> bool:
        """Whether the leadership is still held; its lease begins anew."""
        if self._holder is not holder:
            return False
        self._until = self.clock.now + self._lease
        return True

    def resign(self, holder: object) -> None:
        """Free the leadership."""
        if self._holder is holder:
            self._holder = None
            self._wake()

    def leader(self) -> Leader | None:
        """See ``EventLog.leader``."""
        if self.candidate is None:
            return None
        alive = self._holder is not None and self.clock.now < self._until
        return Leader(term=Term(self.term), candidate=self.candidate, alive=alive)
