"""A log in etcd, kept small: snapshots, truncation, compaction, and how full the cluster is.

Keys, beside those of ``logs.etcd``:

| key | value | written by |
|---|---|---|
| ``snap/<seq, 16 hex digits>.<id>/<chunk>`` | a part of a snapshot | each snapshot, unfenced: nobody looks for it |
| ``snapm`` | which snapshots are whole: seq, id, number of chunks, digest | each snapshot |
| ``moved`` | where the events that are gone were archived | each truncation |

House rules:

- What changes what readers see is one transaction that compares ``leader`` with the term, as an append does. The same
  transaction removes what it supersedes, so a deposed master can remove nothing that its successor has written.
- Where the live log begins is read from its first segment, which knows the digest before it. So a truncation can be a
  deletion and nothing else: all that a full etcd takes.
- Compaction is the whole cluster's, and only drops what is ``LAG_S`` old, so that readers who work at one revision are
  hardly ever disturbed; if they are, they start over.
- To disarm the alarm of a full etcd, and to defragment it, stops every writer for a while: that is for people.
"""

import time
import uuid
from contextlib import suppress

import msgspec
import structlog

from ftcore.errors import Fenced, LogFull, StoreError
from ftcore.etcd3 import Client, Compacted, Compare, DeleteRange, Op, Put, Range, Target, Txn, prefix_end
from ftcore.events.codec import GENESIS, digest_of
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.etcd_layout import LAYOUT, Keys, name, parse_segment
from ftcore.ports import SNAPSHOTS_KEPT, Floor, Snapshot, Space

CHUNK_BYTES = 512 << 10
"""Of a snapshot, in one value: a third of what etcd takes."""

LAG_S = 300.0
"""Old versions live so long: Kubernetes' API server keeps them as long."""

COMPACT_REVISIONS = 100
"""Not worth a compaction below: an idle job writes nothing, and has nothing compacted."""

_log = structlog.get_logger(__name__)


class Kept(msgspec.Struct, frozen=True):
    """A snapshot in the manifest; ``dig`` is the hex digest of its bytes."""

    seq: int
    id: str
    chunks: int
    dig: str


class Manifest(msgspec.Struct, frozen=True):
    """Value of ``snapm``: the snapshots that are whole, newest first."""

    v: int
    kept: list[Kept]


class Moved(msgspec.Struct, frozen=True):
    """Value of ``moved``."""

    v: int
    archive: str


class Upkeep:
    """The part of ``EtcdLog`` that keeps the log small.

    Args:
        job: whose log it is.
        client: the cluster.
        keys: the job's keys.
    """

    def __init__(self, job: JobName, client: Client, keys: Keys) -> None:
        self._job = job
        self._client = client
        self._keys = keys
        self._revisions: list[tuple[float, int]] = []
        self._compacted = 0
        self._may_compact = True

    async def first_seq(self) -> Seq:
        """The first event that the live log still holds; 1 if it is empty."""
        log = self._keys.log
        first = (await self._client.range(Range(log, prefix_end(log), limit=1, keys_only=True))).first
        return Seq(1 if first is None else int(first.key[len(log) :], 16))

    async def floor(self) -> Floor:
        """See ``ports.EventLog.floor``."""
        log = self._keys.log
        reads = (Range(log, prefix_end(log), limit=1), Range(self._keys.moved))
        answer = await self._client.txn(Txn(success=reads))
        first, note = answer.range(0).first, answer.range(1).first
        if first is None:
            return Floor(seq=Seq(0), digest=GENESIS.hex())
        segment = parse_segment(first, self._keys)
        archive = ""
        if note is not None:
            with suppress(msgspec.MsgspecError):  # a note for people; the log does not depend on it
                archive = msgspec.json.decode(note.value, type=Moved).archive
        return Floor(seq=Seq(segment.first - 1), digest=segment.prev, archive=archive)

    async def truncate(self, boundary: bytes, term: Term, archive: str) -> None:
        """Delete the segments before the one with the key ``boundary``."""
        delete = DeleteRange(self._keys.log, boundary)
        note = Put(self._keys.moved, msgspec.json.encode(Moved(v=LAYOUT, archive=archive)))
        try:
            await self._fenced(term, (delete, note))
        except LogFull:
            await self._fenced(term, (delete,))

    async def save_snapshot(self, snapshot: Snapshot, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        new = Kept(
            seq=snapshot.seq,
            id=uuid.uuid4().hex[:16],
            chunks=-(-len(snapshot.body) // CHUNK_BYTES),
            dig=digest_of(snapshot.body),
        )
        older = [kept for kept in (await self._manifest()) if kept.seq != new.seq]
        keep = sorted([new, *older], key=lambda kept: -kept.seq)[:SNAPSHOTS_KEPT]
        stale = await self._groups_beside(keep)
        for number in range(new.chunks):
            part = snapshot.body[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            await self._client.put(Put(self._group(new) + b"%04x" % number, part))
        manifest = Put(self._keys.snapshots, msgspec.json.encode(Manifest(v=LAYOUT, kept=keep)))
        await self._fenced(term, (manifest, *(DeleteRange(group, prefix_end(group)) for group in stale[:100])))

    async def snapshot(self, until: Seq | None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``; one that is not as it was saved is passed over."""
        for kept in await self._manifest():
            if until is not None and kept.seq > until:
                continue
            group = self._group(kept)
            found = await self._client.range(Range(group, prefix_end(group)))
            body = b"".join(kv.value for kv in found.kvs)
            if len(found.kvs) == kept.chunks and digest_of(body) == kept.dig:
                return Snapshot(seq=Seq(kept.seq), body=body)
        return None

    async def reclaim(self, revision: int) -> None:
        """Compact what was superseded a while ago; at once if etcd is full.

        Args:
            revision: the store's, now.
        """
        if not self._may_compact:
            return
        now = time.monotonic()
        self._revisions.append((now, revision))
        space = await self.space()
        old = [at for at in self._revisions if space.full or now - at[0] >= LAG_S]
        self._revisions = [*old[-1:], *self._revisions[len(old) :]]
        if not old or old[-1][1] - self._compacted < COMPACT_REVISIONS:
            return
        self._compacted = old[-1][1]
        try:
            await self._client.compact(self._compacted)
        except Compacted:
            pass
        except StoreError as error:
            self._may_compact = False
            _log.warning("etcd.not_compacted", error=str(error), do="compact it yourself, or grant this user the right")

    async def space(self) -> Space:
        """See ``ports.EventLog.space``."""
        status = await self._client.status()
        alarms = await self._client.alarms()
        full = any(alarm.kind == "NOSPACE" for alarm in alarms)
        return Space(used=status.db_size, limit=status.quota, full=full)

    async def _fenced(self, term: Term, ops: tuple[Op, ...]) -> None:
        """Do it if the term still leads. What is done here may be done twice."""
        txn = Txn(compare=(Compare(self._keys.leader, Target.CREATE, term),), success=ops)
        answer = await self._client.txn(txn)
        if term < 1 or not answer.succeeded:
            raise Fenced(f"job {self._job}: term {term} may not write, its lease is over")

    async def _manifest(self) -> list[Kept]:
        found = (await self._client.range(Range(self._keys.snapshots))).first
        if found is None:
            return []
        try:
            return msgspec.json.decode(found.value, type=Manifest).kept
        except msgspec.MsgspecError as error:
            _log.warning("etcd.snapshots_unreadable", key=name(found.key), error=str(error))
            return []

    async def _groups_beside(self, keep: list[Kept]) -> list[bytes]:
        """What all other snapshots' keys begin with: superseded ones, and those whose master did not finish them."""
        prefix = self._keys.snapshot_chunks
        found = await self._client.range(Range(prefix, prefix_end(prefix), keys_only=True))
        groups = dict.fromkeys(kv.key[: kv.key.rindex(b"/") + 1] for kv in found.kvs)
        wanted = {self._group(kept) for kept in keep}
        return [group for group in groups if group not in wanted]

    def _group(self, kept: Kept) -> bytes:
        return self._keys.snapshot_chunks + b"%016x.%s/" % (kept.seq, kept.id.encode())
