"""Client of the simulated store: the port ``EventLog`` for one process, over the network."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from ftcore.errors import Unreachable
from ftcore.events.codec import chain
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.rules import encode_group, one_by_one
from ftcore.ports import Candidate, Floor, Leader, Snapshot, Space
from ftcore.runtime import tasks
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.hosts import Process, settle
from ftcore.sim.protocol.store import JOB, Store

FOLLOW_S = 2.0
"""Mean seconds for which a follower waits for a notification before it polls."""

CAMPAIGN_S = 0.3
"""Seconds before a retry after the store did not answer."""

Written = Callable[[Sequence[Event]], bool]
"""Called before or after a batch is written; returns whether the process survives."""


class SimLog:
    """One process's handle on the log; see ``ports.EventLog``.

    Args:
        store: the store.
        process: the process.
        chance: random generator of poll times.
        lease_s, renew_s: lease of a leadership, and interval of its renewals.
        writes, wrote: called before a batch is sent, and after its acknowledgement.
    """

    def __init__(
        self,
        store: Store,
        process: Process,
        chance: random.Random,
        *,
        lease_s: float,
        renew_s: float,
        writes: Written = lambda batch: True,
        wrote: Written = lambda batch: True,
    ) -> None:
        self._store, self._process, self._chance = store, process, chance
        self._lease_s, self._renew_s = lease_s, renew_s
        self._writes, self._wrote = writes, wrote
        self._asked: tuple[Seq, int] = (Seq(0), 0)

    @property
    def job(self) -> JobName:
        """See ``ports.EventLog``."""
        return JOB

    async def _ask(self, work: Callable[[], Any], *, reads: bool = False) -> Any:
        answered: asyncio.Future[Any] = self._process.loop.create_future()
        self._store.ask(self._process, work, partial(settle, answered), reads=reads)
        came = await answered
        if isinstance(came, Exception):
            raise came
        return came

    async def _dies(self) -> None:
        """Kill the process here."""
        self._process.kill()
        await self._process.loop.create_future()

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """See ``ports.EventLog``."""
        bodies = encode_group(events, expected_seq)
        if self._asked != (expected_seq, len(bodies)):  # not a retry
            self._asked = (expected_seq, len(bodies))
            if not self._writes(events):
                await self._dies()
        await self._ask(lambda: self._store.append(bodies, term, expected_seq))
        if not self._wrote(events):
            await self._dies()

    async def last_seq(self) -> Seq:
        """See ``ports.EventLog``."""
        last: Seq = await self._ask(lambda: self._store.contents.last, reads=True)
        return last

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """See ``ports.EventLog``."""
        return one_by_one(self.read_batches(after, until))

    async def read_batches(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[list[Event]]:
        """See ``ports.EventLog``."""
        events = await self._ask(lambda: self._store.read(after, until), reads=True)
        if events:
            yield events

    async def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """See ``ports.EventLog``."""
        while True:
            try:
                for event in await self._ask(partial(self._store.read, after), reads=True):
                    after = event.seq
                    yield event
            except Unreachable:
                await asyncio.sleep(CAMPAIGN_S)
                continue
            if after >= self._store.contents.last:
                await self._woken(self._store.wake_at_append, FOLLOW_S * self._chance.uniform(0.2, 2.0))

    async def _woken(self, subscribe: Callable[[Process, asyncio.Event], None], timeout_s: float) -> None:
        """Wait for a notification of the store."""
        event = asyncio.Event()
        subscribe(self._process, event)
        await tasks.wait_or_set(event, timeout_s)

    async def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """See ``ports.EventLog``."""
        yield await self._ask(lambda: self._store.contents.part(after, until), reads=True)

    async def floor(self) -> Floor:
        """See ``ports.EventLog``."""
        floor: Floor = await self._ask(lambda: self._store.contents.floor, reads=True)
        return floor

    async def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog``."""
        return str(await self._ask(lambda: self._store.contents.digest_at(seq), reads=True))

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog``."""
        floor: Floor = await self._ask(lambda: self._store.contents.truncate(until, term, archive))
        return floor

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """See ``ports.EventLog``."""
        await self._ask(lambda: self._store.save_snapshot(snapshot, term))

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """See ``ports.EventLog``."""
        found: Snapshot | None = await self._ask(lambda: self._store.contents.snapshot(until), reads=True)
        return found

    async def reclaim(self) -> None:
        """See ``ports.EventLog``."""

    async def space(self) -> Space | None:
        """See ``ports.EventLog``."""
        space: Space = await self._ask(self._store.space, reads=True)
        return space

    async def campaign(self, candidate: Candidate) -> "SimLeadership":
        """See ``ports.EventLog``."""
        holder = object()
        while True:
            asked = self._process.clock.now
            try:
                term = await self._ask(lambda: self._store.acquire(holder, candidate))
            except Unreachable:
                await asyncio.sleep(CAMPAIGN_S)
                continue
            if term > 0:
                return SimLeadership(
                    self._store, self._process, holder, Term(term), asked, self._lease_s, self._renew_s
                )
            await self._woken(self._store.wake_when_free, -term / 1e9 + CAMPAIGN_S * self._chance.random())

    async def leader(self) -> Leader | None:
        """See ``ports.EventLog``."""
        found: Leader | None = await self._ask(self._store.leader, reads=True)
        return found

    async def close(self) -> None:
        """See ``ports.EventLog``."""


class SimLeadership:
    """A won term; see ``ports.Leadership``. Renewed independently of the process's event loop.

    Args:
        store: the store.
        process: the leader's process.
        holder: the leader's token at the store.
        term: the term.
        asked: when the term was requested.
        lease_s, renew_s: as for ``SimLog``.
    """

    def __init__(
        self, store: Store, process: Process, holder: object, term: Term, asked: int, lease_s: float, renew_s: float
    ) -> None:
        self.term = term
        self._store, self._process, self._holder = store, process, holder
        self._lease, self._every = ns(lease_s), ns(renew_s)
        self._renewed = asked
        self._lost: asyncio.Future[str] = process.loop.create_future()
        process.after(self._every, self._renew)

    async def lost(self) -> str:
        """See ``ports.Leadership``."""
        return await asyncio.shield(self._lost)

    async def resign(self) -> None:
        """See ``ports.Leadership``."""
        self._lose("resigned")
        self._store.ask(self._process, lambda: self._store.resign(self._holder), lambda came: None)

    def _lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)

    def _renew(self) -> None:
        if self._lost.done():
            return
        asked = self._process.clock.now
        if asked - self._renewed >= self._lease:
            self._lose("the lease was not renewed in time")
            return

        def renewed(came: Any) -> None:
            if came is False:
                self._lose("another process leads")
            elif came is True:
                self._renewed = max(self._renewed, asked)

        self._store.ask(self._process, lambda: self._store.renew(self._holder), renewed)
        self._process.after(self._every, self._renew)


class SimArchive:
    """An archive on a separate disk, which survives all crashes; see ``ports.Archive``."""

    where = "simulated"

    def __init__(self) -> None:
        self._pieces: dict[int, tuple[int, str, tuple[bytes, ...]]] = {}
        self.broken = False

    @property
    def bodies(self) -> list[bytes]:
        """All archived events, up to the first gap."""
        found: list[bytes] = []
        begins = {after: bodies for after, _, bodies in self._pieces.values()}
        while len(found) in begins:
            found += begins[len(found)]
        return found

    def _check(self) -> None:
        if self.broken:
            raise Unreachable("simulated: the archive is unreachable")

    def prepare(self, make: bool) -> None:
        """See ``ports.Archive``."""
        self._check()

    def reaches(self, seq: Seq) -> Seq | None:
        """See ``ports.Archive``."""
        self._check()
        return next((Seq(last) for last, (after, _, _) in self._pieces.items() if after < seq <= last), None)

    def digest_at(self, last: Seq) -> str:
        """See ``ports.Archive``."""
        return self._pieces[last][1]

    def add(self, after: Seq, previous: bytes, bodies: Sequence[bytes]) -> None:
        """See ``ports.Archive``."""
        self._check()
        digest = previous
        for body in bodies:
            digest = chain(digest, body)
        self._pieces[after + len(bodies)] = (after, digest.hex(), tuple(bodies))
