"""Leader election in etcd: campaigns for the key ``leader``, and keeping it.

The key of a dead leader stays until its lease expires. A candidate that detects the death of the leader's process
(``departed``) deletes the key at once. That is safe even if the detection is wrong: the old term is fenced. A frozen or
partitioned leader is replaced when its lease expires.
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
"""Seconds before a retry."""


class EtcdLeadership:
    """A term won in etcd; see ``ports.Leadership``."""

    def __init__(self, client: Client, term: Term, lease: int) -> None:
        self._client = client
        self._term = term
        self._lease = lease
        self._keeper: LeaseKeeper | None = None
        self._ended = asyncio.Event()
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
        """Mark the leadership as lost."""
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()

    async def lost(self) -> str:
        """See ``ports.Leadership.lost``."""
        await self._ended.wait()
        return self._reason

    async def resign(self) -> None:
        """See ``ports.Leadership.resign``. If etcd does not answer, the lease expires by itself."""
        await self.abandon("resigned")
        with suppress(NotFound, LogUnavailable):
            await self._client.lease_revoke(self._lease)

    async def abandon(self, reason: str) -> None:
        """Stop renewing, so that the lease expires."""
        self.end(reason)
        if self._keeper is not None:
            await self._keeper.stop()


class Election:
    """Leader election of one job.

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
        """Wait until the leadership is won, also while etcd is unreachable or full. Cancel to stop."""
        value = msgspec.json.encode({"host": candidate.host, "pid": candidate.pid, "address": candidate.address})
        while True:
            with suppress(LogUnavailable, LogFull, NotFound):
                await self._wait_for_vacancy()
                leadership = await self._elect(value)
                if leadership is not None:
                    return leadership
            await asyncio.sleep(_PAUSE_S)

    async def _wait_for_vacancy(self) -> None:
        """Wait until there is no leader. Only reads, so standbys write nothing."""
        while True:
            found = await self._client.range(Range(self._keys.leader))
            if found.first is None:
                return
            await self._wait_for_end(found.first, found.revision)

    async def _wait_for_end(self, leader: KeyValue, revision: int) -> None:
        """Wait until the leader's key or process has ended, or for one lease, after which the caller reads again."""
        watch = await self._client.watch(WatchOpen(key=self._keys.leader, start_revision=revision + 1, puts=False))
        ended = asyncio.create_task(departed(decode_candidate(leader).address))
        watched = asyncio.create_task(self._watch_key(watch))
        try:
            await asyncio.wait({ended, watched}, return_when=asyncio.FIRST_COMPLETED)
            if watched.done():
                watched.result()
            else:
                await self._remove(Term(leader.create_revision))
        finally:
            for task in (ended, watched):
                task.cancel()
            await asyncio.gather(ended, watched, return_exceptions=True)
            watch.cancel()

    async def _watch_key(self, watch: Watch) -> None:
        with suppress(Compacted):
            while True:
                batch = await watch.read(self._timing.master_lease_s)
                if batch is None or batch.events:
                    return

    async def _remove(self, term: Term) -> None:
        """Delete the key of a leader whose process has ended. If the process is alive after all, its term is fenced."""
        leader = self._keys.leader
        unchanged = Compare(leader, Target.CREATE, term)
        await self._client.txn(Txn(compare=(unchanged,), success=(DeleteRange(leader),)))

    async def _elect(self, value: bytes) -> EtcdLeadership | None:
        """Try once to become leader. An unused lease expires, and with it the leader key of a late transaction."""
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
    """The candidate stored under a key.

    Raises:
        StoreError: the value was not written by ftcore.
    """
    try:
        return msgspec.convert(msgspec.json.decode(found.value), Candidate)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{name(found.key)} is not a leader record: {error}") from error
