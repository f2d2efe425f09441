"""Who leads, by etcd: campaigns for the key ``leader``, and holding it.

A leader that dies keeps the key until its lease lapses. A candidate that was in touch with it is told of its death by
the kernel (``departed``) and takes the key away at once. That is safe even if the old leader should live: its term
fences whatever it writes. A frozen leader, or one behind a dead wire, is waited for until its lease is over.
"""

import asyncio
from contextlib import suppress

import msgspec

from ftcore.errors import LogFull, LogUnavailable, NotFound, StoreError
from ftcore.etcd3 import (
    Client,
    Compacted,
    Compare,
    DeleteRange,
    KeyValue,
    LeaseKeeper,
    Put,
    Range,
    Target,
    Txn,
    Watch,
    WatchOpen,
    now_s,
    whole_ttl,
)
from ftcore.ids import Term
from ftcore.logs.departed import departed
from ftcore.logs.etcd_layout import Keys, name
from ftcore.ports import Candidate
from ftcore.timing import Timing

_PAUSE_S = 0.1
"""After a break, before the next try."""


class EtcdLeadership:
    """A term won in etcd; see ``ports.Leadership``."""

    def __init__(self, client: Client, term: Term, lease: int) -> None:
        self._client = client
        self._term = term
        self._lease = lease
        self._keeper: LeaseKeeper | None = None
        self._over = asyncio.Event()
        self._reason = ""

    @property
    def term(self) -> Term:
        """See ``ports.Leadership.term``."""
        return self._term

    def keep(self, keeper: LeaseKeeper) -> None:
        """Start the thread that renews the lease."""
        self._keeper = keeper
        keeper.start()

    def end(self, reason: str) -> None:
        """It is over."""
        if not self._over.is_set():
            self._reason = reason
            self._over.set()

    async def lost(self) -> str:
        """See ``ports.Leadership.lost``."""
        await self._over.wait()
        return self._reason

    async def resign(self) -> None:
        """See ``ports.Leadership.resign``. If etcd does not answer, the lease lapses by itself."""
        await self.abandon("resigned")
        with suppress(NotFound, LogUnavailable):
            await self._client.lease_revoke(self._lease)

    async def abandon(self, reason: str) -> None:
        """Renew no more and let the lease lapse."""
        self.end(reason)
        if self._keeper is not None:
            await self._keeper.stop()


class Seat:
    """The one place that leads, and how to come by it.

    Args:
        client: the cluster.
        keys: the job's keys.
        timing: lease and renewal.
    """

    def __init__(self, client: Client, keys: Keys, timing: Timing) -> None:
        self._client = client
        self._keys = keys
        self._timing = timing

    async def campaign(self, candidate: Candidate) -> EtcdLeadership:
        """Wait until it is won; while etcd is away or full, too. Cancel to give up."""
        value = msgspec.json.encode({"host": candidate.host, "pid": candidate.pid, "address": candidate.address})
        while True:
            with suppress(LogUnavailable, LogFull, NotFound):
                await self._vacant()
                leadership = await self._elect(value)
                if leadership is not None:
                    return leadership
            await asyncio.sleep(_PAUSE_S)

    async def _vacant(self) -> None:
        """Wait until the seat was seen to be empty; only reads while it is not, so that standbys write nothing."""
        while True:
            found = await self._client.range(Range(self._keys.leader))
            if found.first is None:
                return
            await self._wait(found.first, found.revision)

    async def _wait(self, seated: KeyValue, revision: int) -> None:
        """Wait until the seat is left, its leader's process is known to be gone, or it is worth another look."""
        watch = await self._client.watch(WatchOpen(key=self._keys.leader, start_revision=revision + 1, puts=False))
        gone = asyncio.create_task(departed(decode_candidate(seated).address))
        look = asyncio.create_task(self._watch_end(watch))
        try:
            await asyncio.wait({gone, look}, return_when=asyncio.FIRST_COMPLETED)
            if look.done():
                look.result()
            else:
                await self._unseat(Term(seated.create_revision))
        finally:
            for task in (gone, look):
                task.cancel()
            await asyncio.gather(gone, look, return_exceptions=True)
            watch.cancel()

    async def _watch_end(self, watch: Watch) -> None:
        with suppress(Compacted):
            while True:
                batch = await watch.read(self._timing.master_lease_s)
                if batch is None or batch.events:
                    return

    async def _unseat(self, term: Term) -> None:
        """Take the seat from a leader whose process is gone: safe even if it were not, its term fences it."""
        leader = self._keys.leader
        seated = Compare(leader, Target.CREATE, term)
        await self._client.txn(Txn(compare=(seated,), success=(DeleteRange(leader),)))

    async def _elect(self, value: bytes) -> EtcdLeadership | None:
        """Try to become leader once. A lease that is not used lapses, and with it a late transaction's leader key."""
        asked = now_s()
        lease = await self._client.lease_grant(whole_ttl(self._timing.master_lease_s))
        leader, last = self._keys.leader, self._keys.last
        txn = Txn(
            compare=(Compare(leader, Target.CREATE, 0),),
            success=(Put(leader, value, lease.id), Put(last, value)),
        )
        try:
            answer = await self._client.txn(txn)
            term = answer.revision if answer.succeeded else 0
        except LogUnavailable:
            found = (await self._client.range(Range(leader))).first
            term = found.create_revision if found is not None and found.lease == lease.id else 0
        if not term:
            await self._client.lease_revoke(lease.id)
            return None
        leadership = EtcdLeadership(self._client, Term(term), lease.id)
        leadership.keep(
            LeaseKeeper(
                self._client.config,
                lease,
                asked_s=asked,
                renew_s=self._timing.master_renew_s,
                key=leader,
                endpoint=self._client.endpoint,
                on_lost=leadership.end,
            )
        )
        return leadership


def decode_candidate(found: KeyValue) -> Candidate:
    """What a candidate wrote of itself.

    Raises:
        StoreError: somebody else wrote it.
    """
    try:
        return msgspec.convert(msgspec.json.decode(found.value), Candidate)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{name(found.key)} is no record of a leader: {error}") from error
