"""Maintenance of a log in etcd: snapshots, truncation, compaction, space usage.

Keys, beside those of ``logs.etcd``:

| key | value | written by |
|---|---|---|
| ``snap/<seq, 16 hex digits>.<id>/<chunk>`` | a part of a snapshot | each snapshot, unfenced: not yet in ``snapm`` |
| ``snapm`` | the complete snapshots: seq, ID, number of chunks, digest | each snapshot |
| ``moved`` | the location of the archived events | each truncation |

- A change visible to readers is one transaction that compares ``leader`` with the term, as for an append. The same
  transaction deletes superseded keys, so a deposed master cannot delete keys of its successor.
- The start of the live log is read from the first segment, which contains the digest before it. So a truncation can
  consist of a deletion alone, the only write that a full etcd accepts.
- Compaction affects the whole cluster. It keeps revisions for ``LAG_S``, so readers at one revision rarely fail; if
  they do, they start over.
- Disarming the alarm of a full etcd, and defragmentation, block all writers for a while: operators do this.
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
"""Size of a snapshot chunk: a third of etcd's limit for a request."""

LAG_S = 300.0
"""Seconds for which superseded revisions are kept; the same as in the Kubernetes API server."""

COMPACT_REVISIONS = 100
"""Fewest revisions worth a compaction; an idle job causes none."""

_log = structlog.get_logger(__name__)


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A snapshot in the manifest; ``dig`` is the hex digest of its bytes."""

    seq: int
    id: str
    chunks: int
    dig: str


class Manifest(msgspec.Struct, frozen=True):
    """Value of ``snapm``: the complete snapshots, newest first."""

    v: int
    kept: list[SnapshotInfo]


class Moved(msgspec.Struct, frozen=True):
    """Value of ``moved``."""

    v: int
    archive: str


class EtcdRetention:
    """Maintenance part of ``EtcdLog``.

    Args:
        job: the job.
        client: the cluster.
        keys: the job's keys.
    """

    def __init__(self, job: JobName, client: Client, keys: Keys) -> None:
        self._job = job
        self._client = client
        self._keys = keys
        self._revisions: list[tuple[float, int]] = []
        self._compacted = 0
        self._can_compact = True

    async def first_seq(self) -> Seq:
        """The first event in the live log; 1 if it is empty."""
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
            with suppress(msgspec.MsgspecError):  # informative only
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
        new = SnapshotInfo(
            seq=snapshot.seq,
            id=uuid.uuid4().hex[:16],
            chunks=-(-len(snapshot.body) // CHUNK_BYTES),
            dig=digest_of(snapshot.body),
        )
        older = [kept for kept in (await self._manifest()) if kept.seq != new.seq]
        keep = sorted([new, *older], key=lambda kept: -kept.seq)[:SNAPSHOTS_KEPT]
        stale = await self._other_groups(keep)
        for number in range(new.chunks):
            part = snapshot.body[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            await self._client.put(Put(self._group(new) + b"%04x" % number, part))
        manifest = Put(self._keys.snapshots, msgspec.json.encode(Manifest(v=LAYOUT, kept=keep)))
        await self._fenced(term, (manifest, *(DeleteRange(group, prefix_end(group)) for group in stale[:100])))

    async def snapshot(self, until: Seq | None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``; damaged snapshots are skipped."""
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
        """Compact revisions older than ``LAG_S``; all revisions if etcd is full.

        Args:
            revision: the store's current revision.
        """
        if not self._can_compact:
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
            self._can_compact = False
            _log.warning("etcd.not_compacted", error=str(error), do="compact etcd, or grant this user the right")

    async def space(self) -> Space:
        """See ``ports.EventLog.space``."""
        status = await self._client.status()
        full = "NOSPACE" in await self._client.alarms()
        return Space(used=status.db_size, limit=status.quota, full=full)

    async def _fenced(self, term: Term, ops: tuple[Op, ...]) -> None:
        """Execute operations if the term still leads. They may be executed twice, so they must be idempotent."""
        txn = Txn(compare=(Compare(self._keys.leader, Target.CREATE, term),), success=ops)
        answer = await self._client.txn(txn)
        if term < 1 or not answer.succeeded:
            raise Fenced(f"job {self._job}: write of term {term} refused: its lease has expired")

    async def _manifest(self) -> list[SnapshotInfo]:
        found = (await self._client.range(Range(self._keys.snapshots))).first
        if found is None:
            return []
        try:
            return msgspec.json.decode(found.value, type=Manifest).kept
        except msgspec.MsgspecError as error:
            _log.warning("etcd.snapshots_unreadable", key=name(found.key), error=str(error))
            return []

    async def _other_groups(self, keep: list[SnapshotInfo]) -> list[bytes]:
        """Key prefixes of all other snapshots, both superseded and incomplete."""
        prefix = self._keys.snapshot_chunks
        found = await self._client.range(Range(prefix, prefix_end(prefix), keys_only=True))
        groups = dict.fromkeys(kv.key[: kv.key.rindex(b"/") + 1] for kv in found.kvs)
        wanted = {self._group(kept) for kept in keep}
        return [group for group in groups if group not in wanted]

    def _group(self, kept: SnapshotInfo) -> bytes:
        return self._keys.snapshot_chunks + b"%016x.%s/" % (kept.seq, kept.id.encode())
