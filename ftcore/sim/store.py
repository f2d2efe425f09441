"""The log store: the port ``EventLog`` as processes meet it, over a network, and its leadership by lease.

The rules are those of the conformance suite: an append lands whole or not at all, only under the newest term, only at
the end, and the same one twice is once. What may go wrong is what went wrong with real stores: it does not answer, it
answers late, the answer is lost although the write landed, or the write lands after its sender has given it up.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from ftcore.errors import Conflict, Fenced, LogUnavailable
from ftcore.events.codec import decode, encode
from ftcore.events.envelope import Event
from ftcore.ports import Candidate
from ftcore.sim.clock import Scheduler, ns
from ftcore.sim.hosts import Process
from ftcore.sim.net import Network

HOST = "@store"
"""The store's name in the network."""

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
        self.down_until = 0
        self.bodies: list[bytes] = []
        self.events: list[Event] = []
        self.term = 0
        self.leader: Candidate | None = None
        self._lease = ns(lease_s)
        self._holder = ""
        self._until = 0

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
        except (Fenced, Conflict) as error:
            result = error
        if answered and not self.net.blocks(HOST, name):
            asker.after(self.net.delay(), lambda: settle(result))

    # -- the work itself

    def append(self, bodies: Sequence[bytes], term: int, expected: int) -> None:
        """See ``EventLog.append``."""
        if term < 1 or term != self.term:
            raise Fenced(f"term {term} may not append, the term is {self.term}")
        last = len(self.bodies)
        if last == expected:
            self.bodies += bodies
            self.events += map(decode, bodies)
        elif self.bodies[expected : expected + len(bodies)] != list(bodies):
            raise Conflict(f"the log ends at {last}, not at {expected}", last)

    def read(self, after: int) -> list[Event]:
        """The events behind a seq."""
        return self.events[after:]

    def acquire(self, holder: str, candidate: Candidate) -> int:
        """The term won, or 0 if somebody else leads."""
        if self._holder != holder:
            if self._holder and self.clock.now < self._until:
                return 0
            self._holder = holder
            self.term += 1
            self.leader = candidate
        self._until = self.clock.now + self._lease
        return self.term

    def renew(self, holder: str) -> bool:
        """Whether the leadership is still held; its lease begins anew."""
        if self._holder != holder:
            return False
        self._until = self.clock.now + self._lease
        return True

    def resign(self, holder: str) -> None:
        """Free the leadership."""
        if self._holder == holder:
            self._holder = ""

    def who_leads(self) -> tuple[Candidate | None, bool]:
        """The last leader, and whether it holds its lease."""
        return self.leader, bool(self._holder) and self.clock.now < self._until


def bodies_of(events: Sequence[Event]) -> list[bytes]:
    """The bytes of events, as a store keeps them."""
    return [encode(event) for event in events]
